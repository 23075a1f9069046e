"""Readers of request messages, one per method, with limits on elements before parsing."""

from __future__ import annotations

from typing import Any, Final

from suffixsvc.config import MAX_READS, Limits
from suffixsvc.service.messages.converters import SPLIT_REMEDY
from suffixsvc.service.messages.elements import SMALL_BYTES, MessageReader
from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = ["MIN_STEP_LIMIT", "RequestReaders"]

#: smallest limit on the steps of a message, whatever the session limit
MIN_STEP_LIMIT: Final = 64
#: elements of an output besides its segments: fields, and 16 labels of three elements each
_OUTPUT_ELEMENTS: Final = 64
#: elements of a step: fields, a verify cost, the result of verification
_STEP_ELEMENTS: Final = 32
_LABELS: Final = 16
_READS_REMEDY: Final = "Name the most important ones; a session always drafts from its own namespace as well."


class RequestReaders:
    """The readers of all methods of suffixsvc.v1.SuffixCache.

    Args:
        limits: of the service.
    """

    def __init__(self, limits: Limits) -> None:
        steps = max(limits.max_sessions, MIN_STEP_LIMIT)
        outputs, segments = limits.max_outputs_per_message, limits.max_segments_per_message
        opening = {"reads": MAX_READS, "labels": _LABELS}
        self.stream = MessageReader(
            pb.StreamRequest,
            limits={"steps.items": steps, **{f"open.{path}": most for path, most in opening.items()}},
            max_elements=SMALL_BYTES + steps * _STEP_ELEMENTS,
            remedy="Send the steps in several messages, or serve with a larger --max-sessions.",
        )
        methods = pb.DESCRIPTOR.services_by_name["SuffixCache"].methods_by_name
        types = {name: getattr(pb, method.input_type.name) for name, method in methods.items()}
        #: by the name of a method
        self.of: dict[str, MessageReader[Any]] = {
            **{name: MessageReader(message_type) for name, message_type in types.items()},
            "OpenSession": MessageReader(pb.OpenSessionRequest, limits=opening, remedy=_READS_REMEDY),
            "AddOutputs": MessageReader(
                pb.AddOutputsRequest,
                limits={"outputs": outputs, "outputs.segment_lens": segments},
                max_elements=SMALL_BYTES + outputs * _OUTPUT_ELEMENTS + segments,
                remedy=SPLIT_REMEDY,
            ),
        }
