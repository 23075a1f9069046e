"""The cache: namespaces, sessions and the store behind them."""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from types import TracebackType

from suffixsvc import store as stores
from suffixsvc.background import TaskStats
from suffixsvc.config import MAX_READS, Limits, validate_default_reads, validate_namespace
from suffixsvc.core import new_learner
from suffixsvc.engine.catalog import Catalog
from suffixsvc.engine.checker import check_hot, check_segments
from suffixsvc.engine.indexes import Indexes
from suffixsvc.engine.lifetime import Lifetime
from suffixsvc.engine.maintenance import Maintenance
from suffixsvc.engine.namespace import Namespace
from suffixsvc.engine.outputs import Outputs
from suffixsvc.engine.prices import predicted_bytes
from suffixsvc.engine.sealing import Hook, Sealer
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidNamespaceError,
    LimitExceededError,
    SuffixError,
    UnknownNamespaceError,
    unknown_namespace,
)
from suffixsvc.index import Abandoned, NamespaceIndex, NamespaceStats, Session
from suffixsvc.interrupts import uninterrupted
from suffixsvc.policies import Policies
from suffixsvc.types import IncompleteOutput, Labels, NamespaceRecord, NewOutput, OutputId, Store, TokenArray

__all__ = ["CacheStats", "SuffixCache"]


@dataclass(frozen=True, slots=True)
class CacheStats(NamespaceStats):
    """A :class:`NamespaceStats` summed over all namespaces, and what the store holds. ``limit_bytes`` is that
    of the whole cache, Limits.max_cache_bytes; ``sessions`` and ``session_bytes`` count those of deleted
    namespaces as well."""

    namespaces: int
    store_bytes: int
    last_lsn: int
    #: left of the time in which outputs stay that are due only because of the time since the last process
    expiry_grace_seconds: float
    store_reopened: int  #: times that the store was opened again after an I/O error
    store_defects: int  #: exceptions in the store's thread that nothing foresaw; each is in the log


