"""Events and decisions of the driver's state machine.

    event                                   decision
    Begin                                   QueryLayer(layer, budget)   answered by LayerAnswer or LayerFailed
    LayerAnswer(layer, draft, seconds)      Verify(token_ids)           answered by StepResult
    LayerFailed(layer, reason)              Finish(reason)              end of the generation
    StepResult(emitted, accepted, width)

In a generation that shares its batches (``Begin.batched``), the loop starts each step and grants a part
of the batch:

    Begin, StepResult                             Wait                     answered by Next
    Next(other_tokens, room)                      QueryLayer ... Propose   answered by BudgetGrant
    BudgetGrant(length, padding, other_tokens)    Verify                   answered by StepResult

Every event has exactly one decision, and equal sequences of events have equal decisions.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from suffixsvc.types import Draft, DraftSource, FloatArray, Verified
from suffixsvc_driver.drafts.tree import follow
from suffixsvc_driver.settings.text_kind import ContentType

_NONE: Final = int(DraftSource.NONE)


class FinishReason(enum.StrEnum):
    """Why a generation ended."""

    #: the model emitted an end-of-generation token, or the caller's stop rule held
    STOP = "stop"
    #: ``max_tokens`` tokens were emitted
    LENGTH = "length"
    #: the target's context is full
    CONTEXT = "context"
    #: the caller ended it
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Begin:
    """Start of a generation.

    Attributes:
        prompt_length: tokens of the prompt, >= 1.
        max_tokens: largest number of tokens to emit.
        context_size: tokens that the target can hold, prompt included.
        vocab_size: ids at or above it are invalid.
        eog_ids: end-of-generation tokens.
        max_width: tokens that the target can verify in one batch.
        replays: the target recomputes the accepted tokens of a partially accepted draft.
        content: kind of the text, for controllers that depend on it.
        max_branches: leaves that the target accepts in a tree; 1 for chains only.
        batched: the generation shares its batches: the loop starts each step (:class:`Next`) and limits
            its draft (:class:`BudgetGrant`).
    """

    prompt_length: int
    max_tokens: int
    context_size: int
    vocab_size: int
    eog_ids: frozenset[int] = frozenset()
    max_width: int = 1 << 20
    replays: bool = False
    content: ContentType = ContentType.GENERAL
    max_branches: int = 1
    batched: bool = False


@dataclass(slots=True, eq=False)
class LayerAnswer:
    """Answer of a layer; invalid parts of its draft are removed.

    Attributes:
        layer: name of the layer.
        draft: the draft.
        seconds: of the query.
    """

    layer: str
    draft: Draft
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class LayerFailed:
    """Failure of a query, treated as an empty draft.

    Attributes:
        layer: name of the layer.
        reason: for logs.
        seconds: of the query.
    """

    layer: str
    reason: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class TokenLogprobs:
    """Log probabilities at one position, natural logarithms.

    Attributes:
        logprob: of the emitted token.
        top_ids: int64[n], the most probable tokens, in order; the lower id first among equals.
        top_logprobs: float32[n] of these.
    """

    logprob: float
    top_ids: npt.NDArray[np.int64]
    top_logprobs: FloatArray


class StepResult(NamedTuple):
    """Result of a target step. The target leaves ``width``, ``seconds`` and ``content`` to the loop.

    Attributes:
        emitted: emitted tokens in order: the accepted ones and the bonus token, truncated at the end of the
            generation. Never empty.
        accepted: drafted tokens (padding included) that the target agreed with, before truncation.
        width: tokens of the batch, the newest emitted token included.
        stopped: the caller's stop rule held at the last emitted token.
        replay: tokens that the next batch recomputes before the newest one.
        seconds: of the step; 0 if not measured. Not used in a batched generation.
        content: kind of the text; None if unchanged.
        logprobs: of each emitted token; empty unless the sampling settings ask for them.
    """

    emitted: tuple[int, ...]
    accepted: int
    width: int = 0
    stopped: bool = False
    replay: int = 0
    seconds: float = 0.0
    content: ContentType | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class Next:
    """Start of the next step of a batched generation.

    Attributes:
        other_tokens: tokens of other generations in the batch, without drafts.
        room: largest number of tokens with logits that this generation may have in the batch, its newest one
            included.
    """

    other_tokens: int
    room: int


@dataclass(frozen=True, slots=True)
class BudgetGrant:
    """Part of the batch that a batched generation may use.

    Attributes:
        length: number of leading proposed tokens to send.
        padding: filler tokens after them, to reach a cheaper width.
        other_tokens: tokens of other generations in the batch.
    """

    length: int
    padding: int
    other_tokens: int


Event = Begin | LayerAnswer | LayerFailed | StepResult | Next | BudgetGrant


class QueryLayer(NamedTuple):
    """Query of a layer.

    Attributes:
        layer: name of the layer.
        budget: largest number of tokens; 0 only passes on the emitted tokens.
        verified: result of the last step; None before the first.
        after: drafted tokens that the layer shall continue.
        suggested: tokens that other layers drafted to follow ``after``.
    """

    layer: str
    budget: int
    verified: Verified | None = None
    after: tuple[int, ...] = ()
    suggested: tuple[int, ...] = ()


class Considered(NamedTuple):
    """Report on a layer in a step.

    Attributes:
        layer: name of the layer.
        budget: queried tokens; 0 if it was not queried for any.
        why: reason why it contributes nothing, as text.
        token_ids: drafted tokens.
        probs: calibrated P(accepted | all tokens before it accepted).
        length: tokens of the best prefix; of trees, of the best subtree of all answers so far.
        width: tokens of its batch.
        gain: its expected gain, tokens.
        parents: of a tree, index of each token's parent.
        how: where its answer continues the draft, or what was suggested to it, as text.
    """

    layer: str
    budget: int
    why: str = ""
    token_ids: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    length: int = 0
    width: int = 1
    gain: float = 0.0
    parents: tuple[int, ...] = ()
    how: str = ""


class Verify(NamedTuple):
    """Verification of the newest emitted token and a draft by the target.

    Attributes:
        token_ids: drafted tokens, then ``padding`` filler tokens.
        sources: DraftSource number of each token; NONE for padding.
        probs: calibrated P(accepted | parent accepted) of each token; 0 for padding.
        layer: layer of the first token; empty for a plain step.
        padding: number of filler tokens, which only reach a cheaper width.
        continued_by: layer of the tokens from ``continued_at`` on; empty if there is none.
        continued_at: tokens of the first layer if another one continues them.
        considered: reports on the layers of this step, for people.
        rate: lambda of this step, tokens per unit of cost, for people.
        parents: of a tree, index of each token's parent, -1 for the root; empty for a chain.
        layers: layer of each token if the draft was merged from several layers.
    """

    token_ids: tuple[int, ...] = ()
    sources: tuple[int, ...] = ()
    probs: tuple[float, ...] = ()
    layer: str = ""
    padding: int = 0
    continued_by: str = ""
    continued_at: int = 0
    considered: tuple[Considered, ...] = ()
    rate: float = 1.0
    parents: tuple[int, ...] = ()
    layers: tuple[str, ...] = ()

    @property
    def drafted(self) -> int:
        """Number of drafted tokens, padding excluded."""
        return len(self.token_ids) - self.padding

    def agreed(self, path: Sequence[int], accepted: int) -> int:
        """Return the number of drafted tokens that the target agreed with, padding excluded.

        Args:
            path: see :meth:`path`.
            accepted: see :attr:`StepResult.accepted`.
        """
        drafted = self.drafted
        # padding follows the last drafted token, which in a tree has fewer before it on its path
        return sum([i < drafted for i in path]) if self.parents else min(accepted, drafted)

    def path(self, emitted: Sequence[int], accepted: int) -> tuple[int, ...]:
        """Return the indices of the drafted tokens, padding included, that were emitted.

        Args:
            emitted: tokens emitted by the step.
            accepted: see :attr:`StepResult.accepted`.
        """
        kept = min(len(emitted), accepted)
        return tuple(follow(self.token_ids, self.parents, emitted[:kept])) if kept else ()

    def origins(self, path: Sequence[int], emitted: int) -> tuple[int, ...]:
        """Return the DraftSource of each emitted token, the target's own ones included.

        Args:
            path: see :meth:`path`.
            emitted: number of tokens.
        """
        known = tuple([self.sources[i] for i in path]) if self.parents else self.sources[: len(path)]
        return known + (_NONE,) * (emitted - len(path))


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until the loop starts the next step (batched generations)."""


class Propose(NamedTuple):
    """Draft that a batched generation would send.

    Attributes:
        gains: expected gain of each drafted token, tokens; decreasing, except in generations that replay.
        forced: as many tokens as fit are sent whatever their gain (first-match).
    """

    gains: tuple[float, ...] = ()
    forced: bool = False


@dataclass(frozen=True, slots=True)
class Finish:
    """End of the generation."""

    reason: FinishReason


Decision = QueryLayer | Verify | Finish | Wait | Propose
