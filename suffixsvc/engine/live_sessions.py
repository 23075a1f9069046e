"""Live sessions of a cache: admission, count, and release of sessions that callers did not close."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from suffixsvc.config import MAX_READS, Limits, validate_default_reads
from suffixsvc.engine.base.close_guard import CloseGuard
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.outputs.output_log import OutputLog
from suffixsvc.errors import InvalidNamespaceError, LimitExceededError, unknown_namespace
from suffixsvc.index import Abandoned, NamespaceIndex, Session
from suffixsvc.index.hot_index import SeesAll, sees_everything
from suffixsvc.runtime.signal_guard import uninterrupted
from suffixsvc.runtime.turns import Turns
from suffixsvc.types import Labels, NewOutput, TokenArray


class LiveSessions:
    """Opens the sessions of a cache and counts the live ones. Thread-safe.

    Args:
        close_guard: guard of the cache's close.
        catalog: the namespaces of the cache.
        outputs: the outputs of the cache.
        limits: maximum number of live sessions, and limits of a session.

    Attributes:
        live: number of live sessions.
    """

    def __init__(self, close_guard: CloseGuard, catalog: Catalog, outputs: OutputLog, limits: Limits) -> None:
        self._close_guard = close_guard
        self._catalog = catalog
        self._outputs = outputs
        self._quotas = outputs.quotas
        self._limits = limits
        self.live = 0
        self._count_lock = threading.Lock()
        self._abandoned: Abandoned = deque()
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._default_reads: tuple[str, ...] = ()
        #: of large pieces of context
        self._turns = Turns()

    def read_by_default(self, paths: Sequence[str], tokenizers: Mapping[str, str]) -> None:
        """Set the namespaces that every new session reads.

        Args:
            paths: their paths.
            tokenizers: fingerprint of every existing namespace, by path.

        Raises:
            UnknownNamespaceError: a namespace does not exist.
            InvalidConfigError: more than a session can read.
        """
        chosen = tuple(dict.fromkeys(paths))
        for path in chosen:
            if path not in tokenizers:
                raise unknown_namespace(path)
        validate_default_reads(tokenizers[path] for path in chosen)
        self._default_reads = chosen

    @property
    def default_reads(self) -> tuple[str, ...]:
        """Paths of the namespaces that every new session reads."""
        return self._default_reads

    def require_writable(self, path: str) -> None:
        """Raise InvalidNamespaceError for a namespace that is read by default, and therefore read-only."""
        if path in self._default_reads:
            raise InvalidNamespaceError(
                f"the namespace {path!r} is only read: every session drafts from it",
                remedy="Write to another namespace.",
            )

    def open(
        self,
        index: NamespaceIndex,
        prompt: TokenArray,
        output: TokenArray,
        labels: Labels,
        reads: Sequence[str],
        tokenizer: str,
        *,
        private: bool = False,
        principal: str = "",
        session_id: str = "",
        sees_all: SeesAll = sees_everything,
    ) -> Session:
        """Open a session and bind its tokenizer; see
        :meth:`~suffixsvc.engine.namespace.Namespace.open_session`."""
        self.require_writable(index.path)
        with self._close_guard.while_open():
            self.reap_abandoned()
            if len(reads) > MAX_READS:
                raise LimitExceededError(
                    f"reads must be at most {MAX_READS} namespaces besides the session's",
                    got=len(reads),
                )
            others = self._read_by(index, reads, tokenizer or index.tokenizer)
            self._catalog.learner_of(index, principal)  # from the store, for the first session of a principal
            self._count_in()
            try:
                with self._quotas.admit_session(index, len(prompt), len(output), principal):
                    session = Session(
                        index,
                        others,
                        prompt,
                        output,
                        labels=labels,
                        limits=self._limits,
                        commit=partial(self._outputs.commit, index),
                        on_close=partial(self._closed, index),
                        abandoned=self._abandoned,
                        admit=partial(self._quotas.admit_session, index, principal=principal),
                        private=private or bool(index.quota.policy.no_store),
                        principal=principal,
                        session_id=session_id,
                        sees_all=sees_all,
                        turns=self._turns,
                    )
            except BaseException:
                self._closed(index)
                raise
            with self._count_lock:
                self._sessions.add(session)
            session.apply_rights()  # again: a change of rights before that did not find it
            try:
                self._catalog.bind(index, tokenizer)
            except BaseException:
                session.close(commit=False)
                raise
            return session

    def apply_rights(self) -> None:
        """Let every live session draft from what its reader may see at this moment."""
        with self._count_lock:
            sessions = list(self._sessions)
        for session in sessions:
            session.apply_rights()

    def reap_abandoned(self) -> None:
        """End the sessions that were garbage-collected without close(); their text is retracted."""
        while self._abandoned:
            uninterrupted(self._reap_one)

    def _reap_one(self) -> None:
        try:
            text, index = self._abandoned.popleft()
        except IndexError:  # another thread took it
            return
        text.release()
        index.remove_live(text)
        self._closed(index)

    def _count_in(self) -> None:
        """Count one more live session. LimitExceededError: the limit is reached."""
        with self._count_lock:
            if self.live >= self._limits.max_sessions:
                raise LimitExceededError(
                    "too many live sessions",
                    expected=f"at most {self._limits.max_sessions} (Limits.max_sessions)",
                    remedy="Close finished sessions, or raise the limit.",
                )
            self.live += 1

    def _read_by(self, index: NamespaceIndex, reads: Sequence[str], tokenizer: str) -> list[NamespaceIndex]:
        """The namespaces that a session reads besides its own: those it names, then the default ones.

        Raises:
            UnknownNamespaceError, TokenizerMismatchError: of a namespace that it names.
        """
        defaults = [other for path in self._default_reads if (other := self._catalog.get(path)) is not None]
        same = [each for each in defaults if tokenizer and each.tokenizer == tokenizer]
        named = [self._catalog.readable(path, tokenizer) for path in reads]
        return list(dict.fromkeys([*named, *(each for each in same if each is not index)]))[:MAX_READS]

    def _closed(self, index: NamespaceIndex, logged: NewOutput | None = None) -> None:
        """Count a session out; ``logged`` is its output in the log, None if it was discarded."""
        with self._count_lock:
            self.live -= 1
        if logged is None:
            self._quotas.usage.refresh(index)  # the retracted text no longer takes memory
        else:
            self._outputs.reclaim(index, [logged])