def _open_store(path: str | Path | None, limits: Limits, hook: Hook | None) -> Store:
    if path is None:
        return stores.MemoryStore(limit_bytes=limits.max_store_bytes)
    if not isinstance(path, (str, Path)) or not str(path) or "\0" in str(path):
        raise InvalidConfigError(
            "path must be the path of a data folder, or None for memory only", got=repr(path)[:80]
        )
    return stores.LmdbStore(
        path,
        limit_bytes=limits.max_store_bytes,
        grace_seconds=limits.expiry_grace_seconds,
        crash_hook=hook,
    )


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
        self._limits = Limits() if limits is None else limits
        self._lifetime = Lifetime()
        self._closing = threading.Lock()
        self._sessions = 0
        self._counting = threading.Lock()  # of sessions
        self._abandoned: Abandoned = deque()
        self._default_reads: tuple[str, ...] = ()
        self._indexes = Indexes()
        self._store = _open_store(path, self._limits, crash_hook)
        try:
            self._outputs = Outputs(
                self._store,
                self._indexes,
                self._lifetime,
                self._limits,
                Policies() if policies is None else policies,
                crash_hook,
            )
            self._room = self._outputs.room
            self._catalog = Catalog(self._store, self._room, self._indexes, self._limits, starting_weights)
            self._maintenance: Maintenance | None = None
            if self._store.segment_folder is not None:  # in memory nothing is left or sealed
                sealer = Sealer(self._store, self._limits.seal_tokens, crash_hook)
                self._catalog.recover(sealer, progress)
                self._maintenance = Maintenance(
                    sealer,
                    self._indexes,
                    self._limits.seal_tokens,
                    self._outputs.settle,
                    start=background,
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
        with self._lifetime.while_open():
            return Namespace(self, self._catalog.bind(path, tokenizer))

    def has_namespace(self, path: str) -> bool:
        """Whether there is a namespace at ``path``; it is not created."""
        return path in self._catalog

    def namespaces(self) -> list[NamespaceRecord]:
        """All namespaces, ordered by path."""
        with self._lifetime.while_open():
            return self._catalog.records()

    def delete_namespace(self, path: str, *, force: bool = False) -> int:
        """Delete a namespace with its outputs, segments, notes and learned tables; returns how many outputs.

        Another one of the same path may be created afterwards, with another tokenizer. Handles and sessions
        of the one that was deleted write nothing any more, and no session is opened through such a handle.

        Args:
            force: also where sessions are live: what they wrote is discarded, they can be stepped and closed.

        Raises:
            UnknownNamespaceError: it is not there. NamespaceInUseError: it has live sessions.
            InvalidNamespaceError: every session reads it by default.
            StoreError: some of it may be left, which nothing can read; delete it again, or open the folder
            again.
        """
        self._require_writable(validate_namespace(path))
        with self._quiet() as sealer, self._lifetime.while_open():
            self._reap_abandoned()
            index = self._catalog.begin_delete(path, force=force)
            outputs = 0
            if index.stored:
                try:
                    outputs = self._store.delete_namespace(path, self._outputs.settle)
                except UnknownNamespaceError:
                    pass  # an earlier call had deleted it, and was interrupted after that
                finally:
                    self._outputs.settle()
                if sealer is not None:
                    sealer.remove_all(index)
            self._room.drop(index)
            self._catalog.end_delete(index)
            return outputs

    def _add_outputs(self, index: NamespaceIndex, outputs: Sequence[NewOutput]) -> list[OutputId]:
        """See ``Namespace.add_outputs``."""
        self._require_writable(index.path)
        if self._maintenance is not None:
            self._maintenance.relieve(index)
        return self._outputs.add(index, outputs)

    def _require_writable(self, path: str) -> None:
        """What everybody drafts from, nobody writes to."""
        if path in self._default_reads:
            raise InvalidNamespaceError(
                f"the namespace {path!r} is only read: every session drafts from it",
                remedy="Write to a namespace of your own.",
            )

    # ------------------------------------------------------------------------------------ maintenance

    def expire(self, now: float | None = None) -> int:
        """Forget the outputs whose time to live has passed, their own or their namespace's; returns how many.

        The service does it twice a minute; whoever embeds the engine calls it when it suits.

        Args:
            now: seconds since the epoch, to act as if it were then; None: the store's own time, which a step
                of the wall clock does not move (:mod:`suffixsvc.clock`).
        """
        return self._outputs.expire(now)

    def evict(self, now: float | None = None) -> int:
        """Bring every namespace back to its limit; returns how many outputs went.

        Writes do that for their own namespace. This is for what they leave: a limit that is new, closes that
        waited for nothing. The service does it twice a minute.
        """
        with self._lifetime.while_open():
            indexes = self._indexes.stored()
        evicted = self._room.evict(indexes)
        self._room.save(indexes, self._store.clock.now() if now is None else now)
        return evicted

    def seal(self, namespace: str | None = None) -> int:
        """Seal what is in the log and not sealed yet, of one namespace or of all; returns how many outputs.

        What a background thread does with the oldest outputs when there are many. Nothing in a cache without
        a folder.

        Raises:
            StoreFullError, StoreError: what was sealed before stays.
            SegmentCancelledError: the cache was closed meanwhile.
        """
        return sum(self._seal(index) for index in self._chosen(namespace))

    def _seal(self, index: NamespaceIndex) -> int:
        outputs = 0
        while more := self._with_sealer(Sealer.seal, index):
            outputs += more
        return outputs

    def _with_sealer(self, work: Callable[[Sealer, NamespaceIndex], int], index: NamespaceIndex) -> int:
        """What a folder's sealer does, or 0. An interrupt waits: half a move would stay half till the end."""
        with self._quiet() as sealer:
            return 0 if sealer is None else uninterrupted(lambda: work(sealer, index))

    def read_by_default(self, paths: Sequence[str]) -> None:
        """Let every session that is opened from now on draft from these namespaces as well, where its own has
        a tokenizer and it is theirs: corpora that everybody may use, at most 7 of a tokenizer. What a session
        names itself comes first; beyond the most that it can read (7) none are added. Nobody writes to them
        from now on: no session is opened there, no output added.

        Raises:
            UnknownNamespaceError: one does not exist. InvalidConfigError: more than a session can read.
        """
        tokenizer_of = {record.path: record.tokenizer for record in self.namespaces()}
        chosen = tuple(dict.fromkeys(paths))
        for path in chosen:
            if path not in tokenizer_of:
                raise unknown_namespace(path)
        validate_default_reads(tokenizer_of[path] for path in chosen)
        self._default_reads = chosen

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
            self._seal(index)
            segments += self._with_sealer(Sealer.merge_all, index)
        if progress is not None:
            progress(len(chosen), len(chosen))
        return segments

    def _chosen(self, namespace: str | None) -> list[NamespaceIndex]:
        with self._lifetime.while_open():
            return self._catalog.chosen(namespace)

    @contextmanager
    def _quiet(self) -> Iterator[Sealer | None]:
        """While no output changes its place. Not with the cache's lock held."""
        if self._maintenance is None:
            yield None
            return
        with self._maintenance.work() as sealer:
            self._lifetime.require_open()
            yield sealer

    def stats(self) -> CacheStats:
        """Sums over all namespaces, and the bytes and last log position of the store.

        Raises:
            SessionClosedError: the cache is closed.
        """
        with self._lifetime.while_open():
            self._reap_abandoned()
            store = self._store.stats()
            sums = dict.fromkeys(NamespaceStats.__dataclass_fields__, 0)
            for index in self._indexes.values():
                for name, value in asdict(index.stats()).items():
                    sums[name] += value
            sums["limit_bytes"] = self._room.whole
            # Sessions of deleted namespaces go on.
            sums["sessions"] = sum(index.live_sessions for index in self._indexes.in_use())
            sums["session_bytes"] = self._room.live_bytes()
            return CacheStats(
                namespaces=len(self._catalog),
                store_bytes=store.bytes_used,
                last_lsn=store.last_lsn,
                expiry_grace_seconds=store.expiry_grace_seconds,
                store_reopened=store.reopened,
                store_defects=store.defects,
                **sums,
            )

    def background_tasks(self) -> dict[str, TaskStats]:
        """The threads that work in the background, by name, and what came of them."""
        return {} if self._maintenance is None else {"maintenance": self._maintenance.stats()}

    def incomplete_outputs(self, session_id: str) -> list[IncompleteOutput]:
        """Outputs that expired or drained sessions of this id left, oldest first, also before a restart."""
        with self._lifetime.while_open():
            return self._store.incomplete(session_id)

    def durability(self) -> SuffixError | None:
        """Why nothing can be kept at this moment (no room, an I/O error, closed); None: outputs are kept.
        Drafting goes on either way, and the store recovers by itself where it can."""
        return self._store.failure()

    def check(self) -> None:
        """Walk the store, every index and every segment file, and hold them against each other, both ways;
        IndexCorruptError or StoreCorruptError names what is broken. What an I/O error kept from being read
        again from the log is read first.

        Others may use the cache meanwhile; steps and writes wait for a turn of the walk at most. In a
        namespace that is written to all the time, what is hot is held against the log one way only: that
        nothing of the log is missing.
        """
        with self._quiet() as sealer, self._lifetime.while_open():
            self._outputs.settle()
            self._store.check()
            folder = self._store.segment_folder
            for index in self._indexes.stored():
                if sealer is not None:
                    sealer.finish_load(index)
                index.check()
                check_hot(index, self._store)
                if folder is not None:
                    check_segments(index, self._store, folder)

    def close(self) -> None:
        """Keep the learned tables, release the data folder. Open sessions are not committed. Idempotent."""
        with self._closing:
            if not self._lifetime.end():
                return
            if self._maintenance is not None:
                self._stop_maintenance()
            try:
                self._reap_abandoned()
                self._catalog.keep_learned()
                self._room.save(self._indexes.stored())
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

    def _open_session(
        self,
        index: NamespaceIndex,
        prompt: TokenArray,
        output: TokenArray,
        labels: Labels,
        reads: Sequence[str],
    ) -> Session:
        self._require_writable(index.path)
        with self._lifetime.while_open():
            self._reap_abandoned()
            if len(reads) > MAX_READS:
                raise LimitExceededError(
                    "a session reads too many namespaces",
                    expected=f"at most {MAX_READS} beside its own",
                    got=len(reads),
                )
            others = [self._catalog.readable(path, index) for path in self._with_defaults(reads, index)]
            self._take_place()
            release = None
            try:
                release = self._room.admit_text(index, len(prompt), len(output))
                return Session(
                    index,
                    others,
                    prompt,
                    output,
                    labels=labels,
                    limits=self._limits,
                    commit=partial(self._outputs.commit, index),
                    on_close=partial(self._session_closed, index),  # and so a session keeps the cache alive
                    abandoned=self._abandoned,
                    admit=partial(self._room.admit_text, index),
                )
            except BaseException:
                self._session_closed(index)
                raise
            finally:
                if release is not None:
                    release()

    def _take_place(self) -> None:
        """One more live session. LimitExceededError: there are too many."""
        with self._counting:
            if self._sessions >= self._limits.max_sessions:
                raise LimitExceededError(
                    "too many live sessions",
                    expected=f"at most {self._limits.max_sessions} (Limits.max_sessions)",
                    remedy="Close sessions that are done, or raise the limit.",
                )
            self._sessions += 1

    def _with_defaults(self, reads: Sequence[str], index: NamespaceIndex) -> list[str]:
        """The namespaces a session drafts from beside its own: those it names, then the default ones."""
        usable = self._catalog.of_tokenizer(self._default_reads, index.tokenizer)
        others = [path for path in usable if path != index.path]
        return list(dict.fromkeys([*reads, *others]))[:MAX_READS]

    def _reap_abandoned(self) -> None:
        """End the sessions that were dropped without close(): what they wrote is taken back."""
        while self._abandoned:
            uninterrupted(self._reap_one)

    def _reap_one(self) -> None:
        try:
            text, index = self._abandoned.popleft()
        except IndexError:  # another thread took it
            return
        text.release()
        index.leave(text)
        self._session_closed(index)

    def _session_closed(self, index: NamespaceIndex, kept: NewOutput | None = None) -> None:
        """A session is over; ``kept`` is what is in the log of it."""
        with self._counting:
            self._sessions -= 1
        if kept is None:
            self._room.refresh(index)  # what it took back is not there any more
        else:
            self._outputs.make_room(index, predicted_bytes(kept))
