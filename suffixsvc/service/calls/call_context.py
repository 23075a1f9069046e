"""Context of the log lines of a call: request id, method and principal, as structlog's context variables.

Every line that is logged on the call's thread carries them. Lines of other threads about a call pass
:func:`of_this_call`, which is read on the call's thread. The principal is known once the caller is
authenticated; the operator has none in its lines.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import grpc
import structlog

from suffixsvc.access.principals import OPERATOR
from suffixsvc.runtime.request_ids import REQUEST_ID, request_id
from suffixsvc.service.calls.call_counts import CallCounts

log = structlog.get_logger(__name__)


class CallContext:
    """The context of one call.

    Attributes:
        request_id: of the call.
        code: name of the status that it ends with. CANCELLED unless another one is set: a call that its
            client, a deadline or a later call cancels ends anywhere.
    """

    def __init__(self, request_id: str, method: str) -> None:
        self.request_id = request_id
        self.code = grpc.StatusCode.CANCELLED.name
        self._about = {"request_id": request_id, "method": method}
        self._tokens = dict(structlog.contextvars.bind_contextvars(**self._about))
        self._began = time.perf_counter()

    def name_principal(self, principal: str) -> None:
        """Name the authenticated principal in further lines. The operator is not named."""
        if principal != OPERATOR:
            self._about["principal"] = principal
            self._tokens.update(structlog.contextvars.bind_contextvars(principal=principal))

    def end(self, calls: CallCounts, *, unary: bool) -> None:
        """Count the call, and log its end at debug level."""
        seconds = time.perf_counter() - self._began
        calls.add(self._about["method"].lstrip("/"), self.code, seconds, unary=unary)
        with contextlib.suppress(Exception):  # a log that cannot be written
            log.debug("call ended", **self._about, code=self.code, seconds=round(seconds, 6))
        # a stream's generator may be closed outside of the context of its call
        with contextlib.suppress(ValueError):
            structlog.contextvars.reset_contextvars(**self._tokens)


@contextlib.contextmanager
def call_context(
    method: str, context: grpc.ServicerContext, calls: CallCounts, *, unary: bool
) -> Iterator[CallContext]:
    """Set the context for the block, which is a whole call, and count the call.

    Args:
        unary: the method has one request and one reply.
    """
    asked = next((value for key, value in context.invocation_metadata() if key == REQUEST_ID), "")
    found = CallContext(request_id(asked if isinstance(asked, str) else ""), method)
    try:
        yield found
    finally:
        found.end(calls, unary=unary)


def of_this_call() -> dict[str, Any]:
    """The context of the current call, for log lines of other threads; empty outside of one."""
    return dict(structlog.contextvars.get_contextvars())
