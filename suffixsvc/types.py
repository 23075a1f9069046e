"""The values that cross seams, and the protocols that parts fulfil for each other.

Nothing here computes: the engine, the client, the store and the driver all import this module,
and it imports none of them.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from suffixsvc.clock import StoreClock
    from suffixsvc.errors import StoreError

__all__ = [
    "AppendedIds",
    "Backend",
    "BackendNamespace",
    "BackendSession",
    "Draft",
    "DraftSource",
    "FloatArray",
    "IncompleteOutput",
    "Labels",
    "NamespaceRecord",
    "NewOutput",
    "OutputId",
    "OutputOutline",
    "SegmentRecord",
    "Store",
    "StoreStats",
    "StoredOutput",
    "TokenArray",
    "TokenIds",
    "Verified",
    "VerifyCost",
    "repeated_in",
]

TokenArray = npt.NDArray[np.int32]
FloatArray = npt.NDArray[np.float32]
#: what callers may pass as tokens: a 1-D integer array or a sequence of ints, each in 0 .. 2**31 - 1
TokenIds = npt.NDArray[Any] | Sequence[int]
#: a float a (each drafted token costs a plain decode steps) or a curve c, c[w] the cost of a step of w tokens
VerifyCost = float | Sequence[float] | npt.NDArray[Any]
Labels = Mapping[str, str]
#: log sequence number of the stored occurrence: unique in a data folder, never reused
OutputId = int


class DraftSource(enum.IntEnum):
    """Where the evidence for a drafted token came from. The numbers are part of the wire format."""

    NONE = 0
    #: the session's own prompt and output ("prompt lookup")
    SESSION = 1
    #: other outputs of a namespace that the session reads, those of a corpus included ("suffix")
    NAMESPACE = 2
    #: reserved: no draft has it, the index does not tell a corpus from other outputs
    CORPUS = 3
    #: a draft model
    DRAFT_MODEL = 4
    #: prompt lookup done by the driver in the caller's own process
    PROMPT_LOOKUP = 5


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """Tokens proposed for verification: a tree in topological order, a chain being the common case.

    All arrays have the same length n. ``parents[i]`` is the index of token i's parent, -1 at the root,
    and always smaller than i. ``probs[i]`` is the calibrated probability that token i is accepted given
    that its parent is. ``match_lens[i]`` is how many tokens of context the best evidence agreed on.
    """

    token_ids: TokenArray
    parents: TokenArray
    probs: FloatArray
    sources: npt.NDArray[np.uint8]
    match_lens: TokenArray

    def __len__(self) -> int:
        return len(self.token_ids)

    @staticmethod
    def empty() -> Draft:
        """The draft that proposes nothing."""
        return _EMPTY

    @staticmethod
    def unanswered() -> Draft:
        """The draft that stands for an answer that did not arrive: empty, and told from :meth:`empty` by
        identity."""
        return _UNANSWERED

    @staticmethod
    def chain(
        token_ids: TokenIds,
        probs: Sequence[float] | FloatArray,
        source: DraftSource,
        match_len: int = 0,
    ) -> Draft:
        """A linear draft from one source."""
        ids = np.asarray(token_ids, dtype=np.int32)
        n = len(ids)
        return Draft(
            ids,
            np.arange(-1, n - 1, dtype=np.int32),
            np.asarray(probs, dtype=np.float32),
            np.full(n, int(source), dtype=np.uint8),
            np.full(n, match_len, dtype=np.int32),
        )


_EMPTY = Draft(
    np.empty(0, np.int32),
    np.empty(0, np.int32),
    np.empty(0, np.float32),
    np.empty(0, np.uint8),
    np.empty(0, np.int32),
)
_UNANSWERED = Draft(
    np.empty(0, np.int32),
    np.empty(0, np.int32),
    np.empty(0, np.float32),
    np.empty(0, np.uint8),
    np.empty(0, np.int32),
)


@dataclass(frozen=True, slots=True)
class Verified:
    """What was really sent to the target in the last step, where that was not our own last draft.

    Attributes:
        width: tokens sent to the target, the last real one included (1 = nothing was drafted).
        accepted: drafted tokens the target agreed with.
        source: where the draft that was sent came from.
    """

    width: int
    accepted: int
    source: DraftSource = DraftSource.NONE


@dataclass(frozen=True, slots=True)
class NewOutput:
    """One output to be remembered.

    Attributes:
        namespace: path of the namespace it belongs to.
        token_ids: int32[n], what the model wrote; n >= 1.
        segment_lens: lengths of the runs between which context (tool results, user turns) was
            appended; sums to n. Runs of different segments were not adjacent in the model's view.
        prompt_tail: int32[<= 64], the end of what preceded the first token; context only, never drafted.
        labels: kept with the output.
        incomplete: the session expired or was drained before its model finished.
        ttl_seconds: forget it this long after it was written; 0 = never.
        corpus: part of a pinned corpus.
        uuid: 16 bytes that identify the output, chosen by its writer; b"": the store draws one. An output
            whose uuid its namespace has already is not logged again.
        session_id: of the session that wrote it; "" for bulk loads and sessions without a name.
    """

    namespace: str
    token_ids: TokenArray
    segment_lens: tuple[int, ...]
    prompt_tail: TokenArray
    labels: Labels = field(default_factory=dict)
    incomplete: bool = False
    ttl_seconds: int = 0
    corpus: bool = False
    uuid: bytes = b""
    session_id: str = ""


class AppendedIds(list[OutputId]):
    """The ids of an append, one an output. ``repeated``: positions of those that were in the log already."""

    def __init__(self, ids: Iterable[OutputId] = (), repeated: Iterable[int] = ()) -> None:
        super().__init__(ids)
        self.repeated: list[int] = list(repeated)


def repeated_in(ids: Sequence[OutputId]) -> Sequence[int]:
    """Positions of the outputs of an append that were in the log already."""
    return ids.repeated if isinstance(ids, AppendedIds) else ()


@dataclass(frozen=True, slots=True)
class IncompleteOutput:
    """An output of a session that expired or was drained, to be found by the session's id."""

    output_id: OutputId
    namespace: str
    uuid: bytes


