"""The cache: namespaces, sessions and the store behind them."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import structlog

from suffixsvc import store as stores
from suffixsvc.config import Limits, validate_namespace
from suffixsvc.core import new_learner
from suffixsvc.engine.insertion import Insertion
from suffixsvc.engine.namespace import Namespace
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    LimitExceededError,
    SessionClosedError,
    StoreFullError,
    SuffixError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.index import Abandoned, NamespaceIndex, NamespaceStats, Session
from suffixsvc.store.validation import check_output
from suffixsvc.types import Labels, NamespaceRecord, NewOutput, OutputId, Store, TokenArray

__all__ = ["CacheStats", "SuffixCache"]

log = structlog.get_logger(__name__)

#: namespaces a session can draft from beside its own (the core holds a fixed number of cursors)
MAX_READS = 7
#: name of the learned tables in the store
_LEARNER_STATE = "learner"


@dataclass(frozen=True, slots=True)
class CacheStats(NamespaceStats):
    """A :class:`NamespaceStats` summed over all namespaces, and what the store holds."""

    namespaces: int
    store_bytes: int
    last_lsn: int


def _open_store(path: str | Path | None, max_bytes: int) -> Store:
    if path is None:
        return stores.MemoryStore(limit_bytes=max_bytes)
    if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
        raise InvalidConfigError(
            "path is no data folder", expected="a path, or None for memory only", got=repr(path)[:80]
        )
    return stores.LmdbStore(path, limit_bytes=max_bytes)


class SuffixCache:
    """Remembers what models wrote and drafts what comes next, in this process.

    Args:
        path: a directory to keep the outputs in (created if missing), or None: memory only.
        limits: what is refused.
        progress: called with (outputs so far, outputs in all) while the index is rebuilt on open.
        starting_weights: what new namespaces start from instead of the shipped weights, as
            :meth:`Namespace.learned_weights` gave it; b"" = nothing.

    Raises:
        InvalidInputError: ``starting_weights`` are not of this version.
        StoreLockedError, StoreCorruptError, StoreForeignError: the directory cannot be used.

    Thread-safe. Use as a context manager, or call :meth:`close`; what was acknowledged is safe either way.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        limits: Limits | None = None,
        progress: Callable[[int, int], None] | None = None,
        starting_weights: bytes | None = None,
    ) -> None:
        new_learner(starting_weights)  # refused here rather than at the first namespace
        self._starting_weights = starting_weights
        self._limits = Limits() if limits is None else limits
        self._lock = threading.RLock()
        self._closed = False
        self._sessions = 0
        self._abandoned: Abandoned = deque()
        self._indexes: dict[str, NamespaceIndex] = {}
        self._records: dict[str, NamespaceRecord] = {}
        self._store = _open_store(path, self._limits.max_store_bytes)
        try:
            self._recover(progress)
        except BaseException:
            self._store.close()
            raise

    # ------------------------------------------------------------------------------------- namespaces

    def namespace(self, path: str, tokenizer: str | None = None) -> Namespace:
        """The namespace at ``path``, created on first use.

        Args:
            path: segments joined by "/", at most 200 bytes.
            tokenizer: fingerprint of the tokenizer (``suffixsvc.fingerprint``). Given once it binds the
                namespace.

        Raises:
            InvalidNamespaceError, TokenizerMismatchError.
        """
        validate_namespace(path)
        with self._lock:
            self._require_open()
            record = self._records.get(path)
            if record is None and len(self._records) >= self._limits.max_namespaces:
                raise LimitExceededError(
                    "too many namespaces",
                    expected=f"at most {self._limits.max_namespaces} (Limits.max_namespaces)",
                    remedy="Write related outputs into one namespace, or raise the limit.",
                )
            if record is None or (tokenizer and record.tokenizer != tokenizer):
                record = self._store.add_namespace(NamespaceRecord(path, tokenizer or ""))
                self._records[path] = record
            return Namespace(self, record, self._index_of(path))

    def namespaces(self) -> list[NamespaceRecord]:
        """All namespaces, ordered by path."""
        with self._lock:
            self._require_open()
            return [self._records[path] for path in sorted(self._records)]

    # ------------------------------------------------------------------------------------ maintenance

    def expire(self, now: float | None = None) -> int:
        """Forget the outputs whose time to live has passed; returns how many."""
        with self._lock:
            self._require_open()
            gone = self._store.expire(time.time() if now is None else now)
            broken: SuffixError | None = None
            for stored in gone:
                try:
                    self._index_of(stored.output.namespace).remove(stored.output)
                except SuffixError as error:  # the log has let all of them go: so must the index
                    broken = error
            if broken is not None:
                raise broken
            return len(gone)

    def stats(self) -> CacheStats:
        """Sums over all namespaces, and the bytes and last log position of the store.

        Raises:
            SessionClosedError: the cache is closed.
        """
        with self._lock:
            self._require_open()
            self._reap_abandoned()
            store = self._store.stats()
            sums = dict.fromkeys(NamespaceStats.__dataclass_fields__, 0)
            for index in self._indexes.values():
                for name, value in asdict(index.stats()).items():
                    sums[name] += value
            return CacheStats(
                namespaces=len(self._records),
                store_bytes=store.bytes_used,
                last_lsn=store.last_lsn,
                **sums,
            )

    def check(self) -> None:
        """Walk the store and every index; IndexCorruptError or StoreCorruptError names what is broken."""
        with self._lock:
            self._require_open()
            self._store.check()
            for index in self._indexes.values():
                index.check()

    def close(self) -> None:
        """Keep the learned tables, release the data folder. Open sessions are not committed. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._reap_abandoned()
                for path, index in self._indexes.items():
                    if index.learner.changed:
                        self._keep_learned(path, index)
            finally:
                self._store.close()

    def __enter__(self) -> SuffixCache:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # -------------------------------------------------------------------------------------- internal

    def _recover(self, progress: Callable[[int, int], None] | None) -> None:
        for record in self._store.namespaces():
            self._records[record.path] = record
            learned = self._store.get_state(record.path, _LEARNER_STATE)
            if learned is not None:
                # Tables of another version are left alone: they are derived, and learned anew.
                self._index_of(record.path).learner.load(learned)
        total = self._store.stats().outputs
        for done, stored in enumerate(self._store.scan(), start=1):
            self._index_of(stored.output.namespace).insert(stored.output)
            if progress is not None and (done % 64 == 0 or done == total):
                progress(done, total)

    def _keep_learned(self, path: str, index: NamespaceIndex) -> None:
        try:
            self._store.put_state(path, _LEARNER_STATE, index.learner.save())
        except StoreFullError as error:  # derived and learned anew: no reason to fail a close
            log.warning("what was learned could not be kept", namespace=path, error=str(error))

    def _index_of(self, path: str) -> NamespaceIndex:
        index = self._indexes.get(path)
        if index is None:
            index = self._indexes[path] = NamespaceIndex(path, self._starting_weights)
        return index

    def _require_open(self) -> None:
        if self._closed:
            raise SessionClosedError("the cache is closed", remedy="Open a new SuffixCache.")

    def _open_session(
        self,
        record: NamespaceRecord,
        prompt: TokenArray,
        output: TokenArray,
        labels: Labels,
        reads: Sequence[str],
    ) -> Session:
        with self._lock:
            self._require_open()
            self._reap_abandoned()
            if self._sessions >= self._limits.max_sessions:
                raise LimitExceededError(
                    "too many live sessions",
                    expected=f"at most {self._limits.max_sessions} (Limits.max_sessions)",
                    remedy="Close sessions that are done, or raise the limit.",
                )
            if isinstance(reads, (str, bytes)) or not isinstance(reads, Sequence):
                raise InvalidInputError(
                    "reads is no list of namespaces", expected="a sequence of paths", got=repr(reads)[:80]
                )
            if len(reads) > MAX_READS:
                raise LimitExceededError(
                    "a session reads too many namespaces",
                    expected=f"at most {MAX_READS} beside its own",
                    got=len(reads),
                )
            others = [self._readable(path, record) for path in reads]
            index = self._index_of(record.path)
            self._sessions += 1
        try:
            return Session(
                index,
                others,
                prompt,
                output,
                labels=labels,
                limits=self._limits,
                commit=self._commit,
                on_close=self._session_closed,
                abandoned=self._abandoned,
            )
        except BaseException:
            self._session_closed()
            raise

    def _readable(self, path: str, reader: NamespaceRecord) -> NamespaceIndex:
        record = self._records.get(validate_namespace(path))
        if record is None:
            raise UnknownNamespaceError(
                f"no namespace {path!r} to read from",
                expected="an existing namespace",
                got=repr(path),
                remedy="Create it by writing to it first.",
            )
        if record.tokenizer and reader.tokenizer and record.tokenizer != reader.tokenizer:
            raise TokenizerMismatchError(
                f"namespace {path!r} holds tokens of another tokenizer",
                expected=reader.tokenizer,
                got=record.tokenizer,
                remedy="Read only namespaces of the same tokenizer.",
            )
        return self._index_of(path)

    def _reap_abandoned(self) -> None:
        """End the sessions that were dropped without close(): what they wrote is taken back."""
        while self._abandoned:
            native, index = self._abandoned.popleft()
            native.retract()
            index.count_session(-1)
            self._session_closed()

    def _session_closed(self) -> None:
        with self._lock:
            self._sessions -= 1

    def _commit(self, output: NewOutput) -> Future[list[OutputId]]:
        with self._lock:
            self._require_open()
            return self._store.append([output])

    def _add_outputs(self, record: NamespaceRecord, outputs: Sequence[NewOutput]) -> list[OutputId]:
        for output in outputs:  # all of them before any is touched
            check_output(output)
            if len(output.token_ids) > self._limits.max_output_tokens:
                raise LimitExceededError(
                    "an output is too long",
                    expected=f"at most {self._limits.max_output_tokens} tokens (Limits.max_output_tokens)",
                    got=len(output.token_ids),
                )
            if output.namespace != record.path:
                raise UnknownNamespaceError(
                    "an output belongs to another namespace", expected=record.path, got=output.namespace
                )
        with self._lock:
            self._require_open()
            index = self._index_of(record.path)
        # Indexed before they are logged: whoever finds an output in the log, an expiry say, can rely
        # on its being in the index.
        insertion = Insertion(index, outputs)
        try:
            insertion.do()
            with self._lock:
                self._require_open()
                future = self._store.append(outputs)
        except BaseException:
            insertion.undo()
            raise
        # Whether it is kept is the store's word alone: an interrupt of the wait undoes nothing.
        future.add_done_callback(lambda done: insertion.undo() if done.exception() else None)
        try:
            return future.result()
        finally:
            if future.done() and future.exception() is not None:
                insertion.undo()  # now, not when the writer comes to the callback

    def _forget(self, record: NamespaceRecord, output_id: OutputId) -> None:
        with self._lock:
            self._require_open()
            stored = self._store.forget(record.path, output_id)
            self._index_of(record.path).remove(stored.output)
