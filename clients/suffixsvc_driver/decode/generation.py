"""State of one generation: layers queried, tokens emitted, provenance of every token.

Used by :mod:`suffixsvc_driver.decode.loop` (one generation) and :mod:`suffixsvc_driver.decode.parallel`
(several in one batch), which run the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import DraftSource, VerifyCost
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import GUESSED, LiveCurve
from suffixsvc_driver.decode.layer_set import LayerSet
from suffixsvc_driver.drafts.events import (
    Begin,
    Event,
    Finish,
    FinishReason,
    Propose,
    QueryLayer,
    Verified,
    Verify,
    Wait,
)
from suffixsvc_driver.drafts.tree import follow
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.policy.chain_gain import RunningRate
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.settings.text_kind import ContentType
from suffixsvc_driver.speculation.accounting import Stats
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from suffixsvc_driver.targets import Prefilled, TargetShape, Verification

__all__ = ["Generation", "Result", "StepRecord", "curve_for"]

_NONE: Final = int(DraftSource.NONE)
#: tokens that classify the kind of a text
_CONTENT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class StepRecord:
    """Record of one target step.

    Attributes:
        start: absolute position of the batch's first token.
        token_ids: of the batch: the newest emitted token, then the drafted ones, padding included.
        sources: DraftSource of each drafted token.
        probs: calibrated probability of each drafted token.
        layer: layer of the draft; empty for a plain step.
        accepted: drafted tokens that the target agreed with.
        emitted: emitted tokens.
        query_seconds: of the queries before the step.
        target_seconds: of the target.
        decision: the driver's decision, with its reports on the layers and the parents of a tree.
        replayed: tokens that the batch recomputed before ``start``.
        other_tokens: tokens of other generations in the batch.
    """

    start: int
    token_ids: tuple[int, ...]
    sources: tuple[int, ...]
    probs: tuple[float, ...]
    layer: str
    accepted: int
    emitted: tuple[int, ...]
    query_seconds: float
    target_seconds: float
    decision: Verify
    replayed: int = 0
    other_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """Result of a generation.

    Attributes:
        prompt_ids: the prompt.
        token_ids: emitted tokens, an end token included.
        sources: DraftSource of every emitted token; NONE for the target's own tokens.
        finish: why the generation ended.
        stats: statistics per layer and per kind of evidence.
        steps: every target step, in order.
        prefill: reused and computed tokens of the prompt.
        sampling: the sampling settings.
        prefill_seconds: of the prompt.
        decode_seconds: of the steps, queries included.
        notify_seconds: of the calls that start and end the generation in the layers; in neither of the above.
    """

    prompt_ids: tuple[int, ...]
    token_ids: tuple[int, ...]
    sources: tuple[int, ...]
    finish: FinishReason
    stats: Stats
    steps: tuple[StepRecord, ...]
    prefill: Prefilled
    sampling: Sampling
    prefill_seconds: float
    decode_seconds: float
    notify_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Emitted tokens per second of decoding."""
        return len(self.token_ids) / self.decode_seconds if self.decode_seconds else 0.0


def _content_after(
    content: Callable[[Sequence[int]], ContentType] | None, written: Sequence[int], new: int
) -> ContentType | None:
    """Return the kind of the text after every _CONTENT_TOKENS emitted tokens, else None."""
    n = len(written)
    if content is None or n // _CONTENT_TOKENS == (n - new) // _CONTENT_TOKENS:
        return None
    return content(written[-_CONTENT_TOKENS:])


def curve_for(target: TargetShape, curve: CostCurve | LiveCurve | None) -> CostCurve | LiveCurve:
    """Return ``curve``, or a guess that learns from the steps if it is None.

    Raises:
        InvalidConfigError: the curve is wider than the target's batches.
    """
    curve = curve or LiveCurve(CostCurve.guessed(target.max_width), GUESSED)
    known = curve.curve if isinstance(curve, LiveCurve) else curve
    if known.max_width > target.max_width:
        raise InvalidConfigError(
            "the cost curve must not be wider than the target's batches",
            expected=f"at most {target.max_width}",
            got=known.max_width,
        )
    return curve


