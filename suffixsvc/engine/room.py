"""Making room: limits of namespaces and of the whole cache, kept by forgetting what is used least.

    before a write   admit: refuse what cannot fit, whoever has to go for it
    before a session is opened, or grows by much
                     admit_text: the namespace forgets its own outputs for it; refuse what does not fit then
    after it         make_room: the namespace that wrote forgets its own, the longest unused first
    now and then     evict: every namespace back to its own limit, wherever that was passed

A namespace is only ever evicted by its own writes. When the cache is full, a write evicts an equal size from
its own namespace.

The limit of the whole cache is one of admission. Opens, context, writes, and steps of more tokens than a
draft and one are admitted; decode steps always go on, so that live sessions can grow past the limit by what
models write. Opens and writes are refused then. What is counted, and why, is in docs/limits.md.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog

from suffixsvc.clock import Due
from suffixsvc.engine.indexes import Indexes
from suffixsvc.engine.limit_errors import (
    cache_full,
    namespace_full,
    no_room_for_session,
    outputs_too_large,
)
from suffixsvc.engine.prices import SESSIONS_SHARE, predicted_bytes, predicted_session_bytes
from suffixsvc.errors import InvalidConfigError, StoreFullError, UnknownNamespaceError
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.eviction import Cost, Ledger
from suffixsvc.index.namespace import LOG_BYTES_PER_OUTPUT, LOG_BYTES_PER_TOKEN
from suffixsvc.index.upkeep import Quota
from suffixsvc.policies import UNLIMITED, Policies, Policy
from suffixsvc.types import NewOutput, OutputId, Store

__all__ = ["Room"]

log = structlog.get_logger(__name__)

#: a namespace past its limit goes down to this share of it, so that not every write has to evict
LOWER_MARK: Final = 0.95
#: beside outputs that stay, so much of what the others take on average surely comes back when they go
SURE_SHARE: Final = 0.9
#: of one transaction; beyond what is needed to keep the limit, one write does no more than one
BATCH_OUTPUTS: Final = 256
BATCH_TOKENS: Final = 1 << 20
#: name of what is kept across a restart of who was drafted from
_DRAFTED_STATE: Final = "drafted"
#: a restart is shorter
_GRACE_TO_REPORT_SECONDS: Final = 60.0
#: no more often than this, and at the end
_SAVE_EVERY_SECONDS: Final = 300.0


class Room:
    """The limits of one cache. Thread-safe.

    Args:
        policies: what holds for each namespace.
        max_cache_bytes: for all of them together.
        store: the log.
        indexes: of the cache; others add to it.
        forget: takes outputs of a namespace out of log and index, and says how many were there; weak, as it
            is a method of what owns this.
        hook: called at named points; tests end the process there.
    """

    def __init__(
        self,
        policies: Policies,
        max_cache_bytes: int,
        store: Store,
        indexes: Indexes,
        forget: weakref.WeakMethod[Callable[[str, Sequence[OutputId]], int]],
        hook: Callable[[str], None] | None = None,
    ) -> None:
        if not isinstance(policies, Policies):
            raise InvalidConfigError(
                "policies must be a Policies instance or None", got=type(policies).__name__
            )
        self._policies = policies
        self._whole = max_cache_bytes
        self._store = store
        self._indexes = indexes
        self._weak_forget = forget
        self._hook = hook or (lambda point: None)
        self._lock = threading.Lock()
        #: held from reading what there is until what comes is reserved, so that admissions see each other;
        #: apart from the lock and taken before it, as the sum over all live sessions takes longer
        self._admitting = threading.Lock()
        self._opened_at = store.stats().last_lsn
        grace_seconds = store.clock.grace_seconds
        if policies.has_ttl and grace_seconds >= _GRACE_TO_REPORT_SECONDS:
            log.info(
                "times to live of policies count the time in which the cache was closed after a grace period",
                closed_seconds=round(store.clock.moved_seconds),
                grace_seconds=round(grace_seconds),
            )
        # sums over all namespaces of what each one's quota counts
        self._total = 0
        self._coming = 0
        self._coming_live = 0  # of sessions that are being opened, or grow
        self._saved_at = 0.0

    @property
    def whole(self) -> int:
        """Limit of the whole cache, 0 = none."""
        return 0 if self._whole >= 1 << 62 else self._whole

    def policy(self, path: str) -> Policy:
        """What holds for a new namespace."""
        return self._policies.of(path)

    def new_ledger(self, policy: Policy) -> Ledger | None:
        """A namespace's ledger, where anything of it is ever evicted or has the policy's time to live."""
        limited = policy.max_bytes not in (None, UNLIMITED) or bool(self.whole) or bool(policy.ttl_seconds)
        return Ledger() if limited and not policy.pinned else None

    # ------------------------------------------------------------------------------------ before a write

    def live_bytes(self) -> int:
        """Memory of all live sessions, of deleted namespaces too."""
        return sum(index.session_bytes for index in self._indexes.in_use())

    def _of_sessions(self, coming: int = 0) -> int:
        """What of the whole cache's limit is not for outputs."""
        with self._lock:
            growing = self._coming_live  # before the sum: what is released from now on is in the sum
        return max(self.live_bytes() + growing + coming, self._whole // SESSIONS_SHARE)

    def admit_text(self, index: NamespaceIndex, context: int, output: int) -> Callable[[], None]:
        """Let a session be opened with so many tokens, or grow by so many at once; where the whole cache is
        full, its namespace forgets outputs for it.

        Args:
            context: tokens of prompt and context.
            output: tokens that the model wrote.

        Returns:
            To be called when the session has them, or will not have them. Until then they are counted at
            their predicted size.

        Raises:
            LimitExceededError: there is no room for them. Nothing was evicted in vain.
        """
        if not self.whole:
            return _nothing
        coming = predicted_session_bytes(context, output)
        self.refresh(index)
        staying = self._staying_bytes(index)
        with self._admitting:
            sessions = self._of_sessions(coming)
            beyond_share = sessions > self._whole // SESSIONS_SHARE
            with self._lock:
                own = max(0, index.quota.held - staying)
                excess = self._total + self._coming + sessions - self._whole
                if beyond_share and excess > own:
                    tokens = context + output
                    raise no_room_for_session(index.path, tokens, coming, self._whole, self._total, own)
                self._coming_live += coming
        release = _once(lambda: self._release_live(coming))
        if beyond_share and excess > 0:
            try:
                self.make_room(index, excess)
            except BaseException:
                release()
                raise
        return release

    def _release_live(self, size: int) -> None:
        with self._lock:
            self._coming_live -= size

    def admit(
        self, index: NamespaceIndex, outputs: Iterable[NewOutput], *, live: bool = False
    ) -> Callable[[], None]:
        """Let outputs be written, if they fit once all has gone that may go.

        What is on its way into the log can go once it is there, unless it is pinned: a slow disk refuses
        nothing. Until it is there, a limit can be passed by that much.

        Args:
            live: they are counted already, as texts of live sessions.

        Returns:
            To be called when they were written, or not.

        Raises:
            LimitExceededError: there is no room for them. Nothing was evicted.
        """
        quota = index.quota
        limit = quota.limit
        if limit >= UNLIMITED and not self.whole:
            return _nothing
        outputs = list(outputs)
        coming = sum(map(predicted_bytes, outputs))
        most = min(limit, self.whole - self.whole // SESSIONS_SHARE or UNLIMITED)
        if coming > most:
            raise outputs_too_large(index.path, len(outputs), coming, most)
        stays = sum(predicted_bytes(each) for each in outputs if index.ledger is None or each.corpus)
        self._note_drafts(index)  # what was drafted from before this write is older than it
        self.refresh(index)
        staying = self._staying_bytes(index)
        with self._admitting:
            sessions = self._of_sessions(-coming if live else 0) if self.whole else 0
            with self._lock:
                to_stay = staying + quota.coming_to_stay
                if to_stay + coming > limit:
                    raise namespace_full(index.path, coming, limit, to_stay)
                if self.whole:
                    own = quota.held + quota.coming - to_stay
                    # Beyond the limit already, as after it was lowered, a namespace that gives back what it
                    # writes may go on.
                    free = max(0, self._whole - self._total - self._coming - sessions)
                    if coming - free > own:
                        raise cache_full(index.path, coming, self._whole, self._total, own)
                self._reserve(quota, coming, stays)
        return _once(lambda: self._release(quota, coming, stays))

    def _reserve(self, quota: Quota, size: int, stays: int) -> None:
        self._coming += size
        quota.coming += size
        quota.coming_to_stay += stays

    def _release(self, quota: Quota, size: int, stays: int) -> None:
        with self._lock:
            self._reserve(quota, -size, -stays)

    def _staying_bytes(self, index: NamespaceIndex) -> int:
        """What of a namespace is never evicted."""
        ledger = index.ledger
        if ledger is None:
            return index.held().bytes
        outputs, tokens = ledger.staying
        if not outputs:
            return 0
        held = index.held().bytes
        return held - int(SURE_SHARE * max(0.0, held - _cost(index).of(outputs, tokens)))

    # ------------------------------------------------------------------------------------- after a write

    def make_room(self, index: NamespaceIndex, written: int = 0) -> int:
        """Forget what this namespace has too much; how many outputs.

        Args:
            written: bytes it has just written: where the whole cache is full, it gives back as much, and a
                little more. Outputs of a pinned corpus stay, so do those of pinned namespaces.

        Raises:
            StoreError: the store could not forget.
        """
        self.refresh(index)
        ledger = index.ledger
        if ledger is None or not self._too_much(index, ledger, written)[0]:
            return 0
        with ledger.turn:
            self._note_drafts(index)
            evicted = batches = 0
            budget = max(2 * written, index.held().bytes // 50) if written else 0
            while True:
                need, must = self._too_much(index, ledger, budget)
                if need <= 0 or (batches and not must):
                    break
                oldest = ledger.oldest(need, _cost(index), BATCH_OUTPUTS, BATCH_TOKENS)
                if not oldest:
                    break
                before = index.held().bytes
                evicted += self._evict(index, ledger, oldest)
                self.refresh(index)
                budget -= max(0, before - index.held().bytes) if written else 0
                batches += 1
            return evicted

    def _too_much(self, index: NamespaceIndex, ledger: Ledger, budget: int) -> tuple[int, bool]:
        """(bytes this namespace should give back now, whether a limit is passed that it can keep)."""
        sessions = self._of_sessions() if self.whole else 0
        with self._lock:
            held, excess = index.quota.held, self._total + sessions - self._whole
        limit = index.quota.limit
        over = held > limit
        ledger.shrinking = over or (ledger.shrinking and held > limit * LOWER_MARK)
        need = held - int(limit * LOWER_MARK) if ledger.shrinking else 0
        if self.whole and excess > 0 and budget > 0:
            need, over = max(need, min(excess + held // 50, budget)), True
        return need, over

    def _forget(self, path: str, outputs: Sequence[OutputId]) -> int:
        forget = self._weak_forget()
        return 0 if forget is None else forget(path, outputs)

    def _evict(self, index: NamespaceIndex, ledger: Ledger, outputs: Sequence[OutputId]) -> int:
        self._hook("evict-chosen " + " ".join(map(str, outputs)))
        gone = self._forget(index.path, outputs)
        ledger.dropped(outputs)  # all: somebody else may have forgotten some of them
        self._hook("evict-done " + " ".join(map(str, outputs)))
        index.count_evicted(gone)
        return gone

    # -------------------------------------------------------------------------------------- now and then

    def evict(self, indexes: Sequence[NamespaceIndex]) -> int:
        """Bring every namespace back to its own limit; how many outputs went."""
        for index in indexes:
            self.refresh(index)
            with _unless_deleted(index):
                self._note_drafts(index)  # what the core cannot hold of it, it drops
        evicted = 0
        for index in indexes:
            with _unless_deleted(index):
                evicted += self.make_room(index)
        return evicted

    def expire(self, indexes: Sequence[NamespaceIndex], due: Due) -> int:
        """Forget outputs whose policy's time to live has passed; how many."""
        gone = 0
        for index in indexes:
            ttl, ledger = index.quota.policy.ttl_seconds, index.ledger
            if not ttl or ledger is None:
                continue
            with _unless_deleted(index):
                self._complete(index.path, ledger)
                while (batch := self._expire_batch(index.path, ledger, due, int(ttl * 1e6))) is not None:
                    gone += batch
            self.refresh(index)
        return gone

    def _expire_batch(self, path: str, ledger: Ledger, due: Due, ttl_us: int) -> int | None:
        """Forget a batch of outputs that are older than that; how many were there, None if there is no
        batch."""
        with ledger.turn:  # of every batch anew: who writes may have to evict
            passed = self._passed(ledger, due, ttl_us)
            if not passed:
                return None
            gone = self._forget(path, passed)
            ledger.dropped(passed)
            return gone

    def _passed(self, ledger: Ledger, due: Due, ttl_us: int) -> list[OutputId]:
        """A batch of outputs that are older than that."""
        passed = ledger.due(due.earlier_us - ttl_us, BATCH_OUTPUTS)
        if not passed and due.earlier_us < due.now_us:
            passed = ledger.due(due.now_us - ttl_us, BATCH_OUTPUTS, after=self._opened_at)
        return passed

    def drop(self, index: NamespaceIndex) -> None:
        """A namespace was deleted: it counts for nothing any more."""
        with self._lock:
            self._total -= index.quota.held
            index.quota.held = 0
            index.quota.dropped = True

    def refresh(self, index: NamespaceIndex) -> None:
        """Look again at what a namespace holds."""
        quota = index.quota
        if quota.limit >= UNLIMITED and not self.whole:
            return
        held = index.held().bytes
        with self._lock:
            if not quota.dropped:
                self._total += held - quota.held
                quota.held = held

    # ------------------------------------------------------------------------------------------ a restart

    def _complete(self, path: str, ledger: Ledger) -> None:
        """Tell the ledger of the outputs that were there when the cache was opened: only when somebody asks,
        so that opening does not read the whole log."""
        if ledger.complete:
            return
        with ledger.turn:
            if ledger.complete:
                return
            for row in self._store.outline(path):
                if row.output_id > self._opened_at:
                    break  # whoever writes it tells the ledger
                ledger.known(
                    row.output_id,
                    int(row.written_at * 1e6),
                    row.tokens,
                    stays=row.corpus,
                    own_ttl=row.ttl_seconds > 0,
                )
            saved = self._store.get_state(path, _DRAFTED_STATE)
            if saved is not None:
                ledger.load(saved)  # of another version: learned anew
            ledger.complete = True

    def save(self, indexes: Iterable[NamespaceIndex], now: float | None = None) -> None:
        """Keep who was drafted from for the next process; with ``now`` (seconds) only every few minutes."""
        if now is not None and abs(now - self._saved_at) < _SAVE_EVERY_SECONDS:
            return
        self._saved_at = self._saved_at if now is None else now
        for index in indexes:
            with _unless_deleted(index):
                self._save(index)

    def _save(self, index: NamespaceIndex) -> None:
        self._note_drafts(index)
        if index.ledger is None or not index.ledger.unsaved:
            return
        try:
            self._store.put_state(index.path, _DRAFTED_STATE, index.ledger.save())
        except StoreFullError as error:
            log.warning("who was drafted from is not kept", namespace=index.path, error=str(error))

    def _note_drafts(self, index: NamespaceIndex) -> None:
        if index.ledger is not None:
            self._complete(index.path, index.ledger)
            index.note_drafts()


@contextmanager
def _unless_deleted(index: NamespaceIndex) -> Iterator[None]:
    """Nothing is wrong where the store does not know a namespace that is deleted meanwhile."""
    try:
        yield
    except UnknownNamespaceError:
        if not index.deleted:
            raise


def _cost(index: NamespaceIndex) -> Cost:
    held = index.held()
    rest = held.bytes - held.outputs * LOG_BYTES_PER_OUTPUT
    return Cost(LOG_BYTES_PER_OUTPUT, max(LOG_BYTES_PER_TOKEN, rest / max(1, held.tokens)))


def _nothing() -> None:
    return


def _once(release: Callable[[], None]) -> Callable[[], None]:
    left = [release]

    def run() -> None:
        if left:
            left.pop()()

    return run
