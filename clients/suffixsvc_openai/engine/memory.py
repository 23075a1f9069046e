"""Stored outputs of the server: sessions of an embedded engine, of a follower or of a client.

The namespace of a call is ``PRINCIPAL/NAME/MODEL``: callers of one principal that name the same share what
their agents wrote, and outputs of one model never draft for another.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import structlog

from suffixsvc.access.served_log import ServedLog
from suffixsvc.config import MAX_LABEL_CHARACTERS, Limits
from suffixsvc.errors import (
    InvalidInputError,
    LimitExceededError,
    ServiceError,
    ServiceTimeoutError,
    SuffixError,
    UnknownNamespaceError,
)
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import Backend, BackendSession, Mode, OutputId
from suffixsvc_openai.engine.attempts import Attempts
from suffixsvc_openai.engine.plans import Caller

_log = structlog.get_logger(__name__)

#: seconds that a step waits for a service, and that the end of a session does
_STEP_TIMEOUT: Final = 0.05
_CALL_TIMEOUT: Final = 10.0
#: seconds without storing after a service did not answer: ended answers must not pile up meanwhile
PAUSE_SECONDS: Final = 10.0
#: namespaces whose statistics are read at once
MAX_STORED: Final = 200


class NotStored(enum.StrEnum):
    """Why the output of an answer is not stored; values are labels of a metric."""

    #: the caller does not want it
    NO_STORE = "no_store"
    #: the answer has no tokens: it failed, or was cancelled before its first one
    NO_OUTPUT = "no_output"
    #: another attempt at the same answer is stored
    REPEATED = "repeated"
    #: of namespaces, sessions or bytes
    LIMIT = "limit"
    #: the service does not answer, or did not a moment ago
    SERVICE = "service"
    #: any other failure, which is logged
    ERROR = "error"

    @classmethod
    def of(cls, error: SuffixError) -> NotStored:
        """Return the reason that an error is."""
        if isinstance(error, LimitExceededError):
            return cls.LIMIT
        return cls.SERVICE if isinstance(error, ServiceError) else cls.ERROR


@dataclass(frozen=True, slots=True)
class Stored:
    """Stored outputs of a namespace.

    Attributes:
        name: the name that callers give; with the model for those of another model.
        outputs, tokens: stored outputs, and their tokens.
        held_bytes: memory and disk that they are charged for.
    """

    name: str
    outputs: int
    tokens: int
    held_bytes: int


class MemorySession(BackendSession, Protocol):
    """A session of either backend."""

    @property
    def length(self) -> int:
        """Tokens so far, the prompt included."""

    def close(self, commit: bool = True, *, incomplete: bool = False, wait: bool = True) -> OutputId | None:
        """See ``suffixsvc.index.Session.close``."""


class Memory(ClosedOnExit):
    """Opens and closes sessions of calls. Thread-safe.

    Args:
        backend: the cache; it is closed with this object.
        model: fingerprint of the model.
        tokenizer: fingerprint of its tokenizer.
        clock: seconds, for the pause after a service did not answer.
        most_namespaces: returns the largest number of namespaces of a principal; None: no limit.
        sends_later: whether a session that is closed without waiting keeps its output until its service
            answers.
        log: the log of an embedded cache; None: another process serves it.
    """

    def __init__(
        self,
        backend: Backend,
        model: str,
        tokenizer: str,
        clock: Callable[[], float] = time.monotonic,
        most_namespaces: Callable[[], int | None] = lambda: None,
        sends_later: Callable[[object], bool] = lambda _session: False,
        log: ServedLog | None = None,
    ) -> None:
        self._backend, self._model, self._tokenizer = backend, model, tokenizer
        self._clock, self._most_namespaces = clock, most_namespaces
        self._sends_later = sends_later
        self.log = log
        self._paused_until = float("-inf")

    def path_of(self, caller: Caller, name: str) -> str:
        """Return the namespace of a principal's name."""
        return f"{caller.principal}/{name}/{self._model}"

    def open(self, caller: Caller, prompt_ids: Sequence[int]) -> MemorySession | NotStored:
        """Open a session with exactly this prompt; a private one for a caller who wants nothing stored.

        Namespaces of ``reads`` that do not exist have no outputs yet, and are left out.

        Returns:
            The session. If the outputs cannot be used, the reason, which is logged: the answer does not need
            them.

        Raises:
            InvalidNamespaceError, InvalidLabelsError.
        """
        labels = {name: _shortened(text) for name, text in caller.labels.items() if text}
        reads = [self.path_of(caller, name) for name in caller.reads]
        path = self.path_of(caller, caller.name)
        try:
            self._require_capacity(caller.principal, path)
            namespace = self._backend.namespace(path, self._tokenizer)
            try:
                session: Any = namespace.open_session(
                    prompt_ids, labels=labels, reads=reads or None, private=not caller.store
                )
            except UnknownNamespaceError:
                reads = self._existing(reads)
                session = namespace.open_session(
                    prompt_ids, labels=labels, reads=reads or None, private=not caller.store
                )
        except InvalidInputError:
            raise
        except SuffixError as error:
            _log.warning("no session for a call, whose output is not stored", reason=str(error))
            return NotStored.of(error)
        opened: MemorySession = session
        return opened

    def _require_capacity(self, principal: str, path: str) -> None:
        """Raise LimitExceededError if a principal has as many namespaces as it may, and not this one."""
        backend: Any = self._backend  # the embedded cache has this
        most = self._most_namespaces()
        if most is None or backend.has_namespace(path):
            return
        if len(self._paths(principal)) >= most:
            raise LimitExceededError(
                f"the principal {principal!r} has too many namespaces",
                expected=f"at most {most}",
                remedy="Write related outputs into one namespace, or delete namespaces.",
            )

    def _paths(self, principal: str) -> list[str]:
        backend: Any = self._backend  # both backends' can list them
        return [each.path for each in backend.namespaces() if each.path.startswith(f"{principal}/")]

    def _existing(self, paths: Sequence[str]) -> list[str]:
        backend: Any = self._backend  # both backends' can list them
        known = {each.path for each in backend.namespaces()}
        return [path for path in paths if path in known]

    def end(
        self,
        session: MemorySession,
        token_ids: Sequence[int],
        prompt: int,
        *,
        store: bool,
        incomplete: bool,
        attempts: Attempts | None = None,
        path: str = "",
    ) -> NotStored | None:
        """Close a session; failures are logged, because the answer is complete.

        For :data:`PAUSE_SECONDS` after a service did not answer in time, sessions are left to it, which ends
        idle ones: each would wait for it again. What those of answers with ``store`` have by then it stores
        as incomplete; private ones have no output. Sessions of a follower are closed without waiting instead:
        it sends what they wrote when the service answers.

        Args:
            session: the session.
            token_ids: all tokens of the answer; those that the session lacks are appended.
            prompt: tokens of the prompt.
            store: store the output, otherwise discard it.
            incomplete: the model had not finished.
            attempts: at this answer, of which one output is stored; None: it is the only one.
            path: its namespace.

        Returns:
            Why the output is not stored, or not yet; None if it is.
        """
        reason = _reason(token_ids, store=store, incomplete=incomplete, attempts=attempts)
        if self._clock() < self._paused_until:
            if self._sends_later(session):
                with suppress(LimitExceededError):  # the session is too long: it is stored as far as it fits
                    _append_rest(session, () if reason else token_ids, prompt)
                self._close_later(session, reason, incomplete=incomplete)
            return reason or NotStored.SERVICE
        stored, failure = False, NotStored.LIMIT  # a limit is no error of a session
        try:
            _append_rest(session, () if reason else token_ids, prompt)
            output = session.close(commit=reason is None, incomplete=incomplete)
            stored = output is not None
            if attempts is not None and output is not None:
                earlier, attempts.output = attempts.output, output
                attempts.complete, attempts.tokens = not incomplete, len(token_ids)
                self._forget(path, earlier)
        except ServiceTimeoutError as error:
            failure = NotStored.SERVICE
            self._paused_until = self._clock() + PAUSE_SECONDS
            _log.warning("outputs are not stored for a while", seconds=PAUSE_SECONDS, reason=str(error))
            if self._sends_later(session):
                self._close_later(session, reason, incomplete=incomplete)
        except SuffixError as error:
            failure = NotStored.of(error)
            _log.warning("the output of a call is not stored", reason=str(error))
            if isinstance(error, ServiceError) and self._sends_later(session):
                self._close_later(session, reason, incomplete=incomplete)
            else:
                self._discard(session)
        return None if stored else reason or failure

    def _close_later(self, session: MemorySession, reason: NotStored | None, *, incomplete: bool) -> None:
        """Close a session that sends its output when its service answers."""
        try:
            session.close(commit=reason is None, incomplete=incomplete, wait=False)
        except SuffixError as error:
            _log.warning("a session cannot be closed", reason=str(error))
            self._discard(session)

    @staticmethod
    def _discard(session: MemorySession) -> None:
        """Close a session without its output."""
        try:
            session.close(commit=False)
        except SuffixError as error:
            _log.warning("a session cannot be closed", reason=str(error))

    def _forget(self, path: str, output: OutputId | None) -> None:
        """Delete an output, if it still exists."""
        if output is not None:
            namespace: Any = self._backend.namespace(path)  # of any backend
            with suppress(UnknownNamespaceError):
                namespace.delete(output_ids=[output], superseded=True)

    def stored(self, principal: str) -> list[Stored]:
        """Return the namespaces of a principal that have outputs, the largest first.

        Of more than :data:`MAX_STORED` only as many are read, those that the backend lists first: sizes are
        known after reading.

        Raises:
            SuffixError: a service does not answer.
        """
        backend: Any = self._backend  # both backends have these
        prefix = f"{principal}/"
        found = []
        for path in self._paths(principal)[:MAX_STORED]:
            try:
                stats = backend.namespace(path).stats()
            except UnknownNamespaceError:  # deleted meanwhile
                continue
            if stats.outputs:
                name = path.removeprefix(prefix).removesuffix(f"/{self._model}")
                found.append(Stored(name, stats.outputs, stats.tokens, stats.held_bytes))
        return sorted(found, key=lambda each: -each.held_bytes)

    def close(self) -> None:
        """Close the backend. Idempotent."""
        self._backend.close()


