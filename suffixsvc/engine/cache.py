"""The cache: namespaces, sessions and the store behind them."""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from types import TracebackType

import numpy as np
import numpy.typing as npt
import structlog

from suffixsvc import store as stores
from suffixsvc.config import Limits, validate_namespace
from suffixsvc.core import new_learner
from suffixsvc.engine.insertion import Insertion
from suffixsvc.engine.maintenance import Maintenance
from suffixsvc.engine.namespace import Namespace
from suffixsvc.engine.room import Room, predicted_bytes
from suffixsvc.engine.sealing import Hook, Sealer
from suffixsvc.engine.segment_checker import check_segments
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
from suffixsvc.index.ngrams import add_ngrams
from suffixsvc.policies import UNLIMITED, Policies
from suffixsvc.store.validation import check_output
from suffixsvc.types import Labels, NamespaceRecord, NewOutput, OutputId, Store, StoredOutput, TokenArray

__all__ = ["CacheStats", "SuffixCache"]

log = structlog.get_logger(__name__)

#: namespaces a session can draft from beside its own (the core holds a fixed number of cursors)
MAX_READS = 7
#: name of the learned tables in the store
_LEARNER_STATE = "learner"


@dataclass(frozen=True, slots=True)
class CacheStats(NamespaceStats):
    """A :class:`NamespaceStats` summed over all namespaces, and what the store holds. ``limit_bytes`` is that
    of the whole cache, Limits.max_cache_bytes."""

    namespaces: int
    store_bytes: int
    last_lsn: int


def _open_store(path: str | Path | None, max_bytes: int, hook: Hook | None) -> Store:
    if path is None:
        return stores.MemoryStore(limit_bytes=max_bytes)
    if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
        raise InvalidConfigError(
            "path is no data folder", expected="a path, or None for memory only", got=repr(path)[:80]
        )
    return stores.LmdbStore(path, limit_bytes=max_bytes, crash_hook=hook)


