"""Hot index of one namespace: text that is not sealed, live sessions, and what drafting has learned."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from suffixsvc.core import Index, Learner, StepCounters, WriteSignal, new_learner
from suffixsvc.errors import IndexCorruptError, unknown_namespace
from suffixsvc.index.engine_state import MaintenanceState, Quota
from suffixsvc.index.lru_index import LruIndex
from suffixsvc.index.namespace_stats import StepCounts
from suffixsvc.index.output_size import size_of
from suffixsvc.index.output_use import OutputUse
from suffixsvc.index.principal_totals import LiveMemory, PrincipalTotals
from suffixsvc.index.published import Published
from suffixsvc.index.segment_map import SegmentMap
from suffixsvc.index.texts import next_writer, positions_of, texts_of
from suffixsvc.index.writer_ids import WriterIds
from suffixsvc.policies import Policy
from suffixsvc.runtime.low_priority import low_priority
from suffixsvc.selection import Selection
from suffixsvc.types import NewOutput, StoredOutput, TokenArray
from suffixsvc.values import as_int

T = TypeVar("T")

#: maximum context length in tokens; longer contexts are not distinguished
MAX_CONTEXT = 64
#: principals without live sessions whose learned tables a namespace holds, a quarter of a megabyte each
MAX_LEARNERS = 64
_REFUSAL_LOG_SECONDS = 60.0
#: positions that are indexed within a tenth of a millisecond, about what another thread takes to begin
_FEW_POSITIONS = 64


#: whether a reader may see everything that the namespace at a path holds
SeesAll = Callable[[str], bool]


def sees_everything(_path: str) -> bool:
    """A reader with a full grant on every namespace."""
    return True


def require_ngram_length(n: int) -> int:
    """Return a valid n-gram length. InvalidInputError unless it is an int in 1 .. MAX_CONTEXT."""
    return as_int("n", n, 1, MAX_CONTEXT)


class LiveText(LiveMemory, Protocol):
    """The text of a session that is not closed."""

    def live_positions(self) -> int:
        """Positions of the namespace's index that the text takes on behalf of the session, not of the log."""

    def discard(self) -> None:
        """Remove the text from the index for good, unless it belongs to an output in the log."""

    def withdraw(self, selection: Selection) -> bool:
        """Remove the text from the index for good, if the selection takes it; whether it did."""


