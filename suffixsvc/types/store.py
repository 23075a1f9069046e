"""The protocol of the durable store, which LMDB and memory implement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from suffixsvc.types.outputs import (
    IncompleteOutput,
    NamespaceRecord,
    NewOutput,
    OutputId,
    OutputOutline,
    SegmentRecord,
    StoredOutput,
    StoreStats,
)

if TYPE_CHECKING:
    from suffixsvc.clock import StoreClock
    from suffixsvc.errors import StoreError

__all__ = ["Store"]


class Store(Protocol):
    """The durable log of outputs, from which every index is derived.

    Thread-safe. Every method raises :class:`suffixsvc.errors.StoreError` or a subclass. Namespace paths are
    validated by the caller (at most 200 bytes, see ``suffixsvc.config.validate_namespace``).
    """

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        """Create the namespace or return the existing record. Durable when it returns.

        An empty fingerprint in the existing record is filled in.

        Raises:
            TokenizerMismatchError: the existing record has another fingerprint.
        """

    def namespaces(self) -> list[NamespaceRecord]:
        """All namespaces, ordered by path."""

    def delete_namespace(self, path: str, between: Callable[[], object] | None = None) -> int:
        """Delete a namespace durably, with its outputs, states, segment records and tombstones.

        The path is unknown from the first transaction on, and cannot be created again before the last one.
        The deletion is split into bounded transactions: after an error, another call or the next open
        continues it. Neither output ids nor the internal number of the namespace are reused, so an output, a
        segment or a state of a deleted namespace never appears in a later one of the same path.

        Args:
            between: called in this thread between two transactions, so that the caller can process the rows
                that the deletion listener received instead of collecting all of them.

        Returns:
            The number of outputs that the namespace had.

        Raises:
            UnknownNamespaceError: the namespace does not exist.
        """

    def append(
        self,
        outputs: Sequence[NewOutput],
        create: Sequence[NamespaceRecord] = (),
        on_committed: Callable[[list[OutputId] | None], None] | None = None,
    ) -> Future[list[OutputId]]:
        """Log outputs, all or none, in order; the future holds their ids once they are durable.

        Appends of several callers share a commit. A large append takes several transactions: parts of it can
        be read before the future is done, and other appends may come between. StoreFullError and other
        errors arrive through the future.

        An output whose uuid exists in its namespace is not logged again: its id is that of the existing
        output, and :func:`repeated_in` lists it. InvalidInputError if the existing output has other tokens.

        Args:
            create: namespaces that are created, or given their fingerprint, in the same transaction, as by
                :meth:`add_namespace`.
            on_committed: called on the store's thread before the future is done: after every transaction
                with the ids that it committed, before the deletion listener receives what this commit or a
                later one deleted; once with None where the rest is not committed. Rows committed before that
                go to the deletion listener when they are rolled back. It must be short and must not wait for
                the store.
        """

    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        """Call ``listener`` after every commit that deleted occurrences, with these.

        On the store's thread, in the order of the commits, before the calls return that the commit was for.
        It must be short and must not wait for the store. At most one; it replaces the one before.
        """

    def barrier(self) -> None:
        """Wait until the listener has received what was deleted by commits before this call."""

    def forget(self, namespace: str, output_id: OutputId) -> StoredOutput:
        """Delete one occurrence durably and return it; the payload is deleted with its last occurrence.

        Raises:
            UnknownOutputError: the occurrence does not exist.
        """

    def forget_many(self, namespace: str, output_ids: Sequence[OutputId]) -> list[StoredOutput]:
        """Delete those of the occurrences that exist durably; returns them, ordered by id.

        Not atomic: after a crash some of them may remain.
        """

    @property
    def clock(self) -> StoreClock:
        """The clock that stamps occurrences and that their TTL is counted in."""

    def expire(self, now: float | None = None) -> list[StoredOutput]:
        """Delete occurrences whose TTL has passed durably, in one transaction; returns them.

        At most as many as a transaction takes: call it until the result is empty.

        Args:
            now: seconds in store time, instead of the moment of the call and without the grace period of
                :mod:`suffixsvc.clock`.
        """

    def get(self, output_id: OutputId) -> StoredOutput:
        """One occurrence. UnknownOutputError if it does not exist."""

    def scan(self, namespace: str | None = None, *, from_lsn: int = 0) -> Iterator[StoredOutput]:
        """Occurrences with id >= from_lsn in id order, of one namespace or of all.

        A consistent snapshot of the moment at which the first one is read.
        """

    @property
    def node_id(self) -> int:
        """64 random bits drawn when the store was created: rows carry the node that wrote them.

        0: the folder is of a release without node ids, and had no space for one.
        """

    def find(self, namespace: str, uuid: bytes) -> OutputId | None:
        """The id of the output with this uuid, or None."""

    def incomplete(self, session_id: str) -> list[IncompleteOutput]:
        """Incomplete outputs of sessions with this id, in id order. The cost is independent of the size of
        the store."""

    def outline(self, namespace: str) -> Iterator[OutputOutline]:
        """The namespace's occurrences in id order, without their tokens.

        Occurrences written or deleted during the iteration may be in it or not.
        """

    def output_ids(
        self, namespace: str, first: OutputId, last: OutputId, limit: int | None = None
    ) -> list[OutputId]:
        """Ids of the namespace's occurrences in first..last (both included), ascending, at most ``limit``."""

    # The manifest: which ranges of the log are in sealed segments. Deleting an occurrence in such a range
    # leaves a tombstone in the same transaction, until a new segment omits the occurrence.

    @property
    def segment_folder(self) -> Path | None:
        """The folder of segment files, which need not exist. None: a store in memory, without segments."""

    def segments(self, namespace: str) -> list[SegmentRecord]:
        """The namespace's manifest, ordered by range."""

    def tombstones(self, namespace: str) -> dict[OutputId, int]:
        """Deleted occurrences that a segment still holds, and their tokens, ordered by id."""

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        """Add a segment of these outputs (id -> tokens) to the manifest, durably.

        Its range is from the lowest to the highest of them. Outputs deleted since they were read get their
        tombstone in the same transaction.

        Raises:
            ManifestError: the log has further outputs in that range, or another segment overlaps it; nothing
                was changed.
        """

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Sequence[OutputId]
    ) -> SegmentRecord:
        """Replace adjacent segments by one, durably; the tombstones of ``left_out`` are removed.

        Raises:
            ManifestError: the segments are not adjacent, or one is not in the manifest; nothing was changed.
        """

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        """Remove segments and the tombstones of their ranges from the manifest, durably."""

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        """Store a small derived blob (learned tables) with a namespace. Durable when it returns."""

    def get_state(self, namespace: str, name: str) -> bytes | None:
        """The blob of the last :meth:`put_state`, or None."""

    def failure(self) -> StoreError | None:
        """Why appends fail now (out of space, I/O error, closed); None: no failure is known.

        A store recovers without a restart: from a lack of space when there is space again, from an I/O error
        when the disk answers again. It retries periodically and with every write.
        """

    def stats(self) -> StoreStats:
        """Counts and sizes of the store."""

    def check(self) -> None:
        """Verify every row and counter; StoreCorruptError names the first broken invariant."""

    def close(self) -> None:
        """Flush pending writes and release the lock. Idempotent."""
