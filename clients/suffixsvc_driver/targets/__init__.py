"""Interface of a target model, as the driver's loops use it.

``targets.single`` and ``targets.parallel`` implement it with llama.cpp.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from suffixsvc.types import TokenIds
from suffixsvc_driver.drafts.events import StepResult, TokenLogprobs
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling

#: called with all emitted tokens, the newest last; True ends the generation there
StopRule = Callable[[Sequence[int]], bool]
#: lane, drafted tokens and parents of one generation's part of a batch
Shape = tuple[int, tuple[int, ...], tuple[int, ...]]


class Batch(NamedTuple):
    """One batch that the target computed: ``token_ids`` at positions ``start``, ``start + 1``, ...

    Attributes:
        parents: parents of the last tokens if these are a tree; -1 = the token before them, the root.
        kept: indices of the tree's tokens that were kept.
    """

    start: int
    token_ids: tuple[int, ...]
    parents: tuple[int, ...] = ()
    kept: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Result of the prefill of a prompt.

    Attributes:
        reused: tokens whose KV was cached.
        computed: tokens that were computed.
        history: every batch that the sequence's KV comes from, oldest first; a later one overwrites
            the positions of an earlier one. Replaying them gives the same bits.
    """

    reused: int
    computed: int
    history: tuple[Batch, ...] = ()


class TargetShape(Protocol):
    """Capabilities of a target."""

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""

    @property
    def context_size(self) -> int:
        """Capacity of one sequence in tokens."""

    @property
    def max_width(self) -> int:
        """Tokens of one verification step, the last real one included."""

    @property
    def eog_ids(self) -> frozenset[int]:
        """Ids that end a generation."""

    @property
    def replays(self) -> bool:
        """Whether accepted tokens are computed again in the next step if a draft was accepted in part
        (recurrent states without snapshots)."""

    @property
    def max_branches(self) -> int:
        """Largest number of leaves of a drafted tree; 1: chains only."""

    def sampler(self, sampling: Sampling, prompt_ids: TokenIds) -> Sampler:
        """Return the sampler of one generation after this prompt.

        Raises:
            InvalidConfigError: a bias for a token outside the vocabulary.
            GrammarError: a grammar that is malformed or that this vocabulary cannot produce.
        """


class Target(TargetShape, Protocol):
    """A model that verifies drafts of one generation at a time. Not thread-safe."""

    def begin(self, prompt_ids: TokenIds, *, principal: str = "") -> Prefilled:
        """Prefill all but the last prompt token, reusing the KV of the longest common prefix.

        Args:
            principal: the owner of the prompt; only KV of the same principal is reused.

        Raises:
            LimitExceededError: a prompt longer than the context.
            InvalidTokensError: an empty prompt, or ids outside the vocabulary.
        """

    def verify(
        self,
        drafted: Sequence[int],
        choices: Sampling | Sampler,
        max_emit: int,
        stop: StopRule | None = None,
        parents: Sequence[int] = (),
    ) -> StepResult:
        """Verify a draft: compute [last token, *drafted] in one batch, emit the drafted tokens that the
        target samples itself and one token more, at most ``max_emit``, none after an end token.

        Args:
            choices: the generation's sampler; sampling settings if they need no text.
            stop: see :data:`StopRule`.
            parents: makes a tree of the drafted tokens (:mod:`~suffixsvc_driver.drafts.tree`): those on one
                path from the root are kept. Empty if ``max_branches`` is 1.
        """


class LaneStep(NamedTuple):
    """Draft of one lane in a shared batch: the arguments of :meth:`Target.verify`."""

    lane: int
    drafted: tuple[int, ...]
    choices: Sampling | Sampler
    max_emit: int
    stop: StopRule | None = None
    parents: tuple[int, ...] = ()


class ParallelTarget(TargetShape, Protocol):
    """A model that verifies the drafts of several generations in one batch, each on its own lane. Not
    thread-safe. ``max_width`` is that of the whole batch, the other properties are those of one lane."""

    @property
    def lanes(self) -> int:
        """Number of concurrent generations; at most ``max_width``."""

    @property
    def shares_prefixes(self) -> bool:
        """Whether a prompt reuses the KV of a common prefix on another lane."""

    def check(self, prompt_ids: TokenIds) -> None:
        """Validate a prompt. Thread-safe.

        Raises:
            LimitExceededError: a prompt longer than the context.
            InvalidTokensError: an empty prompt, or ids outside the vocabulary.
        """

    def lane_for(self, prompt_ids: TokenIds, free: Sequence[int], principal: str = "") -> int:
        """Return the best of the ``free`` lanes for a prompt. Raises the errors of :meth:`check`."""

    def missing(self, lane: int, prompt_ids: Sequence[int], principal: str = "") -> int:
        """Return the number of tokens that would have to be computed if :meth:`begin` was called now."""

    def begin(self, lane: int, prompt_ids: TokenIds, principal: str = "", *, fresh: bool = False) -> int:
        """Start a generation on an unused lane; return the number of tokens whose KV was cached. Call
        :meth:`prefill` or :meth:`score` until none is missing. A generation ends without a call: its lane may
        begin another one at any time, also before its prompt is complete.

        Args:
            principal: the owner of the prompt; only KV of the same principal is reused.
            fresh: reuse nothing, as :meth:`score` requires for all of a prompt.

        Raises:
            The errors of :meth:`check`. No other lane is affected.
        """

    def park(self, lanes: Iterable[int]) -> None:
        """Take the KV of these lanes, which have no generation, out of the memory that all lanes share, where
        it slows down their steps; later prompts reuse it. May do nothing."""

    def prefill(self, lane: int) -> int:
        """Compute one batch of the lane's missing prompt tokens; return how many are missing then, the last
        one not counted."""

    def score(self, lane: int, count: int) -> tuple[int, list[TokenLogprobs]]:
        """Compute one batch of the lane's missing prompt tokens, of at most ``max_width``, with logits.

        Args:
            count: number of most probable tokens to report at each position.

        Returns:
            The number of missing tokens, as :meth:`prefill`, and the log probabilities of the tokens after
            the computed ones: over a whole prompt, of all but its first token.
        """

    def verify_many(self, steps: Sequence[LaneStep]) -> list[StepResult | Exception]:
        """Verify each lane's draft, all in one batch, each lane at most once. If the tokens of a lane cannot
        be sampled (its stop rule raised, say), its result is the exception, and the lane is unchanged.

        Raises:
            LimitExceededError: the batch is too wide, or a lane is full. Every lane is unchanged.
            ModelError: llama.cpp failed. Every lane is unchanged.
        """
