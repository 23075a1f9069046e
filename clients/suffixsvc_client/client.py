"""Blocking client of the service, with the API of the embedded engine."""

from __future__ import annotations

import functools
import logging
import queue
import threading
import time
from collections.abc import Callable
from typing import Concatenate, ParamSpec, Self, TypeVar

from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_client.handles import ClientHandle, Handle, NamespaceHandle, Runner, SessionHandle, configured
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.effects import Procedure
from suffixsvc_client.protocol.session_verbs import SessionVerbs
from suffixsvc_client.protocol.verbs import ClientVerbs, NamespaceVerbs
from suffixsvc_client.transport.grpc_sync import GrpcTransport
from suffixsvc_client.transport.interface import Forks, Transport

P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")
log = logging.getLogger(__name__)


class BlockingRunner(Runner[Transport]):
    """Runs procedures in the calling thread, and those of the background in a thread of its own."""

    sleep = staticmethod(time.sleep)
    awaits = False

    def __init__(self, transport: Transport) -> None:
        super().__init__(transport)
        self.background = BackgroundThread(self.run)

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure; its result."""
        try:
            self.perform(procedure).send(None)
        except StopIteration as stop:  # at once: this runner does not suspend the coroutine
            result: T = stop.value
            return result
        raise AssertionError("a blocking runner must not await")  # pragma: no cover - see ``awaits``

    def start(self, procedure: Procedure[None]) -> None:
        """Run a procedure in the background."""
        self.background.add(procedure)


def _blocking(
    verb: Callable[Concatenate[V, P], Procedure[T]],
) -> Callable[Concatenate[Handle[V, BlockingRunner], P], T]:
    """The method that runs a verb and returns its result."""

    @functools.wraps(verb)
    def method(self: Handle[V, BlockingRunner], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self.runner.run(verb(self.verbs, *args, **kwargs))

    return method


class ClientSession(SessionHandle[BlockingRunner]):
    """One generation; see the embedded engine's ``Session``. Made by :meth:`ClientNamespace.open_session`."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close the session; its output is stored unless the block raised."""
        self.close(commit=kind is None)

    step = _blocking(SessionVerbs.step)
    append_context = _blocking(SessionVerbs.append_context)
    close = _blocking(SessionVerbs.close)


class ClientNamespace(NamespaceHandle[ClientSession, BlockingRunner]):
    """One namespace of a service; see the embedded engine's ``Namespace``."""

    open_session = _blocking(NamespaceVerbs[ClientSession].open_session)
    add_output = _blocking(NamespaceVerbs[ClientSession].add_output)
    add_outputs = _blocking(NamespaceVerbs[ClientSession].add_outputs)
    export_ngrams = _blocking(NamespaceVerbs[ClientSession].export_ngrams)
    delete = _blocking(NamespaceVerbs[ClientSession].delete)
    stats = _blocking(NamespaceVerbs[ClientSession].stats)


class SuffixClient(ClosedOnExit, ClientHandle[BlockingRunner]):
    """A ``suffixsvc.types.Backend`` over a service.

    Args:
        target: ``unix:PATH`` or ``HOST:PORT``; InvalidConfigError for anything else. Nothing is connected
            before the first call.
        config: timers and the circuit breaker.
        step_timeout_s: shorthand for the most common setting; see :class:`ClientConfig`.
        transport: replaces the transport to ``target``.

    Steps never raise errors of the service and never wait longer than their timeout: a failure is an empty
    draft, counted in :attr:`counts`, and an outage is logged once. ``append_context`` does not raise them
    either. ``open_session`` raises only if the service refuses the session. ``close``, ``add_outputs``,
    ``delete`` and queries raise. Thread-safe; a session is used by one thread at a time.
    """

    def __init__(
        self,
        target: str = "",
        config: ClientConfig | None = None,
        *,
        step_timeout_s: float | None = None,
        transport: Transport | None = None,
    ) -> None:
        settings = configured(config, step_timeout_s)
        chosen = transport or GrpcTransport(target, settings)
        super().__init__(settings, BlockingRunner(chosen))

    step_many = _blocking(ClientVerbs.step_many)
    post_many = _blocking(ClientVerbs.post_many)
    flush_many = _blocking(ClientVerbs.flush_many)
    namespaces = _blocking(ClientVerbs.namespaces)
    namespace_summaries = _blocking(ClientVerbs.namespace_summaries)
    delete = _blocking(ClientVerbs.delete)
    delete_namespace = _blocking(ClientVerbs.delete_namespace)
    stats = _blocking(ClientVerbs.stats)
    server_info = _blocking(ClientVerbs.server_info)
    backup = _blocking(ClientVerbs.backup)

    def namespace(self, path: str, tokenizer: str | None = None) -> ClientNamespace:
        """The namespace at ``path``. Nothing is sent: errors of the service are raised by later calls.

        Args:
            path: components joined by "/", at most 200 bytes.
            tokenizer: fingerprint of the tokenizer (``suffixsvc.fingerprint``). The first one binds the
                namespace; another one is refused when a session is opened or an output is added.

        Raises:
            InvalidNamespaceError, InvalidInputError (``tokenizer`` is not a string).
        """
        new_session = functools.partial(ClientSession, runner=self.runner)
        verbs = NamespaceVerbs(self.verbs.procedures, path, tokenizer, new_session)
        return ClientNamespace(verbs, self.runner)

    def close(self) -> None:
        """Close the connection. Open sessions stay on the service until they expire. Idempotent."""
        self.verbs.procedures.closed = True
        self.runner.background.stop()
        self.runner.transport.close()


class BackgroundThread:
    """A daemon thread that runs procedures off the caller's path. It is started on first use, and again in a
    forked child, which inherits its parent's memory but not its threads."""

    def __init__(self, run: Callable[[Procedure[None]], None]) -> None:
        self._run = run
        self._forks = Forks.count
        self._queue: queue.SimpleQueue[Procedure[None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, procedure: Procedure[None]) -> None:
        """Queue a procedure."""
        if self._forks != Forks.count:
            self._forks, self._thread = Forks.count, None
            self._queue, self._lock = queue.SimpleQueue(), threading.Lock()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="suffixsvc-background", daemon=True)
                self._thread.start()
        self._queue.put(procedure)

    def stop(self) -> None:
        """End the thread after the procedures that are queued."""
        self._queue.put(None)

    def _work(self) -> None:
        while (procedure := self._queue.get()) is not None:
            try:
                self._run(procedure)
            except BaseException:  # a defect ends this procedure, not the thread
                log.exception("background work of a client failed")
