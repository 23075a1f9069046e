"""Checks of what followers send: hello, and reports."""

from __future__ import annotations

from typing import Final

import numpy as np

from suffixsvc import __version__
from suffixsvc.errors import InvalidInputError, UnsupportedVersionError
from suffixsvc.index.namespace_stats import StepCounts
from suffixsvc.log_wire import WATCH_PROTOCOL
from suffixsvc.service.messages.converters import checked_id
from suffixsvc.service.messages.elements import too_many_error
from suffixsvc.types import FollowerName, OutputId
from suffixsvc.v1 import watch_pb2

MAX_DESCRIPTION_BYTES: Final = 200
#: outputs of a report, all namespaces together
MAX_USED_OUTPUTS: Final = 65_536
#: of one counter in a report: no follower takes as many steps in a lease
_MAX_COUNT: Final = 1 << 32
_IDS: Final = np.dtype("<u8")
_LARGEST_ID: Final = (1 << 63) - 1
_REPORT_MORE: Final = "Send the rest with the next report."


def checked_hello(request: watch_pb2.WatchRequest | None) -> watch_pb2.WatchHello:
    """The hello of a stream.

    Raises:
        InvalidInputError: it is missing, or a field is malformed.
        UnsupportedVersionError: the follower speaks another version.
    """
    if request is None or not request.HasField("hello"):
        got = "the end of the stream" if request is None else str(request.WhichOneof("request"))
        raise InvalidInputError("the first message of Watch must be a hello", got=got)
    hello = request.hello
    if hello.protocol != WATCH_PROTOCOL:
        older = "follower" if hello.protocol < WATCH_PROTOCOL else "service"
        raise UnsupportedVersionError(
            f"protocol of a hello must be the one of this service, which is suffixsvc {__version__}",
            expected=WATCH_PROTOCOL,
            got=hello.protocol,
            remedy=f"Upgrade the {older}, which is the older one of the two.",
        )
    checked_id("follower_id", hello.follower_id)
    _check_description(hello.description)
    return hello


def name_of(hello: watch_pb2.WatchHello) -> FollowerName:
    """Id and description of a follower."""
    return FollowerName(hello.follower_id, hello.description)


def _check_description(value: str) -> None:
    size = len(value.encode())
    if size > MAX_DESCRIPTION_BYTES or not value.isprintable():
        raise InvalidInputError(
            f"description must be at most {MAX_DESCRIPTION_BYTES} bytes of printable characters",
            got=f"{size} bytes: {ascii(value)[:80]}",
        )


def checked_uses(
    report: watch_pb2.FollowerReport,
) -> list[tuple[str, list[OutputId], StepCounts, bytes]]:
    """The uses of namespaces in a report: path, outputs, counters, and what was learned.

    Raises:
        InvalidInputError: a field is malformed.
        LimitExceededError: too many outputs.
    """
    uses, left = [], MAX_USED_OUTPUTS
    for use in report.used:
        if len(use.output_ids) % _IDS.itemsize:
            raise InvalidInputError(
                "output_ids of a report must be packed uint64",
                expected=f"a multiple of {_IDS.itemsize} bytes",
                got=f"{len(use.output_ids)} bytes",
            )
        left -= len(use.output_ids) // _IDS.itemsize
        if left < 0:
            raise too_many_error("used.output_ids", MAX_USED_OUTPUTS, MAX_USED_OUTPUTS - left, _REPORT_MORE)
        counts = StepCounts._make(getattr(use, name) for name in StepCounts._fields)
        for count in counts:
            if not 0 <= count < _MAX_COUNT:  # a float can be NaN
                raise InvalidInputError(
                    "counters of a report must be those since the last one",
                    expected=f"0 or more, less than {_MAX_COUNT}",
                    got=count,
                )
        ids: list[OutputId] = np.frombuffer(use.output_ids, _IDS).tolist()
        uses.append((use.namespace, [each for each in ids if each <= _LARGEST_ID], counts, use.learned))
    return uses
