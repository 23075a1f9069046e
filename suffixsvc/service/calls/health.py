"""Implementation of grpc.health.v1.Health.

The servicer shipped with gRPC holds its lock while it sends to a watcher. The end of another watch waits for
that lock in the thread that reports completed sends, so that the server deadlocks. This one sends without a
lock: each watch has a thread, which waits for a change of its status.
"""

from __future__ import annotations

from collections.abc import Iterator

import grpc

from suffixsvc.errors import MissingExtraError
from suffixsvc.runtime.signal_guard import AtomicCondition

try:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
except ModuleNotFoundError as error:
    raise MissingExtraError("server", error.name or "grpc_health") from None

_RESPONSE = health_pb2.HealthCheckResponse


class HealthServicer(health_pb2_grpc.HealthServicer):  # type: ignore[misc] # no type information is shipped
    """Status by service name; unknown names are NOT_FOUND. Thread-safe."""

    def __init__(self) -> None:
        self._changed = AtomicCondition()
        self._statuses: dict[str, int] = {}

    def set(self, name: str, *, serving: bool) -> None:
        """Set the status of a service name and notify its watchers."""
        with self._changed:
            self._statuses[name] = _RESPONSE.SERVING if serving else _RESPONSE.NOT_SERVING
            self._changed.notify_all()

    def Check(  # noqa: N802 - gRPC's method name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthCheckResponse:
        """The current status of a service name."""
        if request.service not in self._statuses:
            context.set_code(grpc.StatusCode.NOT_FOUND)
        return _RESPONSE(status=self._statuses.get(request.service))

    def List(  # noqa: N802 - gRPC's method name; older versions of gRPC do not have it
        self, request: health_pb2.HealthListRequest, context: grpc.ServicerContext
    ) -> health_pb2.HealthListResponse:
        """The current status of every service name."""
        statuses = tuple(self._statuses.items())
        return health_pb2.HealthListResponse(
            statuses={name: _RESPONSE(status=status) for name, status in statuses}
        )

    def Watch(  # noqa: N802 - gRPC's method name
        self, request: health_pb2.HealthCheckRequest, context: grpc.ServicerContext
    ) -> Iterator[health_pb2.HealthCheckResponse]:
        """The status of a service name, now and after each change."""
        ended = False

        def end() -> None:
            nonlocal ended
            with self._changed:
                ended = True
                self._changed.notify_all()

        if not context.add_callback(end):
            return
        sent, unknown = -1, _RESPONSE.SERVICE_UNKNOWN
        while True:
            with self._changed:
                while not ended and (status := self._statuses.get(request.service, unknown)) == sent:
                    self._changed.wait()
                if ended:
                    return
            sent = status
            yield _RESPONSE(status=sent)
