"""Outputs and the records of the store: what a model wrote, namespaces, segments, statistics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

TokenArray = npt.NDArray[np.int32]
#: what callers may pass as tokens: a 1-D integer array or a sequence of ints, each in 0 .. 2**31 - 1
TokenIds = npt.NDArray[Any] | Sequence[int]
Labels = Mapping[str, str]
#: log sequence number of the stored occurrence: unique in a data folder, never reused
OutputId = int


@dataclass(frozen=True, slots=True)
class NewOutput:
    """An output to be stored.

    Attributes:
        namespace: path of its namespace.
        token_ids: int32[n], what the model wrote; n >= 1.
        segment_lens: lengths of the runs between which context (tool results, user turns) was appended;
            sums to n. Runs of different segments were not adjacent in the model's context.
        prompt_tail: int32[<= 64], the tokens before the first output token; context only, never drafted.
        labels: stored with the output.
        incomplete: the session expired or was drained before its model finished.
        ttl_seconds: time to live, counted from the write; 0 = no expiry.
        corpus: part of a pinned corpus.
        uuid: 16 bytes that identify the output, chosen by its writer; b"": the store generates one. An
            output whose uuid exists in its namespace is not logged again.
        session_id: session that wrote it; "" for bulk loads and sessions without an id.
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
    """The ids of an append, one per output.

    Attributes:
        repeated: positions of the outputs that were in the log before the append.
    """

    def __init__(self, ids: Iterable[OutputId] = (), repeated: Iterable[int] = ()) -> None:
        super().__init__(ids)
        self.repeated: list[int] = list(repeated)


def repeated_in(ids: Sequence[OutputId]) -> Sequence[int]:
    """Positions of the outputs of an append that were in the log before it."""
    return ids.repeated if isinstance(ids, AppendedIds) else ()


@dataclass(frozen=True, slots=True)
class IncompleteOutput:
    """An output of a session that expired or was drained, looked up by the session's id."""

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
    """The fields of a :class:`StoredOutput` that eviction needs; cheap to read in bulk."""

    output_id: OutputId
    written_at: float  #: seconds since the epoch, in store time
    tokens: int
    ttl_seconds: int
    corpus: bool


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace in the store. ``tokenizer`` is its fingerprint, empty before one is bound."""

    path: str
    tokenizer: str = ""


@dataclass(frozen=True, slots=True)
class SegmentRecord:
    """A row of a namespace's manifest: the range of the log that a sealed segment holds.

    Every output of the namespace with first_lsn <= id <= last_lsn is in the file or has a tombstone; ranges
    of a namespace never overlap. ``outputs`` and ``tokens`` count both, so the live part of the range is
    these counts minus its tombstones.
    """

    name: str  #: of the file, in the store's folder of segments
    first_lsn: OutputId
    last_lsn: OutputId
    outputs: int
    tokens: int  #: of those outputs
    file_bytes: int

    def covers(self, output_id: OutputId) -> bool:
        """Whether an output id is in the range of the segment."""
        return self.first_lsn <= output_id <= self.last_lsn


@dataclass(frozen=True, slots=True)
class StoreStats:
    """Statistics of a store. Bytes are the sizes that the files or arrays have."""

    outputs: int
    payloads: int
    tokens: int
    bytes_used: int
    bytes_limit: int
    last_lsn: int
    expiry_grace_seconds: float = 0.0  #: remainder of the grace period of :mod:`suffixsvc.clock`
    reopened: int = 0  #: times that the file was opened again after an I/O error
    defects: int = 0  #: unexpected exceptions in the store's thread; each is logged