class HotIndex:
    """The native index of a namespace with its counts and live sessions; base of NamespaceIndex.

    Thread-safe; the native index has its own locks.

    Args:
        path: path of the namespace.
        weights: initial weights of drafting, see ``suffixsvc.core.new_learner``.
        now_us: store time in microseconds.
        lru: records which outputs were drafted from; None where outputs are never evicted.
        quota: limits of the namespace; None: there are none.
        written: is told when sessions have written tokens.
        use: counts the use of outputs; None: it is not counted.
        totals: counts the live sessions of principals; None: they are not counted.

    Attributes:
        move_lock: held while outputs change their location; its holder sees each output exactly once.
        segments: the location of each output.
    """

    def __init__(
        self,
        path: str,
        weights: bytes | None = None,
        *,
        now_us: Callable[[], int] = lambda: int(time.time() * 1e6),
        lru: LruIndex | None = None,
        quota: Quota | None = None,
        written: WriteSignal | None = None,
        use: OutputUse | None = None,
        totals: PrincipalTotals | None = None,
    ) -> None:
        self.path = path
        # maintained by the engine's Catalog:
        self.tokenizer = ""  #: fingerprint; empty before one is bound
        self.stored = False  #: the log has the namespace
        self.logged_tokenizer = ""  #: fingerprint in the log
        self.writes = 0  #: writes in flight
        self.untagged_writes = 0  #: of these, writes that would create the namespace without a tokenizer
        self.lru = lru
        self.use = use
        self._totals = totals
        #: outputs of the texts in the native index
        self.writers = WriterIds()
        #: maintained by the engine's QuotaManager
        self.quota = Quota() if quota is None else quota
        #: maintained by the engine's Maintenance and Sealer
        self.maintenance = MaintenanceState()
        self.index = Index(MAX_CONTEXT)
        self._published: Published | None = None
        self._lock = threading.RLock()
        self.set_drafting(self.quota.policy.drafting is not False)
        self._weights = weights
        #: number of calls of :meth:`unlearn`
        self.unlearned = 0
        #: what drafting for the operator has learned; every other principal has tables of its own, so that
        #: what it reports changes no drafts of others
        self.learner = new_learner(weights)
        #: those of principals, the one whose session was opened last at the end
        self._learners: dict[str, Learner] = {}
        #: counters of the steps of this namespace's sessions
        self.counters = StepCounters(written)
        #: counters of its followers, which draft by themselves
        self._reported = StepCounts()
        self._now_us = now_us
        self.move_lock = threading.Lock()
        self.segments = SegmentMap(self._lock)
        #: the namespace was deleted, or its deletion has begun
        self.deleted = False
        #: counts of the hot outputs
        self._outputs = self.hot_tokens = self._positions = self._attribute_bytes = 0
        self._evicted = self._refused = 0
        self._refusal_logged_at = -math.inf
        #: writes and removals for which index and log differ
        self._in_flight = 0
        self._changes = 0
        #: texts of sessions that are not closed
        self._live: set[LiveText] = set()

    # ---------------------------------------------------------------------------------------------- texts

    def insert(self, output: NewOutput) -> int:
        """Insert the texts of an output, all or none; returns their writer number.

        The output is counted once it is logged (``NamespaceIndex.record_logged``).
        """
        return _by_size(self._insert, output)

    def _insert(self, output: NewOutput) -> int:
        writer = next_writer()
        inserted: list[tuple[TokenArray, int]] = []
        try:
            for text, context in texts_of(output):
                self.index.add(text, context, writer)
                inserted.append((text, context))
        except BaseException:
            for text, context in inserted:
                self.index.remove(text, context)
            raise
        return writer

    def remove(self, output: NewOutput) -> None:
        """Remove the texts of an output that is not sealed; IndexCorruptError if one is not in the index."""
        _by_size(self._remove, output)

    def _remove(self, output: NewOutput) -> None:
        for text, context in texts_of(output):
            if not self.index.remove(text, context):
                raise IndexCorruptError(
                    f"an output of namespace {self.path} is in the log but not in the index",
                    remedy="Restart to rebuild the index from the log, and report this.",
                )

    def drop_hot(self, outputs: Sequence[StoredOutput]) -> int:
        """Remove the texts of sealed outputs; returns how many of them were not in the index."""
        missing = 0
        for stored in outputs:
            try:
                self.remove(stored.output)
            except IndexCorruptError:
                missing += 1
        return missing

    def begin_write(self) -> None:
        """Index and log are about to differ in one text, or already do. :meth:`end_write` must follow."""
        with self._lock:
            self._in_flight += 1

    def end_write(self) -> None:
        """Index and log agree again about the text."""
        with self._lock:
            self._in_flight -= 1
            self._changes += 1

    def ngrams(self, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
        """All n-grams of the text that is not sealed: int32[m, n] and their counts uint64[m].

        An n-gram counts once for every position at which its last token was written by a model; earlier
        tokens of it may be in the prompt's tail.
        """
        tokens, counts = self.index.ngrams(require_ngram_length(n))
        return tokens.reshape(-1, n), counts

    def _count_locked(self, output: NewOutput, sign: int) -> None:
        size = size_of(output)
        self._outputs += sign
        self.hot_tokens += sign * size.tokens
        self._positions += sign * (size.tokens + size.tail_tokens)
        self._attribute_bytes += sign * size.attribute_bytes

    # ---------------------------------------------------------------------------------- what readers see

    @property
    def published(self) -> Published:
        """The published runs; made on first use."""
        with self._lock:
            if self._published is None:
                self._published = Published(MAX_CONTEXT, self._weights)
                self._published.index.drafting = self.drafting
            return self._published

    def restricts(self, sees_all: SeesAll) -> bool:
        """Whether a reader drafts from the published runs only."""
        return bool(self.quota.policy.min_principals) and not sees_all(self.path)

    def source(self, sees_all: SeesAll) -> Index:
        """The native index that a reader drafts from: this one, or that of the published runs."""
        return self.published.index if self.restricts(sees_all) else self.index

    @property
    def changes(self) -> int:
        """A number that rises whenever outputs are added or deleted."""
        return self._changes

    # ------------------------------------------------------------------------------------------- counters

    def count_evicted(self, outputs: int) -> None:
        """Add to the counter of evicted outputs."""
        with self._lock:
            self._evicted += outputs

    def add_reported(self, counts: StepCounts) -> None:
        """Add to the counters of followers."""
        with self._lock:
            self._reported = self._reported.plus(counts)

    def step_counts(self) -> StepCounts:
        """Counters of the steps of this namespace's sessions, those of followers included."""
        return StepCounts.of(self.counters).plus(self._reported)

    def count_refused(self) -> bool:
        """Count a session's output that did not fit; returns whether to log it: once a minute."""
        with self._lock:
            self._refused += 1
            now = time.monotonic()
            due = now - self._refusal_logged_at >= _REFUSAL_LOG_SECONDS
            if due:
                self._refusal_logged_at = now
            return due

    # -------------------------------------------------------------------------------------- live sessions

    def add_live(self, text: LiveText) -> None:
        """Add the text of a session that is being opened.

        Raises:
            UnknownNamespaceError: the namespace was deleted, or its deletion has begun.
        """
        with self._lock:
            if self.deleted:
                raise unknown_namespace(self.path, got="a handle of a deleted namespace")
            self._live.add(text)
            if self._totals is not None:
                self._totals.add_live(text)
            self._changes += 1

    def remove_live(self, text: LiveText) -> None:
        """Remove the text of a session that was closed and released. Idempotent."""
        with self._lock:
            self._live.discard(text)
            if self._totals is not None:
                self._totals.remove_live(text)
            self._changes += 1

    @property
    def live_sessions(self) -> int:
        """Number of live sessions."""
        return len(self._live)

    @property
    def session_bytes(self) -> int:
        """Memory of live sessions in bytes: their own, and their texts' share of the hot index."""
        with self._lock:
            live = list(self._live)
        return sum(text.held_bytes() for text in live)

    def writers_of_sessions(self) -> set[str]:
        """The principals of live sessions."""
        with self._lock:
            return {text.principal for text in self._live}

    def begin_delete(self, *, force: bool) -> int:
        """Set :attr:`deleted`, so that no session is opened from now on. Idempotent.

        Args:
            force: also if there are live sessions.

        Returns:
            The number of live sessions that prevent the deletion; 0: :attr:`deleted` is set.
        """
        with self._lock:
            if not (force or self.deleted) and self._live:
                return len(self._live)
            self.deleted = True
            if self.lru is not None:
                self.lru.leave_totals()
            return 0

    def discard_live(self) -> None:
        """Retract the texts of live sessions for good: closing them stores no output."""
        with self._lock:
            live = list(self._live)
        for text in live:
            text.discard()

    def withdraw_live(self, selection: Selection) -> int:
        """Retract the texts of the live sessions that a selection takes, for good; returns how many.

        Closing these stores no output.
        """
        with self._lock:
            live = list(self._live)
        return sum(text.withdraw(selection) for text in live)

    def set_policy(self, policy: Policy) -> None:
        """Apply another effective policy."""
        self.quota.policy = policy
        if self.lru is not None:
            self.lru.set_pinned(bool(policy.pinned))
        self.set_drafting(policy.drafting is not False)

    def set_drafting(self, on: bool) -> None:
        """Let sessions draft from this text, or not: none of this namespace drafts anything then."""
        with self._lock:
            self.index.drafting = on
            if self._published is not None:
                self._published.index.drafting = on

    @property
    def drafting(self) -> bool:
        """Whether sessions of the namespace draft, and others from it."""
        return self.index.drafting

    def unlearn(self) -> None:
        """Replace what drafting has learned, for all principals, by the initial weights."""
        self.unlearned += 1
        initial = new_learner(self._weights).save()
        for learner in [self.learner, *self.learners().values()]:
            learner.load(initial)

    def learner_of(self, principal: str) -> Learner:
        """What drafting has learned for a principal. It begins with what was learned for the operator."""
        if not principal:
            return self.learner
        with self._lock:
            learner = self._learners.pop(principal, None)
            if learner is None:
                learner = new_learner(self._weights)
                if self.learner.own_bytes:
                    learner.load(self.learner.save())
                self._drop_idle_learners()
            self._learners[principal] = learner
            return learner

    def has_learner(self, principal: str) -> bool:
        """Whether the tables of a principal are in memory."""
        return not principal or principal in self._learners

    def learners(self) -> dict[str, Learner]:
        """The tables of principals that are in memory, without the operator's."""
        with self._lock:
            return dict(self._learners)

    def _drop_idle_learners(self) -> None:
        """Make room for one more: drop those of principals without sessions, the one used first first."""
        idle = [name for name in self._learners if name not in self.writers_of_sessions()]
        for name in idle[: max(0, len(self._learners) + 1 - MAX_LEARNERS)]:
            del self._learners[name]


def _by_size(work: Callable[[NewOutput], T], output: NewOutput) -> T:
    """Do the work for an output, at a lower priority unless the output is small."""
    return work(output) if positions_of(output) < _FEW_POSITIONS else low_priority(work, output)
