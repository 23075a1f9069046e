"""State of one generation: layers queried, tokens emitted, provenance of every token.

Used by :mod:`suffixsvc_driver.decode.loop` (one generation) and :mod:`suffixsvc_driver.decode.parallel`
(several in one batch), which run the target.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import TokenIds, VerifyCost
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
    StepResult,
    TokenLogprobs,
    Verify,
    Wait,
)
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.policy.expected_gain import RunningRate
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.settings.text_kind import ContentType
from suffixsvc_driver.speculation.accounting import Stats
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from suffixsvc_driver.targets import Prefilled, StopRule, TargetShape

#: tokens that classify the kind of a text
_CONTENT_TOKENS: Final = 64


class StepRecord(NamedTuple):
    """Record of one target step.

    Attributes:
        start: absolute position of the batch's first token.
        token_ids: of the batch: the newest emitted token, then the drafted ones, padding included.
        accepted: drafted tokens that the target agreed with, padding included.
        emitted: emitted tokens.
        path: indices of the drafted tokens, padding included, that were emitted (:meth:`Verify.path`).
        sources: DraftSource of each emitted token; NONE for the target's own ones.
        query_seconds: of the queries before the step.
        target_seconds: of the target.
        decision: the verified draft, with the sources and probabilities of its tokens.
        replayed: tokens that the batch recomputed before ``start``.
        other_tokens: tokens of other generations in the batch.
        logprobs: of each emitted token; empty unless the sampling settings ask for them.
    """

    start: int
    token_ids: tuple[int, ...]
    accepted: int
    emitted: tuple[int, ...]
    path: tuple[int, ...]
    sources: tuple[int, ...]
    query_seconds: float
    target_seconds: float
    decision: Verify
    replayed: int = 0
    other_tokens: int = 0
    logprobs: tuple[TokenLogprobs, ...] = ()

    @property
    def agreed(self) -> int:
        """Drafted tokens that the target agreed with, padding excluded."""
        return self.decision.agreed(self.path, self.accepted)


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


@dataclass(frozen=True, slots=True)
class Request:
    """Request for one generation.

    Attributes:
        prompt_ids: 1-D, at least one token.
        layers: in query order, cheapest first; under expected gain prompt lookup is moved after the suffix
            layers, which contain its text. Requests that run at the same time must not share layers.
        max_tokens: largest number of tokens to emit; 0 computes the prompt only.
        sampling: sampling settings; drafted tokens that its grammar forbids are never sent.
        stop: ends the generation when it returns True.
        content: classifies the kind of a text, for the controller "content-k"; called with the end of the
            prompt and after every 64 tokens. None: the kind is always ``ContentType.GENERAL``.
        calibrator: learned statistics of the layers, which this generation continues; None for new ones,
            or for those of a run of several requests.
        on_step: called after every step, before the next one starts.
        principal: owner of the prompt; KV is reused between requests of one principal only.
        prompt_logprobs: number of most probable tokens to report with the log probability of each prompt
            token but the first; None reports nothing. All of the prompt is computed, in narrower batches.
            In shared batches only.
        on_prompt: called with these log probabilities before the first step.
    """

    prompt_ids: TokenIds
    layers: Sequence[Layer] = ()
    max_tokens: int = 256
    sampling: Sampling = GREEDY
    stop: StopRule | None = None
    content: Callable[[Sequence[int]], ContentType] | None = None
    calibrator: Calibrator | None = None
    on_step: Callable[[StepRecord], None] | None = None
    principal: str = ""
    prompt_logprobs: int | None = None
    on_prompt: Callable[[tuple[TokenLogprobs, ...]], None] | None = None


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
        target: the target.
        request: its prompt, layers and options.
        config: settings of the driver.
        curve: cost of the target's steps.
        clock: seconds, for statistics and for the cost of steps and queries; no deadline depends on it.
        calibrator: learned statistics if the request has none.
        rate: tokens per unit of cost, shared by generations that run in the same batches.

    Raises:
        InvalidTokensError: the prompt has ids outside the vocabulary.
        InvalidConfigError: two layers have the same name, or a bias of a token outside the vocabulary.
        GrammarError: the grammar is malformed.
    """

    def __init__(
        self,
        target: TargetShape,
        request: Request,
        config: DriverConfig,
        curve: CostCurve | LiveCurve,
        clock: Callable[[], float],
        calibrator: Calibrator | None = None,
        rate: RunningRate | None = None,
    ) -> None:
        specs = [layer.spec for layer in request.layers]
        calibrator = request.calibrator if request.calibrator is not None else calibrator
        self.sampler = sampler = target.sampler(request.sampling, request.prompt_ids)
        self.driver = GenerationStateMachine(config, curve, specs, calibrator, rate)
        self.request, self._target = request, target
        self.prompt = tuple(int(t) for t in request.prompt_ids)
        permit = None if request.sampling.grammar is None else sampler.allowed
        self._layers = LayerSet(request.layers, clock, target.vocab_size, permit)
        self._clock = clock
        self._written: list[int] = []
        self._sources: list[int] = []
        self._steps: list[StepRecord] = []
        self._query_seconds = 0.0
        #: tokens before the newest one that the next batch recomputes
        self.replay = 0
        self._sent_curve: CostCurve | None = None  # the curve sent to the layers; None if they get a constant
        self._reason = FinishReason.LENGTH

    @property
    def emitted(self) -> int:
        """Tokens emitted so far."""
        return len(self._written)

    @property
    def left(self) -> int:
        """Tokens that may still be emitted."""
        return self.request.max_tokens - len(self._written)

    def begin(
        self, prefill: Prefilled, prefill_seconds: float, *, batched: bool = False
    ) -> Verify | Finish | Wait | Propose:
        """Start the layers after the prompt was prefilled, and return the first decision.

        Args:
            prefill: reused and computed tokens of the prompt.
            prefill_seconds: of the prompt.
            batched: the generation shares its batches with others.
        """
        self._prefill, self._prefill_seconds = prefill, prefill_seconds
        target, content = self._target, self.request.content
        began = self._clock()
        if self.left == 0:
            self._decode_start, self._notify_seconds = began, 0.0
            return Finish(self._reason)
        driver = self.driver
        by_gain = driver.config.policy is Policy.EXPECTED_GAIN
        self._sent_curve = driver.curve if by_gain else None
        cost: VerifyCost = driver.curve.effective() if by_gain else driver.config.first_match_cost
        self._layers.begin(self.prompt, cost)
        self._decode_start = self._clock()
        self._notify_seconds = self._decode_start - began
        return self.on(
            Begin(
                len(self.prompt),
                self.request.max_tokens,
                target.context_size,
                target.vocab_size,
                target.eog_ids,
                target.max_width,
                target.replays,
                ContentType.GENERAL if content is None else content(self.prompt[-_CONTENT_TOKENS:]),
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
        self, sent: Verify, seen: StepResult, seconds: float, *, other_tokens: int = 0
    ) -> StepRecord:
        """Record a verified step; :meth:`advance` must follow.

        Args:
            sent: the verified draft.
            seen: its result.
            seconds: of the batch.
            other_tokens: tokens of other generations in the batch.
        """
        written = self._written
        path = sent.path(seen.emitted, seen.accepted)
        sources = sent.origins(path, len(seen.emitted))
        record = StepRecord(
            len(self.prompt) + len(written) - 1,
            (written[-1] if written else self.prompt[-1], *sent.token_ids),
            seen.accepted,
            seen.emitted,
            path,
            sources,
            self._query_seconds,
            seconds,
            sent,
            self.replay,
            other_tokens,
            seen.logprobs,
        )
        self.replay = seen.replay
        written.extend(seen.emitted)
        self._sources.extend(sources)
        self._steps.append(record)
        self._query_seconds = 0.0
        return record

    def advance(self, record: StepRecord, seen: StepResult) -> Verify | Finish | Wait | Propose:
        """Return the next decision after the step of :meth:`record_step`."""
        classify, n, content = self.request.content, len(self._written), None
        if classify is not None and n // _CONTENT_TOKENS != (n - len(seen.emitted)) // _CONTENT_TOKENS:
            content = classify(self._written[-_CONTENT_TOKENS:])
        width = len(record.token_ids)
        return self.on(
            StepResult(
                seen.emitted, seen.accepted, width, seen.stopped, seen.replay, record.target_seconds, content
            )
        )

    def finish(self, reason: FinishReason | None = None) -> Result:
        """End the layers, and return the result.

        Args:
            reason: why; None: that of the last decision, which was to finish.
        """
        decoded = self._clock()
        self._layers.end(self._written, self.driver.verified)
        for name, forbidden in self._layers.forbidden.items():
            self.driver.stats.layer(name).forbidden = forbidden
        ended = self._clock()
        return Result(
            self.prompt,
            tuple(self._written),
            tuple(self._sources),
            reason or self._reason,
            self.driver.stats,
            tuple(self._steps),
            self._prefill,
            self.request.sampling,
            self._prefill_seconds,
            decoded - self._decode_start,
            self._notify_seconds + ended - decoded,
        )
