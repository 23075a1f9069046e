"""Values of a log that is followed: positions, changes after one, and the contents of a namespace at one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suffixsvc.types import OutputId, SegmentRecord, StoredOutput


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A position in one log: everything up to an LSN.

    Attributes:
        node_id: of the log.
        lsn: of the last output or deletion.
        run: random number of the run that assigned it, 0 if that is not known: a restored backup assigns the
            same LSNs again. A run is the time from an open of the log to its close.
    """

    node_id: int
    lsn: OutputId
    run: int


@dataclass(frozen=True, slots=True)
class Deletion:
    """A deletion in the log.

    Attributes:
        generation: of its namespace, see :class:`LogChanges`.
        output_id: the output; 0 for the namespace with all its outputs.
        uuid: of the output.
    """

    generation: int
    output_id: OutputId
    uuid: bytes


@dataclass(frozen=True, slots=True)
class LogChanges:
    """What a log holds after a position, for a reader that follows it.

    Applying it twice changes nothing, and so does the deletion of an output that the reader never had: an
    output that was deleted since is left out.

    Attributes:
        outputs: in the order of their ids, with the generations of their namespaces. The generation is a
            number of one namespace: after a deletion its path gets a greater one.
        deletions: in their order; they follow the outputs.
        position: the changes are complete up to here.
    """

    outputs: Sequence[tuple[int, StoredOutput]]
    deletions: Sequence[Deletion]
    position: LogPosition


@dataclass(frozen=True, slots=True)
class SealedContents:
    """Segments of a namespace, ordered by range, and the outputs in them that are deleted."""

    segments: tuple[SegmentRecord, ...] = ()
    deleted: tuple[OutputId, ...] = ()


@dataclass(frozen=True, slots=True)
class NamespaceContents:
    """What a namespace holds at a position.

    Attributes:
        path, tokenizer: of the namespace; the fingerprint is empty if none is bound.
        generation: see :class:`~suffixsvc.types.LogChanges`; 0 for a namespace that is not in the log yet.
        position: changes after it complete the contents.
        sealed: its segments.
        learned: what drafting has learned, as ``suffixsvc.core.Learner`` saves it.
    """

    path: str
    tokenizer: str
    generation: int
    position: LogPosition
    sealed: SealedContents
    learned: bytes


def covers(segments: Sequence[SegmentRecord], before: Sequence[SegmentRecord]) -> bool:
    """Whether every range of an earlier manifest is in one of a later manifest."""
    return all(
        any(each.first_lsn <= old.first_lsn and old.last_lsn <= each.last_lsn for each in segments)
        for old in before
    )