@dataclass(frozen=True, slots=True)
class StoredOutput:
    """One occurrence as the store holds it: a :class:`NewOutput` with its id and time."""

    output_id: OutputId
    written_at: float  #: seconds since the epoch, in store time (:mod:`suffixsvc.clock`)
    output: NewOutput


@dataclass(frozen=True, slots=True)
class OutputOutline:
    """What eviction needs to know of a :class:`StoredOutput`; cheap to read in bulk."""

    output_id: OutputId
    written_at: float  #: seconds since the epoch, in store time
    tokens: int
    ttl_seconds: int
    corpus: bool


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace the store knows. ``tokenizer`` is its fingerprint, empty while none was given."""

    path: str
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A line of a namespace's manifest: a sealed segment stands for a range of the log.

    Every output of the namespace with first_lsn <= id <= last_lsn is in the file or has a tombstone; ranges
    of a namespace never overlap. ``outputs`` and ``tokens`` count both, so what is left of the range is what
    they say less its tombstones.
    """

    name: str  #: of the file, in the store's folder of segments
    first_lsn: OutputId
    last_lsn: OutputId
    outputs: int
    tokens: int  #: of those outputs
    file_bytes: int

    def covers(self, output_id: OutputId) -> bool:
        return self.first_lsn <= output_id <= self.last_lsn


@dataclass(frozen=True, slots=True)
class StoreStats:
    """What a store holds. Bytes are what the files or arrays really take."""

    outputs: int
    payloads: int
    tokens: int
    bytes_used: int
    bytes_limit: int
    last_lsn: int
    expiry_grace_seconds: float = 0.0  #: left of the grace period of :mod:`suffixsvc.clock`
    reopened: int = 0  #: times that the file was opened again after an I/O error
    defects: int = 0  #: exceptions in the store's thread that nothing foresaw; each is in the log