def open_memory(
    data: Path | None,
    service: str | None,
    model: str,
    tokenizer: str,
    principals: Callable[[], int] = lambda: 1,
    mode: Mode = "auto",
) -> Memory:
    """Open stored outputs: of a service, else of a data folder, else in memory only.

    Args:
        data, service: folder, or address.
        model, tokenizer: see :class:`Memory`.
        principals: returns the number of principals, which get equal numbers of the namespaces; a service has
            its own limits.
        mode: who drafts from a service's outputs, see ``suffixsvc_follower.connect``.

    Raises:
        StoreError: the data folder cannot be used.
        InvalidConfigError: the address is invalid. A service that does not answer is no error.
        SuffixError: with ``mode="follow"``, why the service does not let this process follow.
    """
    if service is not None:
        from suffixsvc_client import ClientConfig  # noqa: PLC0415  # gRPC, where it is used
        from suffixsvc_follower import FollowerConfig, FollowerSession, connect  # noqa: PLC0415  # as above

        client = ClientConfig(step_timeout_s=_STEP_TIMEOUT, call_timeout_s=_CALL_TIMEOUT)
        backend = connect(service, mode=mode, config=FollowerConfig(client))
        return Memory(
            backend, model, tokenizer, sends_later=lambda session: isinstance(session, FollowerSession)
        )
    from suffixsvc import SuffixCache  # noqa: PLC0415  # the core and LMDB, where they are used

    limits = Limits()

    def most() -> int | None:
        count = principals()
        return max(1, limits.max_namespaces // count) if count > 1 else None

    cache = SuffixCache(data, limits=limits)
    return Memory(cache, model, tokenizer, most_namespaces=most, log=cache)


def _shortened(label: str) -> str:
    """The beginning of a label's value: the few of a caller fit in MAX_LABELS_BYTES together."""
    return label[: MAX_LABEL_CHARACTERS if label.isascii() else MAX_LABEL_CHARACTERS // 2]


def _append_rest(session: MemorySession, token_ids: Sequence[int], prompt: int) -> None:
    """Append the tokens of an answer that its session lacks."""
    missing = token_ids[session.length - prompt :]
    if missing:
        session.step(missing, max_draft_tokens=0, at=session.length)


def _reason(
    token_ids: Sequence[int], *, store: bool, incomplete: bool, attempts: Attempts | None
) -> NotStored | None:
    """Return why an output is not to be stored; None if it is."""
    if not store:
        return NotStored.NO_STORE
    if not len(token_ids):
        return NotStored.NO_OUTPUT
    if attempts is not None and not attempts.better(len(token_ids), complete=not incomplete):
        return NotStored.REPEATED
    return None
