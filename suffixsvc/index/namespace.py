"""Index of one namespace: the hot index combined with the sealed segments."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from suffixsvc.core.segments import Segment
from suffixsvc.errors import IndexCorruptError
from suffixsvc.index.hot_index import HotIndex
from suffixsvc.index.namespace_stats import ConsistencySnapshot, NamespaceStats, Usage
from suffixsvc.index.output_size import OutputSize, log_bytes, size_of
from suffixsvc.index.segment_map import Sealed
from suffixsvc.policies import UNLIMITED
from suffixsvc.types import NewOutput, OutputId, SegmentRecord, StoredOutput


class NamespaceIndex(HotIndex):
    """The text of one namespace in memory and in segments, and its movement between the two.

    Thread-safe. The arguments are those of :class:`HotIndex`.
    """

    # ------------------------------------------------------------------------------------ log and eviction

    def record_logged(self, output: NewOutput, writer: int, output_id: OutputId) -> None:
        """Count an indexed output that was logged under this id.

        On the store's thread, before the output can be deleted.
        """
        with self._lock:
            self._count_locked(output, 1)
            self._changes += 1
        if self.lru is not None:
            self.lru.add(
                output_id,
                self._now_us(),
                size_of(output),
                pinned=output.corpus,
                own_ttl=output.ttl_seconds > 0,
                principal=output.principal,
            )
        self.writers.bind(writer, output_id)

    def forget(self, deleted: Sequence[StoredOutput]) -> list[StoredOutput]:
        """Stop counting outputs that the store has deleted, and stop drafting from them in segments.

        On the store's thread, in the order of its commits, and short: hot outputs are only looked up.

        Returns:
            The hot outputs: the caller removes their texts with :meth:`remove`, then calls :meth:`end_write`
            for each.
        """
        with self._lock:
            hot = self.segments.forget(deleted)
            for stored in hot:
                self._count_locked(stored.output, -1)
            self._in_flight += len(hot)
            self._changes += 1
            self.writers.unbind(stored.output_id for stored in deleted)
        if self.lru is not None:
            self.lru.remove(stored.output_id for stored in deleted)
        return hot

    def note_drafts(self) -> None:
        """Fetch from the core which texts drafts were taken from, and record it."""
        self._note_drafts(self.sealed())

    def _note_drafts(self, sealed: Iterable[Sealed]) -> None:
        # Sealed outputs count as used later: the core orders the uses of one index or segment only.
        of_segments = [i for each in sealed for i in each.segment.take_recently_used()]
        self.note_use([*self.writers.outputs_of(self.index.take_recently_used()), *of_segments])

    def note_use(self, output_ids: Sequence[OutputId]) -> None:
        """Record outputs that drafts were taken from, oldest use first, for eviction and statistics."""
        if self.lru is not None:
            self.lru.touch(output_ids, self._now_us())
        if self.use is not None:
            self.use.note(output_ids)

    # ------------------------------------------------------------------------------------ sealed segments

    def sealed(self) -> list[Sealed]:
        """The segments in use, oldest outputs first."""
        with self._lock:
            return list(self.segments.sealed)

    def remaining_in(self, record: SegmentRecord) -> tuple[set[OutputId], int]:
        """The outputs that a segment in use drafts from, and the count that is recorded for it."""
        with self._lock:
            here = next(each for each in self.segments.sealed if each.record == record)
            return set(here.segment.outputs()), here.outputs

    def attach(self, sealed: Sealed) -> None:
        """Use a segment whose outputs are not hot; at open."""
        with self._lock:
            self.segments.attach(sealed)
            self._set_segments()

    def attach_loaded(self, record: SegmentRecord, segment: Segment, outputs: Sequence[StoredOutput]) -> None:
        """Use a segment of outputs that are being loaded, without those deleted since they were read."""
        with self._lock:
            self._attach_without_deleted(record, segment, outputs)
            self._set_segments()

    def move_to_segment(
        self, record: SegmentRecord, segment: Segment, outputs: Sequence[StoredOutput]
    ) -> list[StoredOutput]:
        """Let a new segment hold these hot outputs, without those deleted since they were read.

        Returns:
            The outputs to be removed from the hot index with :meth:`drop_hot`; until then they count twice
            in drafts.
        """
        with self._lock:
            moved = self._attach_without_deleted(record, segment, outputs)
            self.segments.end()
            for stored in moved:
                self._count_locked(stored.output, -1)
            self._note_drafts(())
            self.writers.unbind(stored.output_id for stored in moved)
            self._set_segments()
            return moved

    def _attach_without_deleted(
        self, record: SegmentRecord, segment: Segment, outputs: Sequence[StoredOutput]
    ) -> list[StoredOutput]:
        deleted = self.segments.deleted
        segment.forget(deleted)
        remaining = [stored for stored in outputs if stored.output_id not in deleted]
        tokens = sum(len(stored.output.token_ids) for stored in remaining)
        self.segments.attach(Sealed(record, segment, len(remaining), tokens))
        return remaining

    def replace_segments(self, record: SegmentRecord, segment: Segment, names: Collection[str]) -> None:
        """Use one segment in the place of others."""
        with self._lock:
            segment.forget(self.segments.deleted)
            self._note_drafts(self.segments.sealed)
            self.segments.replace(record, segment, names)
            self.segments.end()
            self._set_segments()

    def detach(self, names: Collection[str]) -> None:
        """Stop using segments."""
        with self._lock:
            self.segments.detach(names)
            self._set_segments()

    def _set_segments(self) -> None:
        self.index.set_segments([sealed.segment for sealed in self.segments.sealed])

    # --------------------------------------------------------------------------------- loading from the log

    def begin_load(self, first: OutputId, last: OutputId, names: Collection[str] = ()) -> None:
        """Begin to read the outputs of a range back from the log, and stop using the named segments.

        One at a time; calls of :meth:`load` and :meth:`attach_loaded` follow until the end of the move. The
        range is absent from the map until the load is complete; without that it is begun again before any
        other move.
        """
        with self._lock:
            self.segments.detach(names)
            self.segments.begin()
            self.segments.expect(first, last)
            self._set_segments()

    def load(self, stored: StoredOutput) -> None:
        """Make an output hot, unless it was deleted since it was read."""
        writer = self.insert(stored.output)  # before a deletion can try to remove the text
        with self._lock:
            loaded = self.segments.load(stored.output_id)
            if loaded:
                self._count_locked(stored.output, 1)
                self.writers.bind(writer, stored.output_id)
        if not loaded:
            self.remove(stored.output)

    # ------------------------------------------------------------------------------- statistics and checks

    def usage(self) -> Usage:
        """The outputs and the bytes that they are charged for; docs/limits.md explains the charge."""
        native = self.index.stats()
        with self._lock:
            sealed = self.segments.sealed
            size = OutputSize(
                self._outputs + sum(each.outputs for each in sealed),
                self.hot_tokens + sum(each.tokens for each in sealed),
                self._positions - self.hot_tokens,
                self._attribute_bytes,
            )
            hot = native.used * min(1.0, self._positions / native.tokens) if native.tokens else 0.0
        files = sum(each.record.file_bytes * each.tokens / each.record.tokens for each in sealed)
        if self.lru is not None and self.lru.complete:
            rows = self.lru.size  # the manifest of segments has no sizes of tails and attributes
            size = size._replace(tail_tokens=rows.tail_tokens, attribute_bytes=rows.attribute_bytes)
        return Usage(size, log_bytes(size) + int(hot + files))

    def stats(self) -> NamespaceStats:
        """Statistics of the namespace."""
        native, usage = self.index.stats(), self.usage()
        session_bytes = self.session_bytes
        with self._lock:
            sealed = self.segments.sealed
            return NamespaceStats(
                outputs=usage.size.outputs,
                tokens=usage.size.tokens,
                sessions=len(self._live),
                index_bytes=native.bytes + sum(each.segment.stats().resident_bytes for each in sealed),
                index_nodes=native.nodes,
                segments=len(sealed),
                segment_bytes=sum(each.record.file_bytes for each in sealed),
                hot_tokens=self.hot_tokens,
                held_bytes=usage.bytes,
                limit_bytes=0 if self.quota.limit >= UNLIMITED else self.quota.limit,
                evicted_outputs=self._evicted,
                refused_outputs=self._refused,
                session_bytes=session_bytes,
                drafting_off=int(not self.drafting),
                **self.step_counts()._asdict(),
                **self._published_stats(),
            )

    def _published_stats(self) -> dict[str, Any]:
        terms = self.quota.policy.publishing
        if terms is None:
            return {}
        current = self.published.current
        return {
            "min_principals": terms.min_principals,
            "published_runs": 0 if current is None else current.record.outputs,
            "published_tokens": 0 if current is None else current.record.tokens,
            "last_published": self.published.last_built,
        }

    def consistency_snapshot(self) -> ConsistencySnapshot | None:
        """Counts of the hot index; None while a write or a removal is in flight."""
        with self._lock:
            if self._in_flight:
                return None
            changes, live = self._changes, list(self._live)
            counted = self._outputs, self.hot_tokens, self._positions
        positions = sum(text.live_positions() for text in live)
        native = self.index.stats()
        return ConsistencySnapshot(changes, native.appended, native.tokens, positions, *counted)

    def check(self) -> None:
        """Verify the whole index and all of its segments.

        Raises:
            IndexCorruptError, SegmentCorruptError: names the first broken invariant.
        """
        for sealed in self.sealed():
            sealed.segment.check()
        problem = self.index.check()
        if problem:
            raise IndexCorruptError(
                f"the index of namespace {self.path} is broken: {problem}",
                remedy="Restart to rebuild it from the log, and report this.",
            )
