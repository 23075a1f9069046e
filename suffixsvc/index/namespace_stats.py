"""Statistics of a namespace, the memory that its outputs are charged for, and a snapshot for checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

#: charge of an output in the log: its row (with the prompt's tail and labels), keys and counters, and bytes
#: per token; identical outputs are charged in full, although they share a payload
LOG_BYTES_PER_OUTPUT = 512
LOG_BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class NamespaceStats:
    """Contents and draft counters of a namespace. Counters start at zero with the process."""

    outputs: int  #: stored outputs
    tokens: int  #: tokens of those outputs
    sessions: int  #: live sessions
    index_bytes: int  #: memory, the share of sealed segments included
    index_nodes: int
    segments: int  #: sealed segments
    segment_bytes: int  #: bytes of their files, which are mapped
    hot_tokens: int  #: tokens of the outputs that are not sealed
    num_steps: int  #: steps that requested a draft
    num_drafts: int  #: steps answered with at least one token
    num_draft_tokens: int
    num_accepted_tokens: int
    held_bytes: int  #: bytes of the outputs, in log and index: see docs/limits.md
    limit_bytes: int  #: limit of held_bytes; 0 = no limit
    evicted_outputs: int  #: outputs deleted to keep the limit
    refused_outputs: int  #: outputs of sessions that were not stored because of the limit
    session_bytes: int  #: memory of the live sessions


class ReportedCounts(NamedTuple):
    """Counters of drafts that others took from a namespace, as its followers."""

    steps: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0


class ConsistencySnapshot(NamedTuple):
    """Counts of a hot index, and the counts that it should have, at one moment.

    Equal snapshots mean that nothing changed between them.
    """

    changes: int
    appended: int
    #: positions in the native index
    positions: int
    #: positions of live sessions
    live: int
    #: outputs of the log that are not sealed, as counted by the namespace, and their tokens and positions
    outputs: int
    tokens: int
    logged: int


class Usage(NamedTuple):
    """Outputs of a namespace and the bytes that they are charged for."""

    outputs: int
    tokens: int
    #: charge in the log, share of the hot index (memory in use, without spare memory and the texts of live
    #: sessions), and share of the segment files
    bytes: int
