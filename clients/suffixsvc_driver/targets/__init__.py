"""What the driver's loop needs of a target model; ``targets.llama`` has the llama.cpp one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from suffixsvc.types import TokenIds
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.sampling import Sampling

__all__ = ["Batch", "Prefilled", "StopRule", "Target", "Verification"]

#: sees everything written so far, the newest token last; True ends the generation there
StopRule = Callable[[Sequence[int]], bool]


@dataclass(frozen=True, slots=True)
class Batch:
    """One batch the target computed: ``token_ids`` at positions ``start``, ``start + 1``, ..."""

    start: int
    token_ids: tuple[int, ...]


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


class Target(Protocol):
    """A model that verifies drafts. One generation at a time; not thread-safe."""

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

    def begin(self, prompt_ids: TokenIds) -> Prefilled:
        """Prefill all but the last prompt token, reusing KV of the longest common prefix.

        Raises LimitExceededError for a prompt longer than the context, InvalidTokensError for an
        empty one or ids outside the vocabulary."""

    def chooser(self, sampling: Sampling, prompt_ids: TokenIds) -> Chooser:
        """What chooses the tokens of one generation behind this prompt.

        Raises InvalidConfigError for a bias outside the vocabulary, GrammarError for a grammar that is
        malformed or that this model cannot write."""

    def verify(
        self,
        drafted: Sequence[int],
        choices: Sampling | Chooser,
        max_emit: int,
        stop: StopRule | None = None,
    ) -> Verification:
        """Compute [last token, *drafted] in one batch, keep the drafted tokens that are the target's
        own choices and one token more, at most ``max_emit`` in all, nothing behind an end token. Settings
        in place of a chooser will do where they need no text."""