class SuffixCache:
    """Remembers what models wrote and drafts what comes next, in this process.

    Args:
        path: a directory to keep the outputs in (created if missing), or None: memory only.
        limits: what is refused.
        progress: called with (outputs so far, outputs in all) while the index is rebuilt on open.
        starting_weights: what new namespaces start from instead of the shipped weights, as
            :meth:`Namespace.learned_weights` gave it; b"" = nothing.
        policies: how much each namespace may hold and for how long; None: no limits.
        background: seal and merge in a thread of this cache, so that a restart maps files instead of indexing
            the log again. False: only :meth:`seal` and :meth:`compact` do.
        crash_hook: called at named points; tests end the process there.

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
        policies: Policies | None = None,
        background: bool = True,
        crash_hook: Hook | None = None,
    ) -> None:
        new_learner(starting_weights)  # refused here rather than at the first namespace
        self._starting_weights = starting_weights
        self._limits = Limits() if limits is None else limits
        self._lock = threading.RLock()
        #: held by whoever forgets, over the log's and the index's part of it
        self._forgetting = threading.Lock()
        self._closing = threading.Lock()
        self._closed = False
        self._sessions = 0
        self._abandoned: Abandoned = deque()
        self._indexes: dict[str, NamespaceIndex] = {}
        self._records: dict[str, NamespaceRecord] = {}
        self._store = _open_store(path, self._limits.max_store_bytes, crash_hook)
        try:
            self._room = Room(
                Policies() if policies is None else policies,
                self._limits.max_cache_bytes,
                self._store,
                weakref.WeakMethod(self._forget_many),
                crash_hook,
            )
            sealer = None
            if self._store.segment_folder is not None:
                sealer = Sealer(self._store, self._forgetting, self._limits.seal_tokens, crash_hook)
            self._recover(sealer, progress)
            self._maintenance: Maintenance | None = None
            if sealer is not None:
                self._maintenance = Maintenance(
                    sealer, self._indexes, self._limits.seal_tokens, start=background
                )
                # for a cache that nobody closes; runs before the store's own
                self._stop_maintenance = weakref.finalize(self, self._maintenance.stop)
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
        """Forget the outputs whose time to live has passed, their own or their namespace's; returns how many.

        The service does it twice a minute; whoever embeds the engine calls it when it suits.
        """
        at = time.time() if now is None else now
        with self._lock, self._forgetting:
            self._require_open()
            gone = self._store.expire(at)
            self._unindex(gone)
            indexes = list(self._indexes.values())
        return len(gone) + self._room.expire(indexes, at)

    def evict(self, now: float | None = None) -> int:
        """Bring every namespace back to its limit; returns how many outputs went.

        Writes do that for their own namespace. This is for what they leave: a limit that is new, closes that
        waited for nothing. The service does it twice a minute.
        """
        with self._lock:
            self._require_open()
            indexes = list(self._indexes.values())
        evicted = self._room.evict(indexes)
        self._room.save(indexes, time.time() if now is None else now)
        return evicted

    def seal(self, namespace: str | None = None) -> int:
        """Seal what is in the log and not sealed yet, of one namespace or of all; returns how many outputs.

        What a background thread does with the oldest outputs when there are many. Nothing in a cache without
        a folder.

        Raises:
            StoreFullError, StoreError: what was sealed before stays.
            SegmentCancelledError: the cache was closed meanwhile.
        """
        outputs = 0
        for index in self._chosen(namespace):
            while True:
                with self._quiet() as sealer:
                    more = 0 if sealer is None else sealer.seal(index)
                if not more:
                    break
                outputs += more
        return outputs

    def compact(
        self, namespace: str | None = None, *, progress: Callable[[int, int], None] | None = None
    ) -> int:
        """Seal everything and merge it into as few segments as possible, without what was forgotten.

        For caches built offline, and to have forgotten bytes off the segment files at once.

        Args:
            namespace: only this one.
            progress: called with (namespaces done, namespaces in all).

        Returns:
            Segments that there are now.

        Raises:
            As :meth:`seal`.
        """
        chosen = self._chosen(namespace)
        segments = 0
        for done, index in enumerate(chosen):
            if progress is not None:
                progress(done, len(chosen))
            self.seal(index.path)
            with self._quiet() as sealer:
                segments += 0 if sealer is None else sealer.merge_all(index)
        if progress is not None:
            progress(len(chosen), len(chosen))
        return segments

    def _chosen(self, namespace: str | None) -> list[NamespaceIndex]:
        with self._lock:
            self._require_open()
            if namespace is None:
                return [self._indexes[path] for path in sorted(self._indexes)]
            if validate_namespace(namespace) not in self._records:
                raise UnknownNamespaceError(
                    f"no namespace {namespace!r}", remedy="Create it by writing to it first."
                )
            return [self._index_of(namespace)]

    @contextmanager
    def _quiet(self) -> Iterator[Sealer | None]:
        """While no output changes its place. Not with the cache's lock held."""
        if self._maintenance is None:
            yield None
            return
        with self._maintenance.work() as sealer:
            with self._lock:
                self._require_open()
            yield sealer

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
            sums["limit_bytes"] = self._room.whole
            return CacheStats(
                namespaces=len(self._records),
                store_bytes=store.bytes_used,
                last_lsn=store.last_lsn,
                **sums,
            )

    def check(self) -> None:
        """Walk the store, every index and every segment file, and hold them against each other;
        IndexCorruptError or StoreCorruptError names what is broken."""
        with self._quiet(), self._lock:
            self._require_open()
            self._store.check()
            folder = self._store.segment_folder
            for index in self._indexes.values():
                index.check()
                if folder is not None:
                    check_segments(index, self._store, folder)

    def close(self) -> None:
        """Keep the learned tables, release the data folder. Open sessions are not committed. Idempotent."""
        with self._closing:
            with self._lock:
                if self._closed:
                    return
                self._closed = True
            # without the lock: whoever works in the background may be about to ask for it
            if self._maintenance is not None:
                self._stop_maintenance()
            with self._lock:
                try:
                    self._reap_abandoned()
                    for path, index in self._indexes.items():
                        if index.learner.changed:
                            self._keep_learned(path, index)
                    self._room.save(self._indexes.values())
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

    def _recover(self, sealer: Sealer | None, progress: Callable[[int, int], None] | None) -> None:
        if sealer is None:
            return  # in memory nothing is left of earlier processes
        for record in self._store.namespaces():
            self._records[record.path] = record
            learned = self._store.get_state(record.path, _LEARNER_STATE)
            if learned is not None:
                # Tables of another version are left alone: they are derived, and learned anew.
                self._index_of(record.path).learner.load(learned)
        sealer.sweep(self._records)
        total = self._store.stats().outputs
        done = 0

        def note(outputs: int) -> None:
            nonlocal done
            done += outputs
            if progress is not None and outputs:
                progress(done, total)

        for path in self._records:
            sealer.open(self._index_of(path), note)
            self._room.refresh(self._index_of(path))

    def _keep_learned(self, path: str, index: NamespaceIndex) -> None:
        try:
            self._store.put_state(path, _LEARNER_STATE, index.learner.save())
        except StoreFullError as error:  # derived and learned anew: no reason to fail a close
            log.warning("what was learned could not be kept", namespace=path, error=str(error))

    def _index_of(self, path: str) -> NamespaceIndex:
        index = self._indexes.get(path)
        if index is None:
            store = self._store  # an index must not keep the cache alive
            limit = self._room.limit_of(path)
            index = self._indexes[path] = NamespaceIndex(
                path,
                self._starting_weights,
                last_lsn=lambda: store.stats().last_lsn,
                ledger=self._room.new_ledger(path),
                limit_bytes=limit if limit < UNLIMITED else 0,
            )
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
                commit=partial(self._commit, index),
                on_close=partial(self._session_closed, index),
                abandoned=self._abandoned,
            )
        except BaseException:
            self._session_closed(index)
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
            self._session_closed(index)

    def _session_closed(self, index: NamespaceIndex, kept: NewOutput | None = None) -> None:
        """A session is over; ``kept`` is what is in the log of it."""
        with self._lock:
            self._sessions -= 1
        if kept is None:
            self._room.refresh(index)  # what it took back is not there any more
        else:
            self._make_room(index, predicted_bytes(kept))

    def _commit(self, index: NamespaceIndex, output: NewOutput) -> Future[list[OutputId]]:
        release = self._room.admit(index, [output])
        try:
            with self._lock:
                self._require_open()
                future = self._store.append([output])
        except BaseException:
            release()
            raise
        future.add_done_callback(lambda done: release())
        return future

    def _make_room(self, index: NamespaceIndex, written: int) -> None:
        """After a write that was acknowledged: nothing that goes wrong here is an error of that write."""
        try:
            self._room.make_room(index, written)
        except SuffixError as error:
            log.warning("eviction failed; it is tried again", namespace=index.path, error=str(error))

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
        release = self._room.admit(index, outputs)
        try:
            ids = self._log_outputs(index, outputs)
        finally:
            release()
        self._make_room(index, sum(map(predicted_bytes, outputs)))
        return ids

    def _log_outputs(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> list[OutputId]:
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
        future.add_done_callback(partial(_note_kept, index, outputs, insertion.writers))
        try:
            return future.result()
        finally:
            if future.done() and future.exception() is not None:
                insertion.undo()  # now, not when the writer comes to the callback

    def _forget(self, record: NamespaceRecord, output_id: OutputId) -> None:
        with self._lock, self._forgetting:
            self._require_open()
            self._unindex([self._store.forget(record.path, output_id)])

    def _forget_many(self, path: str, output_ids: Sequence[OutputId]) -> int:
        """Forget those of a namespace's outputs that are there, in few transactions; returns how many."""
        with self._forgetting:
            gone = self._store.forget_many(path, output_ids)
            self._unindex(gone)
            return len(gone)

    def _unindex(self, gone: Sequence[StoredOutput]) -> None:
        """The log has let these go: so must the indexes. IndexCorruptError after all of them. The lock for
        forgetting has been held since before the log did."""
        by_namespace: dict[str, list[StoredOutput]] = {}
        for stored in gone:
            by_namespace.setdefault(stored.output.namespace, []).append(stored)
        broken: SuffixError | None = None
        for path, outputs in by_namespace.items():
            index = self._index_of(path)
            try:
                index.forget(outputs)
            except SuffixError as error:
                broken = error
            self._room.refresh(index)
        if broken is not None:
            raise broken

    def _ngrams(self, index: NamespaceIndex, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
        with index.moving:
            found = index.ngrams(n)
            ranges = [(each.record.first_lsn, each.record.last_lsn) for each in index.sealed()]
        for first, last in ranges:
            rows = self._store.scan(index.path, from_lsn=first)
            found = add_ngrams(found, n, takewhile(partial(_is_upto, last), rows))
        return found


def _is_upto(last: OutputId, stored: StoredOutput) -> bool:
    return stored.output_id <= last


def _note_kept(
    index: NamespaceIndex,
    outputs: Sequence[NewOutput],
    writers: Sequence[int],
    stored: Future[list[OutputId]],
) -> None:
    if stored.cancelled() or stored.exception() is not None:
        return
    for output, writer, output_id in zip(outputs, writers, stored.result(), strict=True):
        index.note_kept(output, writer, output_id)