class Store(Protocol):
    """The durable log of outputs: the truth that every index is derived from.

    Thread-safe. Every method raises :class:`suffixsvc.errors.StoreError` or a subclass. Namespace
    paths arrive validated (at most 200 bytes, see ``suffixsvc.config.validate_namespace``).
    """

    def add_namespace(self, record: NamespaceRecord) -> NamespaceRecord:
        """Create the namespace or return what is there. An empty fingerprint there is filled in;
        a different one raises TokenizerMismatchError. Durable when it returns."""

    def namespaces(self) -> list[NamespaceRecord]:
        """All namespaces, ordered by path."""

    def delete_namespace(self, path: str, between: Callable[[], object] | None = None) -> int:
        """Delete a namespace durably, with its outputs, states, segments' records and tombstones; returns how
        many outputs it had. From its start on the path is unknown, and cannot be made again until it is done.

        In bounded transactions: after an error the rest is deleted by calling it again, or at the next open.
        The ids are not used again, and neither is what the store calls the namespace inside: an output, a
        segment or a state of one that was deleted never appears in a later one of the same path.
        UnknownNamespaceError if it is not there.

        Args:
            between: called in this thread between two transactions, so that the caller can deal with what the
                deletion listener has got instead of collecting all of it.
        """

    def append(
        self,
        outputs: Sequence[NewOutput],
        create: Sequence[NamespaceRecord] = (),
        decided: Callable[[list[OutputId] | None], None] | None = None,
    ) -> Future[list[OutputId]]:
        """Log outputs, all or none, in order. The future is done once they are durable (group commit)
        and then holds their ids; StoreFullError and others arrive through it. Very many take several
        transactions: parts of them can be read before the future is done, and other appends come between.

        An output whose uuid is in its namespace already is not logged again: its id is the one of the output
        that is there, and :func:`repeated_in` tells which ones those are. InvalidInputError if the one that
        is there has other tokens.

        Args:
            create: namespaces that are made, or given their fingerprint, in the same transaction, as by
                :meth:`add_namespace`.
            decided: called on the store's thread, before the future is done: after every transaction with the
                ids that it kept, before the deletion listener gets what this commit or a later one deleted;
                once with None where the rest is not kept. What was kept before goes to the deletion listener
                when it is taken back. It must be short and must not wait for the store.
        """

    def set_deletion_listener(self, listener: Callable[[Sequence[StoredOutput]], None]) -> None:
        """Call ``listener`` after every commit that deleted occurrences, with these.

        On the store's thread, in the order of the commits, before the calls return that the commit was for.
        It must be short and must not wait for the store. At most one; it replaces the one before.
        """

    def barrier(self) -> None:
        """Returns when the listener has had what was deleted by commits before this call."""

    def forget(self, namespace: str, output_id: OutputId) -> StoredOutput:
        """Delete one occurrence durably and return what it was; the payload goes with its last
        occurrence. UnknownOutputError if it is not there."""

    def forget_many(self, namespace: str, output_ids: Sequence[OutputId]) -> list[StoredOutput]:
        """Delete durably those of the occurrences that are there; returns them, ordered by id. Not atomic:
        a crash in between leaves some of them."""

    @property
    def clock(self) -> StoreClock:
        """What stamps occurrences, and what their TTL is counted in."""

    def expire(self, now: float | None = None) -> list[StoredOutput]:
        """Delete durably occurrences whose TTL has passed, in one transaction; returns them. At most as many
        as a transaction takes: call it until it returns none. ``now`` (seconds, in store time) instead of the
        moment of the call leaves the grace period of :mod:`suffixsvc.clock` out."""

    def get(self, output_id: OutputId) -> StoredOutput:
        """One occurrence. UnknownOutputError if it is not there."""

    def scan(self, namespace: str | None = None, *, from_lsn: int = 0) -> Iterator[StoredOutput]:
        """Occurrences with id >= from_lsn in id order, of one namespace or of all. A consistent
        snapshot of the moment the first one is drawn."""

    @property
    def node_id(self) -> int:
        """64 bits, drawn when the store was made: rows say which node wrote them. 0: the folder is of a
        release before there were any, and had no room for one."""

    def find(self, namespace: str, uuid: bytes) -> OutputId | None:
        """The id of the output of this uuid, or None."""

    def incomplete(self, session_id: str) -> list[IncompleteOutput]:
        """Incomplete outputs that sessions of this id left, in id order. Its cost does not depend on how many
        outputs there are."""

    def outline(self, namespace: str) -> Iterator[OutputOutline]:
        """The namespace's occurrences in id order, without their tokens. Those written or deleted while it
        runs may be there or not."""

    def output_ids(
        self, namespace: str, first: OutputId, last: OutputId, limit: int | None = None
    ) -> list[OutputId]:
        """Ids of the namespace's occurrences in first..last (both included), ascending, at most ``limit``."""

    # The manifest: which ranges of the log are in sealed segments. Deleting an occurrence in such a range
    # leaves a tombstone in the same transaction, until a new segment leaves it out.

    @property
    def segment_folder(self) -> Path | None:
        """Where segment files are; it need not exist. None: nothing outlives the process, so seal nothing."""

    def segments(self, namespace: str) -> list[SegmentRecord]:
        """The namespace's manifest, ordered by range."""

    def tombstones(self, namespace: str) -> dict[OutputId, int]:
        """Deleted occurrences that a segment still holds, and their tokens, ordered by id."""

    def add_segment(
        self, namespace: str, name: str, file_bytes: int, outputs: Mapping[OutputId, int]
    ) -> SegmentRecord:
        """Enter a segment of these outputs (id -> tokens) into the manifest, durably.

        Its range is from the lowest to the highest of them. Those deleted since they were read get their
        tombstone now. ManifestError, nothing changed: the log has further outputs in that range, or another
        segment overlaps it.
        """

    def replace_segments(
        self, namespace: str, names: Sequence[str], name: str, file_bytes: int, left_out: Sequence[OutputId]
    ) -> SegmentRecord:
        """Enter one segment in the place of neighbours, durably; tombstones of ``left_out`` go.

        ManifestError, nothing changed: they are no neighbours, or one is not there.
        """

    def drop_segments(self, namespace: str, names: Sequence[str]) -> None:
        """Take segments and the tombstones of their ranges out of the manifest, durably."""

    def put_state(self, namespace: str, name: str, value: bytes) -> None:
        """Keep a small derived blob (learned tables) with a namespace. Durable when it returns."""

    def get_state(self, namespace: str, name: str) -> bytes | None:
        """The blob last put, or None."""

    def failure(self) -> StoreError | None:
        """Why appends fail at this moment: no room, an I/O error, closed. None: they work, as far as known.

        A store recovers by itself: from a lack of room when there is room again, from an I/O error when the
        disk answers again. It looks from time to time, and with every write.
        """

    def stats(self) -> StoreStats: ...

    def check(self) -> None:
        """Walk everything; StoreCorruptError names the first broken invariant."""

    def close(self) -> None:
        """Flush what is pending, release the lock. Idempotent."""


@runtime_checkable
class BackendSession(Protocol):
    """One generation that asks for drafts: the embedded engine's Session and the client's."""

    def step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int = 16,
        verify_cost: VerifyCost = 0.02,
        tree: bool | str = False,
        at: int | None = None,
        verified: Verified | tuple[int, int, int] | None = None,
    ) -> Draft:
        """Append what the model wrote, learn from it, draft again. See ``suffixsvc.index.Session.step``."""

    def append_context(self, token_ids: TokenIds) -> None:
        """Append text the model did not write (tool results, the next user turn)."""

    def close(self, commit: bool = True) -> OutputId | None:
        """End the session. The id of the output kept, or None when nothing was."""


class BackendNamespace(Protocol):
    """A namespace of a backend."""

    def open_session(
        self,
        prompt_token_ids: TokenIds,
        output_token_ids: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
    ) -> BackendSession: ...


@runtime_checkable
class Backend(Protocol):
    """What the speculation driver drafts from: the embedded engine (SuffixCache) or the client."""

    def namespace(self, path: str, tokenizer: str | None = None) -> BackendNamespace: ...

    def close(self) -> None: ...
