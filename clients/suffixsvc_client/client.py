"""Blocking client of the service, with the API of the embedded engine."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType
from typing import IO, Any, TypeVar

from suffixsvc.config import validate_namespace
from suffixsvc.errors import SuffixError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.types import Draft, Labels, NamespaceRecord, NewOutput, OutputId, TokenIds
from suffixsvc_client.protocol import unary_calls
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.counters import ClientStats
from suffixsvc_client.protocol.effects import (
    Background,
    Download,
    Effect,
    Exchange,
    Pause,
    Post,
    Procedure,
    Unary,
    Upload,
)
from suffixsvc_client.protocol.exporting import ExportSummary, export_request
from suffixsvc_client.protocol.procedures import Procedures
from suffixsvc_client.protocol.session_state import SessionState
from suffixsvc_client.protocol.unary_calls import ServerInfo, ServiceStats
from suffixsvc_client.session import ClientSession
from suffixsvc_client.transport.direct import open_transport
from suffixsvc_client.transport.forks import Forks
from suffixsvc_client.transport.interface import Transport

__all__ = ["ClientNamespace", "ClientSession", "SuffixClient"]

T = TypeVar("T")
log = logging.getLogger(__name__)


class SuffixClient:
    """A ``suffixsvc.types.Backend`` over a service.

    Args:
        target: ``unix:PATH`` or ``HOST:PORT``; InvalidConfigError for anything else. Nothing is connected
            before the first call.
        config: timers and the circuit breaker.
        step_timeout_s: shorthand for the most common setting; see :class:`ClientConfig`.
        transport: replaces the transport to ``target``.

    Steps never raise errors of the service and never wait longer than their timeout: a failure is an empty
    draft, counted in :attr:`counts`, and an outage is logged once. All other calls except opening a session
    (close, add_outputs, forget, queries) raise. Thread-safe; a session is used by one thread at a time.
    """

    def __init__(
        self,
        target: str = "",
        config: ClientConfig | None = None,
        *,
        step_timeout_s: float | None = None,
        transport: Transport | None = None,
    ) -> None:
        settings = config or ClientConfig()
        if step_timeout_s is not None:
            settings = replace(settings, step_timeout_s=step_timeout_s)
        self._transport = transport or open_transport(
            target, direct=settings.direct, service_uid=settings.service_uid
        )
        self._procedures = Procedures(settings, time.monotonic)
        self._background = _BackgroundThread(self.run)

    def namespace(self, path: str, tokenizer: str | None = None) -> ClientNamespace:
        """The namespace at ``path``. Nothing is sent: errors of the service are raised by later calls.

        Args:
            path: segments joined by "/", at most 200 bytes.
            tokenizer: fingerprint of the tokenizer (``suffixsvc.fingerprint``). The first one binds the
                namespace; another one is refused when a session is opened or an output is added.

        Raises:
            InvalidNamespaceError, InvalidInputError (``tokenizer`` is not a string).
        """
        return ClientNamespace(self, validate_namespace(path), unary_calls.checked_tokenizer(tokenizer))

    def step_many(self, steps: Sequence[tuple[ClientSession, dict[str, Any]]]) -> list[Draft]:
        """A step of many sessions in one message, for engines with continuous batching.

        Args:
            steps: (session, keyword arguments of its ``step``), each session at most once.

        Returns:
            A draft per step, in order. An error of one session empties its own draft only.

        Raises:
            What :meth:`ClientSession.step` raises for wrong arguments; nothing is then sent, but the tokens
            of the steps before the wrong one are recorded and sent with the next message.
        """
        recorded = [(session.state, session.record_step(**arguments)) for session, arguments in steps]
        return self.run(self._procedures.steps(recorded))

    def namespaces(self, prefix: str = "") -> list[NamespaceRecord]:
        """The service's namespaces whose path begins with ``prefix``, ordered by path.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return unary_calls.namespaces(self.run(self._procedures.call(unary_calls.list_namespaces(prefix))))

    def delete_namespace(self, path: str, *, force: bool = False) -> int:
        """Delete a namespace with everything in it; returns the number of its outputs.

        Args:
            force: delete it even with live sessions, whose output is discarded.

        Raises:
            UnknownNamespaceError: it does not exist. NamespaceInUseError: it has live sessions.
            InvalidInputError: ``path`` is malformed, or every session reads it by default.
            StoreError: a part may be left, which cannot be read; repeat the call. ServiceError: no answer
            within ``ClientConfig.call_timeout_s``; it may be deleted.
        """
        reply = self.run(self._procedures.call(unary_calls.delete_namespace(path, force)))
        return int(reply.outputs)

    def stats(self) -> ServiceStats:
        """Contents and counters of the service since it started, summed over all namespaces.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return unary_calls.stats(self.run(self._procedures.call(unary_calls.get_stats(""))))

    def server_info(self) -> ServerInfo:
        """The service's version, limits (tokens and bytes) and the id of its current run.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return unary_calls.server_info(self.run(self._procedures.call(unary_calls.get_server_info())))

    @property
    def counts(self) -> ClientStats:
        """Counters of this client: steps, drafts, empty drafts by reason."""
        return self._procedures.counters.snapshot(self._transport.late_replies)

    def close(self) -> None:
        """Close the connection. Open sessions stay on the service until they expire. Idempotent."""
        self._procedures.closed = True
        self._background.stop()
        self._transport.close()

    def __enter__(self) -> SuffixClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------- internal to the package

    @property
    def procedures(self) -> Procedures:
        """The procedures of this client's calls, without I/O."""
        return self._procedures

    def run(self, procedure: Procedure[T]) -> T:
        """Run a procedure in this thread; its result."""
        try:
            effect = next(procedure)
            while True:
                try:
                    answer = self._perform(effect)
                except SuffixError as error:
                    effect = procedure.throw(error)
                except BaseException as error:  # a KeyboardInterrupt must leave a consistent state
                    procedure.throw(error)
                    raise
                else:
                    effect = procedure.send(answer)
        except StopIteration as stop:
            result: T = stop.value
            return result

    def _perform(self, effect: Effect) -> Any:
        answer: Any = None
        match effect:
            case Exchange(requests, timeout_s):
                answer = self._transport.exchange(requests, timeout_s)
            case Unary(method, request, timeout_s):
                answer = self._transport.unary(method, request, timeout_s)
            case Upload(method, requests, timeout_s):
                answer = self._transport.upload(method, requests, timeout_s)
            case Download(method, request, take, timeout_s):
                self._transport.download(method, request, take, timeout_s)
            case Post(requests):
                self._transport.post(requests)
            case Background(procedure):
                self._background.add(procedure)
            case Pause(seconds):
                time.sleep(seconds)
        return answer


