"""The index of one namespace: what was written there, live and stored, and what was learned from it."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from suffixsvc.core import Index, StepCounters, new_learner, pack_weights
from suffixsvc.core.segments import Segment
from suffixsvc.errors import IndexCorruptError, InvalidInputError, unknown_namespace
from suffixsvc.index.eviction import Ledger
from suffixsvc.index.sealed import Places, Sealed
from suffixsvc.index.texts import next_writer, positions_of, texts_of
from suffixsvc.index.upkeep import Quota, Upkeep
from suffixsvc.policies import UNLIMITED, Policy
from suffixsvc.types import NewOutput, OutputId, SegmentRecord, StoredOutput, TokenArray

#: contexts longer than this are not told apart
MAX_CONTEXT = 64

#: what an output is charged for in the log: its row (the prompt's tail and labels are in it), keys and
#: counters, and bytes a token; as if none were identical to another
LOG_BYTES_PER_OUTPUT = 512
LOG_BYTES_PER_TOKEN = 4
_REFUSALS_TOLD_SECONDS = 60.0

__all__ = [
    "LOG_BYTES_PER_OUTPUT",
    "LOG_BYTES_PER_TOKEN",
    "Balance",
    "LiveText",
    "NamespaceIndex",
    "NamespaceStats",
]


def require_ngram_length(n: int) -> int:
    if isinstance(n, bool) or not isinstance(n, int) or not 1 <= n <= MAX_CONTEXT:
        raise InvalidInputError(
            "n makes no sense", expected=f"an int in 1 .. {MAX_CONTEXT}", got=repr(n)[:80]
        )
    return n


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """What a namespace holds and what came of its drafts. Counters start at zero with the process."""

    outputs: int  #: occurrences kept
    tokens: int  #: tokens of those outputs
    sessions: int  #: live now
    index_bytes: int  #: of memory, sealed segments' share included
    index_nodes: int
    segments: int  #: sealed ones
    segment_bytes: int  #: of their files, which are mapped
    hot_tokens: int  #: of the outputs that are not sealed
    num_steps: int  #: steps that asked for a draft
    num_drafts: int  #: steps answered with at least one token
    num_draft_tokens: int
    num_accepted_tokens: int
    held_bytes: int  #: what the outputs take, in log and index: see docs/limits.md
    limit_bytes: int  #: what they may take; 0 = no limit
    evicted_outputs: int  #: forgotten to keep the limit
    refused_outputs: int  #: of sessions, not kept because there was no room
    session_bytes: int  #: memory of the live sessions


class LiveText(Protocol):
    """The text of a session that is not closed."""

    def live_positions(self) -> int:
        """Positions that it takes in the namespace's index, and no output in the log stands for."""

    def discard(self) -> None:
        """Take it out of the index, for good, unless it is an output's that the log holds."""

    def held_bytes(self) -> int:
        """Its memory."""


class Balance(NamedTuple):
    """What a hot index holds beside what it should hold, at one moment. Two that are equal had nothing
    between them."""

    changes: int
    appended: int
    #: in the native index
    positions: int
    #: of live sessions
    live: int
    #: of the log's outputs that are not sealed, as they were counted
    outputs: int
    tokens: int
    logged: int


class Held(NamedTuple):
    """What a namespace's outputs come to."""

    outputs: int
    tokens: int
    #: their charge in the log, their share of the hot index (what is in use: not its spare, not the texts of
    #: live sessions) and of the segment files
    bytes: int


