"""Server assembly: handlers, interceptor, health and reflection on one gRPC server; start and drain."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import grpc
import structlog

from suffixsvc.config import Limits
from suffixsvc.errors import ListenError, MissingExtraError, SuffixError
from suffixsvc.frames import DIRECT_SUFFIX
from suffixsvc.lifecycle import SERVER_OPTIONS, owner_only_umask
from suffixsvc.service.direct import DirectSocket
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.interceptor import ErrorInterceptor
from suffixsvc.service.listen import (
    MAX_UNIX_PATH_BYTES,
    Address,
    TcpAddress,
    UnixAddress,
    prepare,
)
from suffixsvc.service.servicer import SuffixCacheServicer
from suffixsvc.v1 import suffix_cache_pb2, suffix_cache_pb2_grpc

try:
    from grpc_health.v1 import health, health_pb2, health_pb2_grpc
    from grpc_reflection.v1alpha import reflection
except ModuleNotFoundError as error:
    raise MissingExtraError("server", error.name or "grpc_health") from None

if TYPE_CHECKING:
    from suffixsvc.engine import SuffixCache

__all__ = ["SuffixServer"]

log = structlog.get_logger(__name__)

SERVICE_NAME = suffix_cache_pb2.DESCRIPTOR.services_by_name["SuffixCache"].full_name
#: threads beside those that streams hold: unary calls, health watches
UNARY_THREADS = 32
LONGEST_EXPIRY_PERIOD_SECONDS = 30.0
#: how long calls in flight may go on once the server stops; an idle stream is cut after it
STOP_GRACE_SECONDS = 0.5


class SuffixServer:
    """One gRPC server over one engine. Threads, not asyncio: measured alike over a unix socket, and the
    engine, which releases the GIL, then works on as many cores as there are streams.

    Does not own the cache: whoever made it closes it, after :meth:`drain`.
    """

    def __init__(
        self,
        cache: SuffixCache,
        addresses: Sequence[Address],
        *,
        limits: Limits | None = None,
        durable: bool = False,
        version: str = "",
        insecure_network: bool = False,
        max_streams: int = 512,
    ) -> None:
        self._addresses = list(addresses)
        self._insecure_network = insecure_network
        self._limits = limits or Limits()
        self._max_streams = max_streams
        self.handlers = Handlers(cache, self._limits, durable=durable, version=version)
        self._servicer = SuffixCacheServicer(self.handlers, max_streams)
        self._health = health.HealthServicer()
        self._cache = cache
        self._stop_expiry = threading.Event()
        self._expiry = threading.Thread(target=self._expire, name="expiry", daemon=True)
        self._server = self._assemble(max_streams + UNARY_THREADS)
        self._sockets: list[tuple[str, int]] = []
        self._direct: list[DirectSocket] = []

    def _assemble(self, threads: int) -> grpc.Server:
        server = grpc.server(
            ThreadPoolExecutor(threads, thread_name_prefix="grpc"),
            interceptors=[ErrorInterceptor()],
            maximum_concurrent_rpcs=threads,
            options=[
                *SERVER_OPTIONS,
                ("grpc.max_receive_message_length", self._limits.max_message_bytes),
                ("grpc.max_send_message_length", self._limits.max_message_bytes),
            ],
        )
        suffix_cache_pb2_grpc.add_SuffixCacheServicer_to_server(self._servicer, server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        reflection.enable_server_reflection(
            (SERVICE_NAME, health.SERVICE_NAME, reflection.SERVICE_NAME), server
        )
        return server

    def start(self) -> list[str]:
        """Listen on every address, then serve; the addresses as clients connect to them. ListenError."""
        bound = [self._bind(address) for address in self._addresses]
        self._server.start()
        for direct in self._direct:
            direct.start()
        self._set_health(health_pb2.HealthCheckResponse.SERVING)
        self._expiry.start()
        return bound

    def _bind(self, address: Address) -> str:
        prepare(address, insecure_network=self._insecure_network)
        try:
            with owner_only_umask():
                port = self._server.add_insecure_port(str(address))
        except RuntimeError as error:
            raise ListenError(f"cannot listen on {address}", expected="a free address", got=error) from None
        if isinstance(address, UnixAddress):
            self._sockets.append((address.path, os.stat(address.path).st_ino))
            self._bind_direct(address)
            return str(address)
        return str(TcpAddress(address.host, port))

    def _bind_direct(self, beside: UnixAddress) -> None:
        """The stream without gRPC, beside gRPC's socket."""
        path = beside.path + DIRECT_SUFFIX
        if len(os.fsencode(path)) > MAX_UNIX_PATH_BYTES:
            log.info("no direct socket: its path would be too long", path=path)
            return
        most = self._limits.max_message_bytes
        try:
            desk = self.handlers.sessions.desk
            direct = DirectSocket(path, desk, self._servicer.answer_rest, most, self._max_streams)
        except (ListenError, OSError) as error:
            log.warning("no direct socket; sessions go over gRPC", path=path, error=str(error))
            return
        self._direct.append(direct)
        self._sockets.append((path, direct.inode))

    def drain(self) -> int:
        """Refuse what is new, finish what runs, commit live sessions as incomplete; how many those were."""
        self._set_health(health_pb2.HealthCheckResponse.NOT_SERVING)
        self._servicer.drain()
        self._stop_expiry.set()
        if self._expiry.is_alive():
            self._expiry.join()
        stopped = self._server.stop(STOP_GRACE_SECONDS)
        try:
            for direct in self._direct:
                direct.stop(STOP_GRACE_SECONDS)
            stopped.wait()
        finally:
            committed = self.handlers.sessions.drain()
            self._remove_sockets()
        return committed

    def _remove_sockets(self) -> None:
        """Only files that are still ours: another server may have taken the path meanwhile."""
        for path, inode in self._sockets:
            with contextlib.suppress(FileNotFoundError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)

    def _set_health(self, status: int) -> None:
        for name in ("", SERVICE_NAME):
            self._health.set(name, status)

    def _expire(self) -> None:
        """Sessions that nobody uses, outputs whose time to live has passed, and what is beyond a limit."""
        period = min(LONGEST_EXPIRY_PERIOD_SECONDS, self._limits.session_idle_seconds / 4)
        while not self._stop_expiry.wait(period):
            try:
                if sessions := self.handlers.sessions.expire():
                    log.info("idle sessions committed as incomplete", sessions=sessions)
                if outputs := self._cache.expire():
                    log.info("outputs forgotten after their time to live", outputs=outputs)
                if outputs := self._cache.evict():
                    log.info("outputs evicted: a namespace was beyond its limit", outputs=outputs)
            except SuffixError as error:
                log.warning("expiry failed; it is tried again", error=str(error))
