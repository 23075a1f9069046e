"""``grpc.health.v1`` of a draft worker: it serves as long as it answers.

Without the package of its messages, which a worker does not need otherwise: the answer is a constant.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import grpc

#: the call, which no credential is needed for
HEALTH_CHECK: Final = "/grpc.health.v1.Health/Check"
#: HealthCheckResponse(status=SERVING)
_SERVING: Final = b"\x08\x01"


def health_handler() -> grpc.GenericRpcHandler:
    """The handler of :data:`HEALTH_CHECK`. It waits for no request, so that callers hold no thread."""

    def check(_requests: Iterator[bytes], _context: grpc.ServicerContext) -> Iterator[bytes]:
        yield _SERVING

    service, _, method = HEALTH_CHECK[1:].partition("/")
    return grpc.method_handlers_generic_handler(
        service, {method: grpc.stream_stream_rpc_method_handler(check)}
    )
