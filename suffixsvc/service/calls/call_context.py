"""Context of the log lines of a call: its request id and its method, as structlog's context variables.

Every line that is logged on the call's thread carries them. Lines of other threads about a call pass
:func:`of_this_call`, which is read on the call's thread.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import grpc
import structlog

from suffixsvc.runtime.request_ids import REQUEST_ID, request_id

log = structlog.get_logger(__name__)


@contextlib.contextmanager
def call_context(method: str, context: grpc.ServicerContext) -> Iterator[str]:
    """Set the context for the block, which is a whole call; yields the request id.

    The end of the block is logged at debug level.
    """
    asked = next((value for key, value in context.invocation_metadata() if key == REQUEST_ID), "")
    found = request_id(asked if isinstance(asked, str) else "")
    began = time.perf_counter()
    tokens = structlog.contextvars.bind_contextvars(request_id=found, method=method)
    try:
        yield found
    finally:
        seconds = round(time.perf_counter() - began, 6)
        with contextlib.suppress(Exception):  # a log that cannot be written
            log.debug("call ended", request_id=found, method=method, seconds=seconds)
        # a stream's generator may be closed outside of the context of its call
        with contextlib.suppress(ValueError):
            structlog.contextvars.reset_contextvars(**tokens)


def of_this_call() -> dict[str, Any]:
    """The context of the current call, for log lines of other threads; empty outside of one."""
    return dict(structlog.contextvars.get_contextvars())
