"""What the driver's loops need of a target model; ``targets.llama`` and ``targets.parallel`` have
llama.cpp's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from suffixsvc.types import TokenIds
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.sampling import Sampling

__all__ = [
    "Batch",
    "LaneStep",
    "ParallelTarget",
    "Prefilled",
    "StopRule",
    "Target",
    "TargetShape",
    "Verification",
]

#: sees everything written so far, the newest token last; True ends the generation there
StopRule = Callable[[Sequence[int]], bool]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch the target computed: ``token_ids`` at positions ``start``, ``start + 1``, ...

    Attributes:
        parents: of a tree, of all tokens but the first, which is the root.
        kept: of a tree, which of these stayed, as far as the text had come then.
    """

    start: int
    token_ids: tuple[int, ...]
    parents: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """What beginning a prompt took.

    Attributes:
        reused: tokens whose KV was there already.
        computed: tokens that had to be prefilled.
        history: every batch that the sequence's KV comes from, oldest first; a later one overwrites
            what an earlier one wrote at the same positions. Replaying them gives the same bits.
    """

    reused: int
    computed: int
    history: tuple[Batch, ...] = ()


@dataclass(frozen=True, slots=True)
class Verification:
    """What a step wrote. See :class:`suffixsvc_driver.events.Verified`."""

    emitted: tuple[int, ...]
    accepted: int
    stopped: bool = False
    replay: int = 0


class TargetShape(Protocol):
    """What a target can do."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def context_size(self) -> int:
        """Tokens one sequence can hold."""

    @property
    def max_width(self) -> int:
        """Tokens one verification step can take, the last real one included."""

    @property
    def eog_ids(self) -> frozenset[int]:
        """Ids that end a generation."""

    @property
    def replays(self) -> bool:
        """Whether accepted tokens have to be computed again, with the next step, where a draft was
        accepted in part (recurrent states without snapshots)."""

    @property
    def max_branches(self) -> int:
        """Leaves that a drafted tree may have; 1: chains only."""

    def chooser(self, sampling: Sampling, prompt_ids: TokenIds) -> Chooser:
        """What chooses the tokens of one generation behind this prompt.

        Raises InvalidConfigError for a bias outside the vocabulary, GrammarError for a grammar that is
        malformed or that this model cannot write."""


class Target(TargetShape, Protocol):
    """A model that verifies drafts. One generation at a time; not thread-safe."""

    def begin(self, prompt_ids: TokenIds) -> Prefilled:
        """Prefill all but the last prompt token, reusing KV of the longest common prefix.

        Raises LimitExceededError for a prompt longer than the context, InvalidTokensError for an
        empty one or ids outside the vocabulary."""

    def verify(
        self,
        drafted: Sequence[int],
        choices: Sampling | Chooser,
        max_emit: int,
        stop: StopRule | None = None,
        parents: Sequence[int] = (),
    ) -> Verification:
        """Compute [last token, *drafted] in one batch, keep the drafted tokens that are the target's
        own choices and one token more, at most ``max_emit`` in all, nothing behind an end token. Settings
        in place of a chooser will do where they need no text.

        ``parents`` makes a tree of the drafted tokens (see :mod:`suffixsvc_driver.tree`): those on one path
        from the root are kept. Only passed where ``max_branches`` is above 1."""


@dataclass(frozen=True, slots=True)
class LaneStep:
    """What one lane has verified in a batch: the arguments of :meth:`Target.verify`."""

    lane: int
    drafted: tuple[int, ...]
    choices: Sampling | Chooser
    max_emit: int
    stop: StopRule | None = None
    parents: tuple[int, ...] = ()


class ParallelTarget(TargetShape, Protocol):
    """A model that verifies the drafts of several generations in one batch, each on a lane of its own. Not
    thread-safe. ``max_width`` is that of the whole batch, the other properties are those of one lane."""

    @property
    def lanes(self) -> int:
        """Generations at once; at most ``max_width``."""

    def lane_for(self, prompt_ids: TokenIds, free: Sequence[int]) -> int:
        """Which of the lanes in ``free`` a prompt had best go to. Raises as :meth:`begin`."""

    def begin(self, lane: int, prompt_ids: TokenIds) -> int:
        """A generation starts on a lane that none runs on; returns how many tokens' KV was there already.
        :meth:`prefill` must be called until it says that all is there.

        Raises LimitExceededError for a prompt longer than the context, InvalidTokensError for an empty one or
        ids outside the vocabulary. No other lane is affected."""

    def prefill(self, lane: int) -> bool:
        """Compute a batch of what is missing of the lane's prompt; whether all but its last token is
        there."""

    def verify_many(self, steps: Sequence[LaneStep]) -> list[Verification | Exception]:
        """Verify each lane's draft, all in one batch; no lane twice. An exception stands for a lane whose
        tokens could not be chosen (its stop rule raised, say): it is as before the step, the others go on.

        Raises LimitExceededError if the batch is too wide or a lane full, ModelError if llama.cpp failed;
        then every lane is as before."""