class Generation:
    """One generation without its target: decisions, queries and records.

    Args:
        config: settings of the driver.
        curve: cost of the target's steps.
        layers: in query order, cheapest first.
        max_tokens: largest number of tokens to emit.
        clock: seconds, for statistics only.
        sampler: samples the tokens; drafted tokens that its grammar forbids are removed.
        vocab_size: of the target.
        calibrator: learned statistics to continue; None for new ones.
        rate: tokens per unit of cost, shared by generations that run in the same batches.
        content: classifies the kind of a text; called after every 64 tokens.

    Raises:
        InvalidConfigError: two layers have the same name.
    """

    def __init__(
        self,
        config: DriverConfig,
        curve: CostCurve | LiveCurve,
        layers: Sequence[Layer],
        max_tokens: int,
        clock: Callable[[], float],
        sampler: Sampler,
        vocab_size: int,
        *,
        calibrator: Calibrator | None = None,
        rate: RunningRate | None = None,
        content: Callable[[Sequence[int]], ContentType] | None = None,
    ) -> None:
        self.driver = GenerationStateMachine(
            config, curve, [layer.spec for layer in layers], calibrator, rate
        )
        self.sampler, self.max_tokens = sampler, max_tokens
        self._layers = LayerSet(layers, clock, vocab_size, sampler.permit)
        self._content, self._clock = content, clock
        self._prompt: tuple[int, ...] = ()
        self._written: list[int] = []
        self._sources: list[int] = []
        self._steps: list[StepRecord] = []
        self._query_seconds = 0.0
        self._replay = 0
        self._sent_curve: CostCurve | None = None  # the curve sent to the layers; None if they get a constant
        self._reason = FinishReason.LENGTH

    @property
    def left(self) -> int:
        """Tokens that may still be emitted."""
        return self.max_tokens - len(self._written)

    @property
    def room(self) -> int:
        """Widest batch that fits into the context, the newest token included."""
        return self.driver.room

    @property
    def replay(self) -> int:
        """Tokens before the newest one that the next batch recomputes."""
        return self._replay

    def begin(
        self,
        target: TargetShape,
        prompt: tuple[int, ...],
        prefill: Prefilled,
        prefill_seconds: float,
        *,
        batched: bool = False,
    ) -> Verify | Finish | Wait | Propose:
        """Start the layers after the prompt was prefilled, and return the first decision.

        Args:
            target: the target.
            prompt: the prompt.
            prefill: its reused and computed tokens.
            prefill_seconds: of the prompt.
            batched: the generation shares its batches with others.
        """
        self._prompt, self._prefill, self._prefill_seconds = prompt, prefill, prefill_seconds
        began = self._clock()
        driver = self.driver
        by_gain = driver.config.policy is Policy.EXPECTED_GAIN
        self._sent_curve = driver.curve if by_gain else None
        cost: VerifyCost = driver.curve.effective() if by_gain else driver.config.first_match_cost
        self._layers.begin(prompt, cost)
        self._decode_start = self._clock()
        self._notify_seconds = self._decode_start - began
        return self.on(
            Begin(
                len(prompt),
                self.max_tokens,
                target.context_size,
                target.vocab_size,
                target.eog_ids,
                target.max_width,
                target.replays,
                ContentType.GENERAL if self._content is None else self._content(prompt[-_CONTENT_TOKENS:]),
                target.max_branches,
                batched,
            )
        )

    def on(self, event: Event) -> Verify | Finish | Wait | Propose:
        """Process an event and all queries that follow; return the next other decision."""
        decision = self.driver.on(event)
        curve = self.driver.curve
        if (
            isinstance(decision, QueryLayer)
            and self._sent_curve is not None
            and self._sent_curve is not curve
        ):
            self._sent_curve = curve
            self._layers.set_cost(curve.effective())
        while isinstance(decision, QueryLayer):
            answer = self._layers.query(decision, self._written)
            self._query_seconds += answer.seconds
            decision = self.driver.on(answer)
        if isinstance(decision, Finish):
            self._reason = decision.reason
        return decision

    def record_step(
        self, sent: Verify, seen: Verification, seconds: float, *, other_tokens: int = 0
    ) -> StepRecord:
        """Record a verified step; :meth:`advance` must follow.

        Args:
            sent: the verified draft.
            seen: its result.
            seconds: of the batch.
            other_tokens: tokens of other generations in the batch.
        """
        written = self._written
        record = StepRecord(
            len(self._prompt) + len(written) - 1,
            (written[-1] if written else self._prompt[-1], *sent.token_ids),
            sent.sources,
            sent.probs,
            sent.layer,
            seen.accepted,
            seen.emitted,
            self._query_seconds,
            seconds,
            sent,
            self._replay,
            other_tokens,
        )
        self._replay = seen.replay
        written.extend(seen.emitted)
        kept = min(seen.accepted, len(seen.emitted))
        if sent.parents:
            path = follow(sent.token_ids, sent.parents, seen.emitted[:kept])
            self._sources.extend(sent.sources[i] for i in path)
        else:
            self._sources.extend(sent.sources[:kept])
        self._sources.extend([_NONE] * (len(seen.emitted) - kept))
        self._steps.append(record)
        self._query_seconds = 0.0
        return record

    def advance(self, record: StepRecord, seen: Verification) -> Verify | Finish | Wait | Propose:
        """Return the next decision after the step of :meth:`record_step`."""
        return self.on(
            Verified(
                seen.emitted,
                seen.accepted,
                len(record.token_ids),
                seen.stopped,
                seen.replay,
                record.target_seconds,
                _content_after(self._content, self._written, len(seen.emitted)),
            )
        )

    def finish(self) -> Result:
        """End the layers after the decision to finish, and return the result."""
        decoded = self._clock()
        self._layers.end(self._written, self.driver.feedback)
        for name, forbidden in self._layers.forbidden.items():
            self.driver.stats.layer(name).forbidden = forbidden
        ended = self._clock()
        return Result(
            self._prompt,
            tuple(self._written),
            tuple(self._sources),
            self._reason,
            self.driver.stats,
            tuple(self._steps),
            self._prefill,
            self.sampler.sampling,
            self._prefill_seconds,
            decoded - self._decode_start,
            self._notify_seconds + ended - decoded,
        )