class NamespaceIndex:
    """One namespace's share of memory. Thread-safe; the native index has its own locks.

    Args:
        path: of the namespace.
        weights: what drafting starts from, see ``suffixsvc.core.new_learner``.
        now_us: store time, in microseconds.
        ledger: notes who was drafted from; None where nothing is ever evicted.
        policy: what holds for the namespace.
    """

    def __init__(
        self,
        path: str,
        weights: bytes | None = None,
        *,
        now_us: Callable[[], int] = lambda: int(time.time() * 1e6),
        ledger: Ledger | None = None,
        policy: Policy | None = None,
    ) -> None:
        self.path = path
        # The engine's catalog keeps these:
        self.tokenizer = ""  #: its fingerprint; empty while none was given
        self.stored = False  #: the log knows the namespace
        self.logged_tokenizer = ""  #: the tokenizer that the log has for it
        self.writes = 0  #: in flight
        self.untagged_writes = 0  #: of these, those that would make the namespace without a tokenizer
        self._now_us = now_us
        #: who was drafted from; None where nothing is ever evicted
        self.ledger = ledger
        #: kept by the engine's room
        self.quota = Quota(Policy() if policy is None else policy)
        #: kept by the engine's sealing and maintenance
        self.upkeep = Upkeep()
        self.index = Index(MAX_CONTEXT)
        self.learner = new_learner(weights)
        self._lock = threading.Lock()
        self._deleted = False
        #: of the hot outputs; what is sealed counts in its place
        self._outputs = self._tokens = self._positions = 0
        self._evicted = self._refused = 0
        self._told_at = -math.inf
        self._places = Places()
        #: texts that the index holds and the log does not hold yet, or the other way round
        self._unsettled = 0
        self._changes = 0
        #: texts of sessions that are not closed
        self._live: set[LiveText] = set()
        #: held while outputs change their place: whoever holds it sees each of them once
        self.moving = threading.Lock()
        #: what the steps of this namespace's sessions came to
        self.counters = StepCounters()

    def learned_weights(self) -> bytes:
        """See ``Namespace.learned_weights``."""
        return pack_weights(self.learner)

    def insert(self, output: NewOutput) -> int:
        """Put the texts of an output into the index, all or none; their number as a writer. It counts once it
        is :meth:`kept`."""
        writer = next_writer()
        there: list[tuple[TokenArray, int]] = []
        try:
            for text, context in texts_of(output):
                self.index.add(text, context, writer)
                there.append((text, context))
        except BaseException:
            for text, context in there:
                self.index.remove(text, context)
            raise
        return writer

    def begin_write(self) -> None:
        """Text is in the index, or about to be, that the log does not hold yet; or the other way round."""
        with self._lock:
            self._unsettled += 1

    def end_write(self) -> None:
        """Index and log agree about it."""
        with self._lock:
            self._unsettled -= 1
            self._changes += 1

    def kept(self, output: NewOutput, writer: int, output_id: OutputId) -> None:
        """An indexed output is in the log under this id. On the store's thread, before the output can be
        forgotten."""
        self._count(output)
        if self.ledger is not None:
            now_us = self._now_us()
            own_ttl = output.ttl_seconds > 0
            self.ledger.kept(output_id, now_us, len(output.token_ids), stays=output.corpus, own_ttl=own_ttl)
            self.ledger.written_by(writer, output_id)

    def note_drafts(self) -> None:
        """Fetch from the core which texts drafts were taken from."""
        self._note_drafts(self.sealed())

    def _note_drafts(self, sealed: Iterable[Sealed]) -> None:
        if self.ledger is not None:
            of_segments = [i for each in sealed for i in each.segment.take_drafted()]
            self.ledger.drafted(self.index.take_drafted(), of_segments, self._now_us())

    def remove(self, output: NewOutput) -> None:
        """Take the texts of an output that is not sealed out of the index; IndexCorruptError if one is not in
        it."""
        for text, context in texts_of(output):
            if not self.index.remove(text, context):
                raise IndexCorruptError(
                    f"an output of namespace {self.path} is in the log but not in the index",
                    remedy="Restart to rebuild the index from the log, and report this.",
                )

    def forget(self, gone: Sequence[StoredOutput]) -> list[StoredOutput]:
        """Outputs that the store has deleted count no more, and no segment drafts from them.

        On the store's thread, in the order of its commits. Short: what is hot is only looked up.

        Returns:
            Those that are hot: their texts are to be taken out with :meth:`remove`, then :meth:`end_write` is
            due for each.
        """
        with self._lock:
            hot = self._places.forget(gone)
            for stored in hot:
                self._count_locked(stored.output, -1)
            self._unsettled += len(hot)
            self._changes += 1
        if self.ledger is not None:
            self.ledger.dropped(stored.output_id for stored in gone)
        return hot

    def _count(self, output: NewOutput) -> None:
        with self._lock:
            self._count_locked(output, 1)
            self._changes += 1

    def _count_locked(self, output: NewOutput, sign: int) -> None:
        self._outputs += sign
        self._tokens += sign * len(output.token_ids)
        self._positions += sign * positions_of(output)

    def count_evicted(self, outputs: int) -> None:
        with self._lock:
            self._evicted += outputs

    def count_refused(self) -> bool:
        """A session's output found no room; True where that is worth a line in the log: once a minute."""
        with self._lock:
            self._refused += 1
            last, self._told_at = self._told_at, time.monotonic()
            if self._told_at - last < _REFUSALS_TOLD_SECONDS:
                self._told_at = last
                return False
            return True

    def held(self) -> Held:
        """What the outputs take; docs/limits.md says why it is counted so."""
        native = self.index.stats()
        with self._lock:
            sealed = self._places.sealed
            outputs = self._outputs + sum(each.outputs for each in sealed)
            tokens = self._tokens + sum(each.tokens for each in sealed)
            hot = native.used * min(1.0, self._positions / native.tokens) if native.tokens else 0.0
        files = sum(each.record.file_bytes * each.tokens / each.record.tokens for each in sealed)
        return Held(
            outputs, tokens, outputs * LOG_BYTES_PER_OUTPUT + tokens * LOG_BYTES_PER_TOKEN + int(hot + files)
        )

    def enter(self, text: LiveText) -> None:
        """A session is opened. UnknownNamespaceError: the namespace is being deleted, or was."""
        with self._lock:
            if self._deleted:
                raise unknown_namespace(self.path, got="a handle of one that was deleted")
            self._live.add(text)
            self._changes += 1

    def leave(self, text: LiveText) -> None:
        """It is over, and its text is released. Idempotent."""
        with self._lock:
            self._live.discard(text)
            self._changes += 1

    # ----------------------------------------------------------------------------------- sealed segments

    @property
    def live_sessions(self) -> int:
        return len(self._live)

    @property
    def deleted(self) -> bool:
        """It is being deleted, or was."""
        return self._deleted

    def begin_delete(self, *, force: bool) -> int:
        """Set :attr:`deleted`: no session enters from now on. Idempotent.

        Args:
            force: also where sessions are live.

        Returns:
            How many sessions hold it back; 0: it is deleted.
        """
        with self._lock:
            if not (force or self._deleted) and self._live:
                return len(self._live)
            self._deleted = True
            return 0

    def discard_live(self) -> None:
        """Take back what live sessions wrote, for good: closing them keeps nothing."""
        with self._lock:
            live = list(self._live)
        for text in live:
            text.discard()

    @property
    def session_bytes(self) -> int:
        """Memory of live sessions: their own, and their texts' share of the hot index."""
        with self._lock:
            live = list(self._live)
        return sum(text.held_bytes() for text in live)

    @property
    def hot_tokens(self) -> int:
        """Tokens of the outputs that are not sealed."""
        return self._tokens

    def sealed(self) -> list[Sealed]:
        """The segments in use, oldest outputs first."""
        with self._lock:
            return list(self._places.sealed)

    def left_in(self, record: SegmentRecord) -> tuple[set[OutputId], int]:
        """The outputs that a segment in use is drafted from, and how many it is said to hold."""
        with self._lock:
            here = next(each for each in self._places.sealed if each.record == record)
            return set(here.segment.outputs()), here.outputs

    def hot_ranges(self, last: OutputId) -> list[tuple[OutputId, OutputId]]:
        """Ranges of ids up to ``last`` that no segment stands for, ascending."""
        with self._lock:
            return list(self._places.hot_ranges(last))

    def attach(self, sealed: Sealed) -> None:
        """A segment whose outputs are not hot: at open."""
        with self._lock:
            self._places.attach(sealed)
            self._set_segments()

    def attach_loaded(self, record: SegmentRecord, segment: Segment, outputs: Sequence[StoredOutput]) -> None:
        """A segment of outputs that are being loaded; those forgotten since they were read are not in it."""
        with self._lock:
            gone = self._places.gone
            segment.forget(gone)
            left = [stored for stored in outputs if stored.output_id not in gone]
            tokens = sum(len(stored.output.token_ids) for stored in left)
            self._places.attach(Sealed(record, segment, len(left), tokens))
            self._set_segments()

    def begin_move(self) -> None:
        """Outputs are about to be read, to be put into a new segment. One at a time."""
        with self._lock:
            self._places.begin()

    def end_move(self) -> None:
        """Nothing came of it, or all of it is done. Idempotent."""
        with self._lock:
            self._places.end()

    def take_over(
        self, record: SegmentRecord, segment: Segment, outputs: Sequence[StoredOutput]
    ) -> list[StoredOutput]:
        """A new segment stands for these outputs from now on.

        Returns:
            Those to be taken out of the hot index with :meth:`drop_hot`; until then they count twice in
            drafts. The others were forgotten meanwhile.
        """
        with self._lock:
            gone = self._places.gone
            segment.forget(gone)
            moved = [stored for stored in outputs if stored.output_id not in gone]
            tokens = sum(len(stored.output.token_ids) for stored in moved)
            self._places.attach(Sealed(record, segment, len(moved), tokens))
            self._places.end()
            self._outputs -= len(moved)
            self._tokens -= tokens
            self._positions -= sum(positions_of(stored.output) for stored in moved)
            if self.ledger is not None:
                self._note_drafts(())
                self.ledger.sealed(stored.output_id for stored in moved)
            self._set_segments()
            return moved

    def drop_hot(self, outputs: Sequence[StoredOutput]) -> int:
        """Take sealed outputs out of the hot index; how many were not in it."""
        missing = 0
        for stored in outputs:
            try:
                self.remove(stored.output)
            except IndexCorruptError:
                missing += 1
        return missing

    def exchange(self, record: SegmentRecord, segment: Segment, names: Collection[str]) -> None:
        """A segment takes the place of these."""
        with self._lock:
            segment.forget(self._places.gone)
            self._note_drafts(self._places.sealed)
            self._places.exchange(Sealed(record, segment, 0, 0), names)
            self._places.end()
            self._set_segments()

    def detach(self, names: Collection[str]) -> None:
        """Segments that nothing is left of."""
        with self._lock:
            self._places.detach(names)
            self._set_segments()

    def begin_load(self, first: OutputId, last: OutputId, names: Collection[str] = ()) -> None:
        """The outputs of a range will be read back from the log; segments of these names stand for nothing
        any more. One at a time; :meth:`load` and :meth:`attach_loaded` until :meth:`end_move`. Until
        :meth:`end_load` the range is :attr:`unloaded`; then it is begun again, before any other move."""
        with self._lock:
            self._places.detach(names)
            self._places.begin()
            self._places.expect(first, last)
            self._set_segments()

    def end_load(self) -> None:
        """All of the range is there, and the listener has had every deletion that came before its rows were
        read."""
        with self._lock:
            self._places.complete()

    @property
    def unloaded(self) -> tuple[OutputId, OutputId] | None:
        """The range whose load was begun and not ended; some of it may be there."""
        with self._lock:
            return self._places.absent

    def awaits(self, output_id: OutputId) -> bool:
        """Whether an output of the log is still to be loaded."""
        with self._lock:
            return self._places.is_absent(output_id)

    def load(self, stored: StoredOutput) -> None:
        """Make an output hot, unless it was forgotten since it was read."""
        writer = self.insert(stored.output)  # before anybody can be asked to take it out
        with self._lock:
            loaded = self._places.load(stored.output_id)
            if loaded:
                self._count_locked(stored.output, 1)
        if not loaded:
            self.remove(stored.output)
        elif self.ledger is not None:
            self.ledger.written_by(writer, stored.output_id)

    def _set_segments(self) -> None:
        self.index.set_segments([sealed.segment.native for sealed in self._places.sealed])

    def ngrams(self, n: int) -> tuple[TokenArray, npt.NDArray[np.uint64]]:
        """All n-grams of what is not sealed: int32[m, n] and their counts uint64[m].

        An n-gram counts once for every place where its last token was written by a model; earlier
        tokens of it may stand in the prompt's tail.
        """
        tokens, counts = self.index.ngrams(require_ngram_length(n))
        return tokens.reshape(-1, n), counts

    def stats(self) -> NamespaceStats:
        native, counters, held = self.index.stats(), self.counters, self.held()
        session_bytes = self.session_bytes
        with self._lock:
            sealed = self._places.sealed
            return NamespaceStats(
                outputs=self._outputs + sum(each.outputs for each in sealed),
                tokens=self._tokens + sum(each.tokens for each in sealed),
                sessions=len(self._live),
                index_bytes=native.bytes + sum(each.segment.stats().resident_bytes for each in sealed),
                index_nodes=native.nodes,
                segments=len(sealed),
                segment_bytes=sum(each.record.file_bytes for each in sealed),
                hot_tokens=self._tokens,
                num_steps=counters.steps,
                num_drafts=counters.drafts,
                num_draft_tokens=counters.drafted,
                num_accepted_tokens=counters.accepted,
                held_bytes=held.bytes,
                limit_bytes=0 if self.quota.limit >= UNLIMITED else self.quota.limit,
                evicted_outputs=self._evicted,
                refused_outputs=self._refused,
                session_bytes=session_bytes,
            )

    def balance(self) -> Balance | None:
        """What the hot index should hold; None where something is on its way in or out of log or index."""
        with self._lock:
            if self._unsettled:
                return None
            changes, live = self._changes, list(self._live)
            counted = self._outputs, self._tokens, self._positions
        positions = sum(text.live_positions() for text in live)
        native = self.index.stats()
        return Balance(changes, native.appended, native.tokens, positions, *counted)

    def check(self) -> None:
        """Walk the whole index and read all of its segments; IndexCorruptError or SegmentCorruptError names
        the first broken invariant."""
        for sealed in self.sealed():
            sealed.segment.check()
        problem = self.index.check()
        if problem:
            raise IndexCorruptError(
                f"the index of namespace {self.path} is broken: {problem}",
                remedy="Restart to rebuild it from the log, and report this.",
            )
