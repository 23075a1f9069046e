"""The blocking client: the embedded engine's API over a service."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from types import TracebackType
from typing import IO, Any, TypeVar

from suffixsvc.errors import SuffixError
from suffixsvc.lookup_records import RecordFile
from suffixsvc.types import Draft, Labels, NamespaceRecord, NewOutput, OutputId, TokenIds
from suffixsvc_client import questions
from suffixsvc_client.config import ClientConfig
from suffixsvc_client.counters import ClientStats
from suffixsvc_client.direct import open_transport
from suffixsvc_client.effects import (
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
from suffixsvc_client.exporting import ExportSummary, export_request
from suffixsvc_client.forks import Forks
from suffixsvc_client.procedures import Procedures
from suffixsvc_client.questions import ServerInfo, ServiceStats
from suffixsvc_client.session import ClientSession
from suffixsvc_client.state import SessionState
from suffixsvc_client.transport import Transport

__all__ = ["ClientNamespace", "ClientSession", "SuffixClient"]

T = TypeVar("T")
log = logging.getLogger(__name__)


class SuffixClient:
    """A ``suffixsvc.types.Backend`` over a service.

    Args:
        target: ``unix:PATH`` or ``HOST:PORT``; InvalidConfigError for anything else. Nothing is connected
            before the first call.
        config: timers and the circuit breaker.
        step_timeout_s: shorthand for the setting one changes most; see :class:`ClientConfig`.
        transport: instead of the one to ``target``.

    Steps never raise for the service's sake and never wait longer than their timer: what goes wrong is an
    empty draft, counted in :attr:`counts`. That the service cannot be reached is logged, once an outage. What
    must not get lost (close, add_outputs, forget) raises.
    Thread-safe; one session belongs to one thread at a time.
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
        self._background = _Worker(self._carry_out)

    def namespace(self, path: str, tokenizer: str | None = None) -> ClientNamespace:
        """The namespace at ``path``. Nothing is sent: what the service has against it shows later.

        Args:
            path: segments joined by "/", at most 200 bytes.
            tokenizer: fingerprint of the tokenizer (``suffixsvc.fingerprint``). Given once it binds the
                namespace; another one is refused when a session is opened or an output added.

        Raises:
            InvalidNamespaceError, InvalidInputError (``tokenizer`` is no string).
        """
        return ClientNamespace(
            self, questions.checked_namespace(path), questions.checked_tokenizer(tokenizer)
        )

    def step_many(self, steps: Sequence[tuple[ClientSession, dict[str, Any]]]) -> list[Draft]:
        """A step of many sessions in one message, for engines with continuous batching.

        Args:
            steps: (session, keyword arguments of its ``step``), each session at most once.

        Returns:
            A draft per step, in order. A session's trouble empties its own draft only.

        Raises:
            What :meth:`ClientSession.step` raises for the caller's own arguments; nothing is then sent, but
            the tokens of the steps before the faulty one are noted and go along with the next message.
        """
        accepted = [(session.state, session.accept(**arguments)) for session, arguments in steps]
        return self.run(self._procedures.steps(accepted))

    def namespaces(self, prefix: str = "") -> list[NamespaceRecord]:
        """The service's namespaces whose path begins with ``prefix``, ordered by path.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return questions.namespaces(self.run(self._procedures.ask(questions.list_namespaces(prefix))))

    def delete_namespace(self, path: str, *, force: bool = False) -> int:
        """Delete a namespace with everything in it; how many outputs it had.

        Args:
            force: also with live sessions: what they wrote is discarded.

        Raises:
            UnknownNamespaceError: it is not there. NamespaceInUseError: it has live sessions.
            InvalidInputError: ``path`` is no path, or every session reads it by default.
            StoreError: some of it may be left, which nothing can read; call it again. ServiceError: no answer
            within ``ClientConfig.call_timeout_s``; it may be deleted.
        """
        reply = self.run(self._procedures.ask(questions.delete_namespace(path, force)))
        return int(reply.outputs)

    def stats(self) -> ServiceStats:
        """What the service holds and has done since it started, summed over all namespaces.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return questions.stats(self.run(self._procedures.ask(questions.get_stats(""))))

    def server_info(self) -> ServerInfo:
        """The service's version, limits (tokens and bytes) and the id of its current run.

        Raises:
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return questions.server_info(self.run(self._procedures.ask(questions.get_server_info())))

    @property
    def counts(self) -> ClientStats:
        """What this client has counted so far."""
        return self._procedures.counters.snapshot(self._transport.late_replies)

    def close(self) -> None:
        """Let go of the connection. Open sessions stay on the service until they expire. Idempotent."""
        self._procedures.closed = True
        self._background.stop()
        self._transport.close()

    def __enter__(self) -> SuffixClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ------------------------------------------------------------------------------- for this package only

    @property
    def procedures(self) -> Procedures:
        """What the calls of this client do, step by step, without any transport."""
        return self._procedures

    def run(self, procedure: Procedure[T]) -> T:
        """Drive a procedure to its end in this thread."""
        try:
            effect = next(procedure)
            while True:
                try:
                    answer = self._perform(effect)
                except SuffixError as error:
                    effect = procedure.throw(error)
                except BaseException as error:  # a KeyboardInterrupt must find the state in order
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

    def _carry_out(self, procedure: Procedure[None]) -> None:
        self.run(procedure)


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
        """Begin a generation. A service that cannot be reached is no error: the session opens later, and
        drafts nothing until then.

        Args:
            prompt_token_ids: int32[n] or a sequence of ints.
            output_token_ids: what the model already wrote, in the same shape; resumes a generation without
                turning its output into prompt.
            labels: kept with the output, e.g. {"agent": .., "session": .., "principal": ..}.
            reads: paths of further namespaces to draft from; what is written goes to this one only.

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
        """Remember one finished output; returns once it is durable.

        Args:
            token_ids: what the model wrote, int32[n] or a sequence of ints, n >= 1.
            prompt_token_ids: what stood before it, in the same shape; only its end is kept, as context.
            labels: kept with the output.
            ttl_seconds: forgotten so many seconds after it was written; 0 = never.

        Returns:
            The output's id, for :meth:`forget`.

        Raises:
            InvalidInputError: an argument makes no sense; nothing was sent.
            What :meth:`add_outputs` raises.
        """
        output = questions.new_output(self._path, token_ids, prompt_token_ids, labels, ttl_seconds)
        return self.add_outputs([output])[0]

    def add_outputs(self, outputs: Sequence[NewOutput]) -> list[OutputId]:
        """Remember finished outputs; returns once they are durable. Sent in messages of at most about 1 MiB
        that have no more outputs and segments than the service takes (:meth:`SuffixClient.server_info`), each
        kept whole or not at all; an error of the service says how many outputs were kept.

        Args:
            outputs: of this namespace, each a ``suffixsvc.NewOutput`` with at least one token (example:
                docs/protocol.md). One with a ``uuid`` can be sent again when the answer was lost: it is kept
                once.

        Returns:
            An id per output, in order.

        Raises:
            InvalidInputError (an element is no NewOutput, or a field of it is wrong),
            UnknownNamespaceError (an output of another namespace): nothing was sent; or a
            ``uuid`` stands for other tokens already: nothing of its message was kept.
            LimitExceededError, TokenizerMismatchError, StoreError: the service refuses the rest.
            ServiceError: no answer within ``ClientConfig.call_timeout_s``; any number may have been kept.
            Send them again where each has a ``uuid``.
        """
        checked = questions.checked_outputs(self._path, outputs)
        return self._client.run(self._client.procedures.add_outputs(self._path, self._tokenizer, checked))

    def export_ngrams(
        self,
        wanted: Sequence[RecordFile],
        sinks: Sequence[IO[bytes]],
        *,
        context_tokens: int = 0,
        timeout_s: float = 3600.0,
    ) -> ExportSummary:
        """Have the service count what the namespace keeps, and write it as records of llama.cpp's lookup
        caches.

        Args:
            wanted: which n-grams, a file each.
            sinks: where they go: files opened for writing bytes, one for each.
            context_tokens: of each prompt's kept end, at most 64, that n-grams may begin in.
            timeout_s: for counting and sending all of it.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError, InvalidInputError: nothing was written.
            LimitExceededError: the service is busy with another export.
            StoreError, ServiceError: what was written so far is not whole.
        """
        request = export_request(self._path, self._tokenizer, wanted, context_tokens)
        return self._client.run(self._client.procedures.export(request, sinks, timeout_s))

    def forget(self, output_id: OutputId) -> None:
        """Delete one output from the service's log and index.

        Raises:
            UnknownOutputError, UnknownNamespaceError: it is not there.
            InvalidInputError: ``output_id`` is no id; nothing was sent.
            StoreError: it could not be deleted. ServiceError: no answer within
            ``ClientConfig.call_timeout_s``; it may be deleted.
        """
        self._client.run(self._client.procedures.ask(questions.forget(self._path, output_id)))

    def stats(self) -> ServiceStats:
        """What this namespace holds and has done since the service started.

        Raises:
            UnknownNamespaceError: the service does not hold it yet.
            ServiceError: no answer within ``ClientConfig.call_timeout_s``.
        """
        return questions.stats(self._client.run(self._client.procedures.ask(questions.get_stats(self._path))))


class _Worker:
    """A daemon thread for what must not cost a caller time; started when first needed, and anew in a forked
    child, which has its parent's memory but not its threads."""

    def __init__(self, carry_out: Any) -> None:
        self._carry_out = carry_out
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
                self._carry_out(procedure)
            except BaseException:  # a defect costs this procedure; the next one finds the thread alive
                log.exception("background work of a client failed")
