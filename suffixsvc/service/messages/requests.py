"""Readers of request messages, one per method, with limits on elements before parsing."""

from __future__ import annotations

from typing import Any, Final

from google.protobuf import message_factory

from suffixsvc.config import MAX_READS, Limits
from suffixsvc.service.messages.converters import READS_REMEDY, SPLIT_REMEDY
from suffixsvc.service.messages.elements import SMALL_BYTES, MessageReader
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import watch_pb2

#: smallest limit on the steps of a message, whatever the session limit
MIN_STEP_LIMIT: Final = 64
STEPS_REMEDY: Final = "Send the steps in several messages, or serve with a larger --max-sessions."
#: elements of an output besides its segments: fields, and 16 labels of three elements each
_OUTPUT_ELEMENTS: Final = 64
#: elements of a step: fields, a verify cost, the result of verification
_STEP_ELEMENTS: Final = 32
#: namespaces in a report of a follower, and fields of each
MAX_USES: Final = 1024
_USE_ELEMENTS: Final = 24
USES_REMEDY: Final = "Send the rest with the next report."
DELETE_REMEDY: Final = "Delete the outputs in several calls."
_OPENING: Final = {"reads": MAX_READS, "labels": 16}


def request_readers(limits: Limits) -> dict[str, MessageReader[Any]]:
    """The readers of all methods of suffixsvc.v1.SuffixCache, by the name of the method."""
    steps = max(limits.max_sessions, MIN_STEP_LIMIT)
    outputs, segments = limits.max_outputs_per_message, limits.max_segments_per_message
    methods = pb.DESCRIPTOR.services_by_name["SuffixCache"].methods_by_name
    return {
        **{
            name: MessageReader(message_factory.GetMessageClass(method.input_type))
            for name, method in methods.items()
        },
        "Delete": MessageReader(pb.DeleteRequest, {"selection.labels": 16}, remedy=DELETE_REMEDY),
        "OpenSession": MessageReader(pb.OpenSessionRequest, _OPENING, remedy=READS_REMEDY),
        "Stream": MessageReader(
            pb.StreamRequest,
            {"steps.items": steps, **{f"open.{path}": most for path, most in _OPENING.items()}},
            SMALL_BYTES + steps * _STEP_ELEMENTS,
            STEPS_REMEDY,
        ),
        "Watch": MessageReader(
            watch_pb2.WatchRequest,
            {"report.used": MAX_USES},
            SMALL_BYTES + MAX_USES * _USE_ELEMENTS,
            USES_REMEDY,
        ),
        "AddOutputs": MessageReader(
            pb.AddOutputsRequest,
            {"outputs": outputs, "outputs.segment_lens": segments},
            SMALL_BYTES + outputs * _OUTPUT_ELEMENTS + segments,
            SPLIT_REMEDY,
        ),
    }
