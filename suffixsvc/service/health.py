"""The service grpc.health.v1.Health.

The servicer that comes with gRPC holds its lock while it waits for a message to a watcher to be sent. The end
of another watch waits for that lock in the one thread that reports what was sent: the server stands still.
Here nothing is sent with a lock held: each watch has a thread, which waits for a change of its status.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from suffixsvc.errors import MissingExtraError
from suffixsvc.interrupts import AtomicCondition

try:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
except ModuleNotFoundError as error:
    raise MissingExtraError("server", error.name or "grpc_health") from None

__all__ = ["HealthServicer"]


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # no type information is shipped
    """Status by name. Thread-safe."""

    def __init__(self) -> None:
        self._changed = AtomicCondition()
        self._serving: dict[str, bool] = {}

    def set(self, name: str, *, serving: bool) -> None:
        """From now on the status of a name, told to its watchers."""
        with self._changed:
            self._serving[name] = serving
            self._changed.notify_all()

    def Check(  # noqa: N802 - gRPC's method name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        serving = self._serving.get(request.service)
        if serving is None:
            context.set_code(grpc.StatusCode.NOT_FOUND)
            return health_pb2.HealthCheckResponse()
        return health_pb2.HealthCheckResponse(status=_status(serving))

    def Watch(  # noqa: N802 - gRPC's method name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        gone = False

        def end() -> None:
            nonlocal gone
            with self._changed:
                gone = True
                self._changed.notify_all()

        if not context.add_callback(end):
            return
        told: int | None = None

        def is_news() -> bool:
            return gone or _status(self._serving.get(request.service)) != told

        while True:
            with self._changed:
                self._changed.wait_for(is_news)
                if gone:
                    return
                told = _status(self._serving.get(request.service))
            yield health_pb2.HealthCheckResponse(status=told)


def _status(serving: bool | None) -> int:
    """As the protocol numbers it."""
    response = health_pb2.HealthCheckResponse
    if serving is None:
        return int(response.SERVICE_UNKNOWN)
    return int(response.SERVING if serving else response.NOT_SERVING)
