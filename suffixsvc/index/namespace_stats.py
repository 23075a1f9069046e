"""Statistics of a namespace, the memory that its outputs are charged for, and a snapshot for checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Self

from suffixsvc.core import StepCounters
from suffixsvc.index.output_size import OutputSize


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
    #: of num_drafts, those with a token of the session's own text, and of the namespaces that it reads
    num_session_drafts: int
    num_namespace_drafts: int
    num_session_draft_tokens: int  #: of num_draft_tokens
    num_namespace_draft_tokens: int
    num_session_accepted_tokens: int  #: of num_accepted_tokens, as far as a draft of the session had them
    num_namespace_accepted_tokens: int
    num_no_context: int  #: steps without a draft: no context of the position occurred before
    num_not_worth_cost: int  #: steps without a draft: no token was probable enough for its cost
    num_over_limit: int  #: steps without a draft: the allowed length was 0
    num_off: int  #: steps without a draft: the policy of the namespace turned drafting off
    expected_tokens: float  #: expected number of accepted tokens of all drafts
    verify_steps: float  #: cost of the executed steps beyond that of plain steps, in plain steps
    avoided_seconds: float  #: time of the plain steps that accepted tokens replaced
    verify_seconds: float  #: time of verify_steps
    drafting_off: int  #: 1: the policy turns drafting off; of a cache: the number of such namespaces
    #: principals that a published run needs; 0: readers without a full grant draft from everything, too
    min_principals: int = 0
    published_runs: int = 0
    published_tokens: int = 0  #: of these runs
    last_published: float = 0.0  #: time of their last build, seconds since the epoch; 0: there was none


class StepCounts(NamedTuple):
    """Counters of steps: of a namespace, or of a follower that drafts from it.

    The fields are those of :class:`NamespaceStats`, and of ``suffixsvc.core.StepCounters``.
    """

    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_session_drafts: int = 0
    num_namespace_drafts: int = 0
    num_session_draft_tokens: int = 0
    num_namespace_draft_tokens: int = 0
    num_session_accepted_tokens: int = 0
    num_namespace_accepted_tokens: int = 0
    num_no_context: int = 0
    num_not_worth_cost: int = 0
    num_over_limit: int = 0
    num_off: int = 0
    expected_tokens: float = 0.0
    verify_steps: float = 0.0
    avoided_seconds: float = 0.0
    verify_seconds: float = 0.0

    @classmethod
    def of(cls, counters: StepCounters | NamespaceStats) -> Self:
        """The values of the core's counters, or of statistics."""
        return cls._make(getattr(counters, name) for name in cls._fields)

    def plus(self, other: StepCounts) -> StepCounts:
        """The sums of two."""
        return StepCounts._make(a + b for a, b in zip(self, other, strict=True))

    def since(self, earlier: StepCounts) -> StepCounts:
        """What was counted after ``earlier``; floats are not negative by rounding."""
        return StepCounts._make(max(a - b, 0) for a, b in zip(self, earlier, strict=True))


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

    #: the tails and attributes of sealed outputs are in it once the order of eviction is read
    size: OutputSize
    #: charge in the log, share of the hot index (memory in use, without spare memory and the texts of live
    #: sessions), and share of the segment files
    bytes: int
