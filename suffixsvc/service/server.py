"""gRPC server of the service: assembles handlers, interceptor, health and reflection; starts and drains."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import grpc
import structlog

# the engine loads it with the first backup, when there may be no descriptor left to read it with
import suffixsvc.engine.backup.writer  # noqa: F401
from suffixsvc.access.control import AccessControl
from suffixsvc.access.identity_socket import IdentitySocket, binding
from suffixsvc.access.refreshing import refreshing
from suffixsvc.access.served_log import prepare_log, remember_access
from suffixsvc.config import Limits
from suffixsvc.errors import MissingExtraError
from suffixsvc.runtime.background import PeriodicTask
from suffixsvc.runtime.server_lifecycle import SERVER_OPTIONS
from suffixsvc.service.calls.admission import MAX_FOLLOWERS, Admission
from suffixsvc.service.calls.health import HealthServicer
from suffixsvc.service.calls.interceptor import CallInterceptor
from suffixsvc.service.calls.stalls import CHECK_INTERVAL_SECONDS, StalledCalls
from suffixsvc.service.followers.live_feed import MIN_WINDOW_SECONDS
from suffixsvc.service.followers.service import LEASE_SECONDS
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.listeners.listen import (
    Address,
    TcpAddress,
    UnixAddress,
    bind_error,
    open_addresses,
    prepare,
    require_own_socket,
)
from suffixsvc.service.servicer import SuffixCacheServicer
from suffixsvc.transport.tls import ServerTls
from suffixsvc.v1 import suffix_cache_pb2, suffix_cache_pb2_grpc

try:
    from grpc_health.v1 import health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection
except ModuleNotFoundError as error:
    raise MissingExtraError("server", error.name or "grpc_health") from None

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache

log = structlog.get_logger(__name__)

HEALTH_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
SERVICE_NAME = suffix_cache_pb2.DESCRIPTOR.services_by_name["SuffixCache"].full_name
#: health name: SERVING while the store accepts writes; the service drafts in either state
DURABILITY_NAME = f"{SERVICE_NAME}/durability"
#: calls that may wait for a thread; gRPC itself refuses calls over this number
WAITING_CALLS = 4096
LONGEST_EXPIRY_PERIOD_SECONDS = 30.0
#: a principal that may be probing is logged once in this time
PROBE_REPORT_SECONDS = 60.0
#: time for calls in flight to finish once the server stops; idle streams end after it. Longer than
#: DRAIN_SECONDS (calls/stalls.py), so that the errors of calls that wait for a message are still sent
STOP_GRACE_SECONDS = 0.5


class SuffixServer:
    """One gRPC server over one engine.

    It uses threads, not asyncio: both measured the same over a unix socket, and the engine, which releases
    the GIL, then works on as many cores as there are streams. The caller owns the cache, and closes it after
    :meth:`drain`.
    """

    def __init__(
        self,
        cache: SuffixCache,
        addresses: Sequence[Address],
        *,
        limits: Limits | None = None,
        durable: bool = False,
        access: AccessControl | None = None,
        tls: ServerTls | None = None,
        insecure_network: bool = False,
        max_streams: int = 512,
        max_followers: int = MAX_FOLLOWERS,
        lease_seconds: float = LEASE_SECONDS,
    ) -> None:
        self._addresses = list(addresses)
        self._access = AccessControl(insecure_network=insecure_network) if access is None else access
        self._access.make_public([record.path for record in cache.default_reads()])
        self._tls = tls
        self._insecure_network = insecure_network
        self._limits = limits or Limits()
        self.handlers = Handlers(
            cache,
            self._limits,
            durable=durable,
            lease_seconds=lease_seconds,
            refusals=self._access.rates.refusals,
        )
        self._stalled = StalledCalls()
        self._servicer = SuffixCacheServicer(self.handlers, self._stalled)
        self._health = HealthServicer()
        self._cache = cache
        self.handlers.background_tasks = self._background_tasks()
        admission = Admission(max_streams, max_followers, lambda: self._access.shared)
        self._interceptor = CallInterceptor(
            self._access, admission, self.handlers.readers, self._stalled, self.handlers.calls
        )
        self._access.on_change(self._apply_access)
        self._server = self._assemble(admission.threads)
        #: inodes of the socket files, by path
        self._sockets: dict[str, int] = {}
        self._identities: list[IdentitySocket] = []

    def _background_tasks(self) -> list[PeriodicTask]:
        """One thread per task, so that a task that blocks or fails does not delay the others."""
        period = min(LONGEST_EXPIRY_PERIOD_SECONDS, self._limits.session_idle_seconds / 4)
        # the back-off after failures stays close to the period
        tasks = [
            PeriodicTask(
                name, work, period_seconds=seconds, longest_pause_seconds=LONGEST_EXPIRY_PERIOD_SECONDS
            )
            for name, work, seconds in (
                ("expire-sessions", self._expire_sessions, period),
                ("expire-outputs", self._expire_outputs, period),
                ("evict", self._evict, period),
                ("durability", self._report_durability, CHECK_INTERVAL_SECONDS),
                ("live-text", self.handlers.followers.live.run_window, MIN_WINDOW_SECONDS),
                ("stalled-calls", self._stalled.cancel_overdue, CHECK_INTERVAL_SECONDS),
                ("probing", self.handlers.sessions.probes.report, PROBE_REPORT_SECONDS),
                ("refusals", self.handlers.refusals.report, CHECK_INTERVAL_SECONDS),
            )
        ]
        if self._tls is not None:
            tasks.append(
                PeriodicTask("certificate", self._tls.served.latest, period_seconds=CHECK_INTERVAL_SECONDS)
            )
        return [*tasks, refreshing(self._access, self._keep_access)]

    def _assemble(self, threads: int) -> grpc.Server:
        server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="grpc"),
            interceptors=[self._interceptor],
            maximum_concurrent_rpcs=threads + WAITING_CALLS,
            options=[
                *SERVER_OPTIONS,
                ("grpc.max_receive_message_length", self._limits.max_message_bytes),
                ("grpc.max_send_message_length", self._limits.max_message_bytes),
            ],
        )
        servicer: Any = self._servicer  # has the methods, not the base class
        suffix_cache_pb2_grpc.add_SuffixCacheServicer_to_server(servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection((SERVICE_NAME, HEALTH_NAME, reflection.SERVICE_NAME), server)
        return server

    def start(self) -> list[str]:
        """Listen on every address, then serve.

        Returns:
            The addresses as clients connect to them.

        Raises:
            ListenError: an address cannot be used, or the log must be served with access control.
            StoreError: the log cannot be marked as served with access control.
        """
        prepare_log(self._cache, self._access, open_addresses(self._addresses))
        bound = [self._bind(address) for address in self._addresses]
        self._server.start()
        for identity in self._identities:
            identity.start()
        self._set_health(serving=True)
        self._report_durability()
        for task in self.handlers.background_tasks:
            task.start()
        return bound

    def _bind(self, address: Address) -> str:
        secure = self._insecure_network or self._tls is not None
        prepare(address, insecure_network=secure, shared=self._access.shares_sockets)
        try:
            if isinstance(address, UnixAddress):
                return self._bind_unix(address)
            if self._tls is None:
                port = self._server.add_insecure_port(str(address))
            else:
                port = self._server.add_secure_port(str(address), self._tls.credentials())
        except RuntimeError as error:
            raise bind_error(address, error) from None
        return str(TcpAddress(address.host, port))

    def _bind_unix(self, address: UnixAddress) -> str:
        with binding(address.path, self._access) as identity:
            self._server.add_insecure_port(str(address))
            self._sockets[address.path] = os.stat(address.path).st_ino
            require_own_socket(address)
        if identity is not None:
            self._identities.append(identity)
        return str(address)

    def drain(self) -> int:
        """Refuse new calls, give calls in flight half a second to finish, and end live sessions.

        Its duration has no limit. Calls take about a grace; but it waits for running tasks (an eviction, an
        expiry), because the caller closes the cache afterwards, and for the commits of live sessions, which
        wait for the disk.

        Returns:
            The number of outputs committed as incomplete.
        """
        self._set_health(serving=False)
        self._servicer.drain()
        self._interceptor.drain()
        stopped = self._server.stop(STOP_GRACE_SECONDS)  # before the tasks, which may take long to end
        for task in self.handlers.background_tasks:
            task.stop()
        self.handlers.refusals.report()  # of the time since the task last ran
        self._health.set(DURABILITY_NAME, serving=False)  # after its task, which could set it again
        try:
            stopped.wait()
        finally:  # after the calls, which may still extend or close their sessions
            committed = self.handlers.sessions.drain()
            self._remove_sockets()
        return committed

    def _remove_sockets(self) -> None:
        """Remove the socket files unless another server has replaced them."""
        for identity in self._identities:
            identity.close()
        for path, inode in self._sockets.items():
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)

    def _set_health(self, *, serving: bool) -> None:
        for name in ("", SERVICE_NAME):
            self._health.set(name, serving=serving)

    def _report_durability(self) -> None:
        self._health.set(DURABILITY_NAME, serving=self._cache.durability() is None)

    def _keep_access(self) -> None:
        """End the calls of tokens that are revoked or have expired; mark the log once there is a token."""
        self._interceptor.live_calls.cancel_revoked()
        remember_access(self._cache, self._access)

    def _apply_access(self) -> None:
        """End what is not permitted any more."""
        self._cache.set_policies(self._access.policies)
        self._interceptor.live_calls.cancel_revoked()
        self.handlers.sessions.probes.apply_limits()
        self.handlers.followers.check_rights()
        if ended := self.handlers.sessions.end_revoked():
            log.info("sessions were ended: a right that they need was taken away", sessions=ended)

    def _expire_sessions(self) -> None:
        if outputs := self.handlers.sessions.expire():
            log.info("outputs of idle sessions committed as incomplete", outputs=outputs)

    def _expire_outputs(self) -> None:
        if outputs := self._cache.expire():
            log.info("outputs forgotten after their time to live", outputs=outputs)

    def _evict(self) -> None:
        if outputs := self._cache.evict():
            log.info("outputs evicted: a namespace was beyond its limit", outputs=outputs)
