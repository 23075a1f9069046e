"""Live sessions of a cache: admission, count, and release of sessions that callers did not close."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial

from suffixsvc.config import MAX_READS, Limits, validate_default_reads
from suffixsvc.engine.base.close_guard import CloseGuard
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.limits.size_estimates import predicted_bytes
from suffixsvc.engine.outputs.output_log import OutputLog
from suffixsvc.errors import InvalidNamespaceError, LimitExceededError, unknown_namespace
from suffixsvc.index import Abandoned, NamespaceIndex, Session
from suffixsvc.runtime.signal_guard import uninterrupted
from suffixsvc.types import Labels, NewOutput, TokenArray

__all__ = ["LiveSessions"]


class LiveSessions:
    """Opens the sessions of a cache and counts the live ones. Thread-safe.

    Args:
        close_guard: guard of the cache's close.
        catalog: the namespaces of the cache.
        outputs: the outputs of the cache.
        limits: maximum number of live sessions, and limits of a session.
    """

    def __init__(self, close_guard: CloseGuard, catalog: Catalog, outputs: OutputLog, limits: Limits) -> None:
        self._close_guard = close_guard
        self._catalog = catalog
        self._outputs = outputs
        self._quotas = outputs.quotas
        self._limits = limits
        self._live = 0
        self._count_lock = threading.Lock()
        self._abandoned: Abandoned = deque()
        self._default_reads: tuple[str, ...] = ()

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
        cache: object,
    ) -> Session:
        """Open a session; see :meth:`~suffixsvc.engine.namespace.Namespace.open_session`.

        Args:
            cache: kept alive as long as the session is.
        """
        self.require_writable(index.path)
        with self._close_guard.while_open():
            self.reap_abandoned()
            if len(reads) > MAX_READS:
                raise LimitExceededError(
                    f"reads must be at most {MAX_READS} namespaces besides the session's",
                    got=len(reads),
                )
            others = [self._catalog.readable(path, index) for path in self._with_defaults(reads, index)]
            self._count_in()
            release = None
            try:
                release = self._quotas.admit_session(index, len(prompt), len(output))
                return Session(
                    index,
                    others,
                    prompt,
                    output,
                    labels=labels,
                    limits=self._limits,
                    commit=partial(self._outputs.commit, index),
                    on_close=partial(self._closed, index, cache),
                    abandoned=self._abandoned,
                    admit=partial(self._quotas.admit_session, index),
                )
            except BaseException:
                self._closed(index, cache)
                raise
            finally:
                if release is not None:
                    release()

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
        self._closed(index, self)

    def _count_in(self) -> None:
        """Count one more live session. LimitExceededError: the limit is reached."""
        with self._count_lock:
            if self._live >= self._limits.max_sessions:
                raise LimitExceededError(
                    "too many live sessions",
                    expected=f"at most {self._limits.max_sessions} (Limits.max_sessions)",
                    remedy="Close finished sessions, or raise the limit.",
                )
            self._live += 1

    def _with_defaults(self, reads: Sequence[str], index: NamespaceIndex) -> list[str]:
        """The namespaces that a session reads besides its own: those it names, then the default ones."""
        defaults = self._catalog.of_tokenizer(self._default_reads, index.tokenizer)
        others = [path for path in defaults if path != index.path]
        return list(dict.fromkeys([*reads, *others]))[:MAX_READS]

    def _closed(self, index: NamespaceIndex, _cache: object, logged: NewOutput | None = None) -> None:
        """Count a session out; ``logged`` is its output in the log, None if it was discarded."""
        with self._count_lock:
            self._live -= 1
        if logged is None:
            self._quotas.usage.refresh(index)  # the retracted text no longer takes memory
        else:
            self._outputs.reclaim(index, predicted_bytes(logged))