class ClientNamespace:
    """One namespace of a service; see the embedded engine's ``Namespace``."""

    def __init__(self, client: SuffixClient, path: str, tokenizer: str | None) -> None:
        self._client = client
        self._path = path
        self._tokenizer = tokenizer

    @property
    def path(self) -> str:
        """Segments joined by "/"."""
        return self._path

    def open_session(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
    ) -> ClientSession:
        """Begin a generation. If the service cannot be reached, the session is opened later, and its drafts
        are empty until then.

        Args:
            prompt_token_ids: int32[n] or a sequence of ints.
            output_token_ids: tokens that the model has already written, in the same shape; they resume a
                generation without becoming prompt.
            labels: stored with the output, e.g. {"agent": .., "session": .., "principal": ..}.
            reads: paths of other namespaces to draft from; output is stored in this one only.

        Raises:
            InvalidTokensError, InvalidLabelsError, InvalidNamespaceError: nothing was sent.
            LimitExceededError, TokenizerMismatchError, UnknownNamespaceError (in ``reads``): the service
            refuses. ServiceUnavailableError: the client is closed.
        """
        state = SessionState(self._path, self._tokenizer, prompt_token_ids, output_token_ids, labels, reads)
        self._client.run(self._client.procedures.open(state))
        return ClientSession(self._client, state)

    def add_output(
        self,
        token_ids: TokenIds,
        prompt_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        ttl_seconds: int = 0,
    ) -> OutputId:
        """Store one finished output; returns once it is durable.

        Args:
            token_ids: what the model wrote, int32[n] or a sequence of ints, n >= 1.
            prompt_token_ids: the tokens before it, in the same shape; only their end is stored, as context.
            labels: stored with the output.
            ttl_seconds: time to live; 0 = unlimited.

        Returns:
            The output's id, for :meth:`forget`.

        Raises:
            InvalidInputError: an argument is wrong; nothing was sent.
            What :meth:`add_outputs` raises.
        """
        output = unary_calls.new_output(self._path, token_ids, prompt_token_ids, labels, ttl_seconds)
        return self.add_outputs([output])[0]

    def add_outputs(self, outputs: Sequence[NewOutput]) -> list[OutputId]:
        """Store finished outputs; returns once they are durable.

        They are sent in messages of about 1 MiB that respect the service's limits on outputs and segments
        (:meth:`SuffixClient.server_info`). Each message is stored as a whole or not at all; an error of the
        service says how many outputs were stored.

        Args:
            outputs: of this namespace, each a ``suffixsvc.NewOutput`` with at least one token (example:
                docs/protocol.md). An output with a ``uuid`` can be sent again if the answer was lost: it is
                stored once.

        Returns:
            An id per output, in order.

        Raises:
            InvalidInputError (an element is not a NewOutput, or has a wrong field),
            UnknownNamespaceError (an output of another namespace): nothing was sent. InvalidInputError also
            if a ``uuid`` names other tokens already: nothing of its message was stored.
            LimitExceededError, TokenizerMismatchError, StoreError: the service refuses the rest.
            ServiceError: no answer within ``ClientConfig.call_timeout_s``; any number may have been stored.
            They can be sent again if each has a ``uuid``.
        """
        checked = unary_calls.checked_outputs(self._path, outputs)
        return self._client.run(self._client.procedures.add_outputs(self._path, self._tokenizer, checked))

    def export_ngrams(
        self,
        wanted: Sequence[RecordFile],
        sinks: Sequence[IO[bytes]],
        *,
        context_tokens: int = 0,
        timeout_s: float = 3600.0,
    ) -> ExportSummary:
        """Count the namespace's n-grams on the service and write records of llama.cpp's lookup caches.

        Args:
            wanted: which n-grams to count, one file each.
            sinks: files opened for writing bytes, one for each of ``wanted``.
            context_tokens: tokens of each stored prompt tail in which n-grams may begin, at most 64.
            timeout_s: for counting and sending.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError, InvalidInputError: nothing was written.
            LimitExceededError: the service is busy with another export.
            StoreError, ServiceError: the files are incomplete.
        """
        request = export_request(self._path, self._tokenizer, wanted, context_tokens)
        return self._client.run(self._client.procedures.export(request, sinks, timeout_s))

    def forget(self, output_id: OutputId) -> None:
        """Delete one output from the service's log and index.

        Raises:
            UnknownOutputError, UnknownNamespaceError: it does not exist.
            InvalidInputError: ``output_id`` cannot be an id; nothing was sent.
            StoreError: it could not be deleted. ServiceError: no answer within
            ``ClientConfig.call_timeout_s``; it may be deleted.
        """
        self._client.run(self._client.procedures.call(unary_calls.forget(self._path, output_id)))

    def stats(self) -> ServiceStats:
        """Contents and counters of this namespace since the service started.

        Raises:
            UnknownNamespaceError: it does not exist on the service yet.
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return unary_calls.stats(
            self._client.run(self._client.procedures.call(unary_calls.get_stats(self._path)))
        )


class _BackgroundThread:
    """A daemon thread that runs procedures off the caller's path. It is started on first use, and again in a
    forked child, which inherits its parent's memory but not its threads."""

    def __init__(self, run: Callable[[Procedure[None]], None]) -> None:
        self._run = run
        self._forks = Forks.count
        self._queue: queue.SimpleQueue[Procedure[None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def add(self, procedure: Procedure[None]) -> None:
        if self._forks != Forks.count:
            self._forks, self._thread = Forks.count, None
            self._queue, self._lock = queue.SimpleQueue(), threading.Lock()
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="suffixsvc-background", daemon=True)
                self._thread.start()
        self._queue.put(procedure)

    def stop(self) -> None:
        self._queue.put(None)

    def _work(self) -> None:
        while (procedure := self._queue.get()) is not None:
            try:
                self._run(procedure)
            except BaseException:  # a defect ends this procedure, not the thread
                log.exception("background work of a client failed")
