"""The loop around the state machine: asks layers, runs the target, keeps the book.

The clock in here is for accounting and for the price of asking; nothing waits on it. A layer that could
block (a remote one) brings its own timer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import structlog

from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import DraftSource, TokenIds, VerifyCost
from suffixsvc_driver.accounting import Stats
from suffixsvc_driver.config import DriverConfig, Policy
from suffixsvc_driver.content import ContentType
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import (
    AskLayer,
    Begin,
    Event,
    Feedback,
    Finish,
    FinishReason,
    LayerAnswer,
    LayerFailed,
    Verified,
    Verify,
)
from suffixsvc_driver.layers import ContinuingLayer, Layer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.permitting import Permit, cut_forbidden
from suffixsvc_driver.sampling import GREEDY, Sampling
from suffixsvc_driver.state import Driver
from suffixsvc_driver.targets import Prefilled, StopRule, Target
from suffixsvc_driver.trust import Trust

__all__ = ["Result", "StepRecord", "generate"]

_log = structlog.get_logger(__name__)
_NONE: Final = int(DraftSource.NONE)
#: tokens by which the kind of a text is judged
_CONTENT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One target step.

    Attributes:
        start: absolute position of the batch's first token.
        token_ids: the batch: the last real token, then what was drafted, padding included.
        sources: DraftSource of each drafted token.
        probs: what the driver believed of each.
        layer: whose draft it was, empty for a plain step.
        accepted: drafted tokens the target agreed with.
        emitted: the tokens written.
        ask_seconds: spent in layers before the step.
        target_seconds: spent in the target.
        decision: what the driver decided, and what it looked at before.
        replayed: tokens that the batch computed again in front of ``start``.
    """

    start: int
    token_ids: tuple[int, ...]
    sources: tuple[int, ...]
    probs: tuple[float, ...]
    layer: str
    accepted: int
    emitted: tuple[int, ...]
    ask_seconds: float
    target_seconds: float
    decision: Verify
    replayed: int = 0


@dataclass(frozen=True, slots=True)
class Result:
    """What a generation wrote and how.

    Attributes:
        prompt_ids, token_ids: the prompt, and what was written, an end token included.
        sources: DraftSource of every written token; NONE = the target's own.
        finish: why it ended.
        stats: counts per layer and per kind of evidence.
        steps: every target step, in order.
        prefill: what the prompt took.
        sampling: how tokens were chosen.
        prefill_seconds, decode_seconds: wall time; decoding includes asking the layers.
        telling_seconds: what telling the layers where the generation begins and ends took besides.
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
    telling_seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Of decoding alone."""
        return len(self.token_ids) / self.decode_seconds if self.decode_seconds else 0.0


def _content_now(
    content: Callable[[Sequence[int]], ContentType] | None, written: Sequence[int], new: int
) -> ContentType | None:
    """Looked at again whenever so many tokens have been written."""
    n = len(written)
    if content is None or n // _CONTENT_TOKENS == (n - new) // _CONTENT_TOKENS:
        return None
    return content(written[-_CONTENT_TOKENS:])


def _behind(after: Sequence[int], permit: Permit) -> Permit:
    """What is permitted behind a draft."""
    if not after:
        return permit
    return lambda tokens: max(0, permit([*after, *tokens]) - len(after))


class _Layers:
    """The layers of one generation: how much of the output each was told, who complained already."""

    def __init__(
        self, layers: Sequence[Layer], clock: Callable[[], float], vocab_size: int, permit: Permit | None
    ) -> None:
        self._layers = {layer.spec.name: layer for layer in layers}
        self._told = dict.fromkeys(self._layers, 0)
        self._complained: set[str] = set()
        self._clock = clock
        self._vocab_size, self._permit = vocab_size, permit
        #: by layer, tokens that the grammar forbids
        self.forbidden = dict.fromkeys(self._layers, 0)

    def begin(self, prompt: tuple[int, ...], cost: VerifyCost) -> None:
        for name, layer in self._layers.items():
            try:
                layer.begin(prompt, cost)
            except Exception as err:  # a layer can never hurt
                self._complain(name, err)

    def ask(self, ask: AskLayer, written: list[int]) -> LayerAnswer | LayerFailed:
        name = ask.layer
        new = written[self._told[name] :]
        self._told[name] = len(written)
        before = self._clock()
        try:
            layer = self._layers[name]
            if ask.after and isinstance(layer, ContinuingLayer):
                draft = layer.draft(new, ask.budget, ask.verified, after=ask.after)
            else:
                draft = layer.draft(new, ask.budget, ask.verified)
            seconds = self._clock() - before
            if self._permit is not None:
                permit = _behind(ask.after, self._permit)
                draft, cut = cut_forbidden(draft, ask.budget, self._vocab_size, permit)
                self.forbidden[name] += cut
        except Exception as err:  # a layer can never hurt
            self._complain(name, err)
            return LayerFailed(name, type(err).__name__, self._clock() - before)
        return LayerAnswer(name, draft, seconds)

    def end(self, written: list[int], verified: Feedback | None) -> None:
        for name, layer in self._layers.items():
            try:
                layer.end(written[self._told[name] :], verified)
            except Exception as err:  # a layer can never hurt
                self._complain(name, err)

    def _complain(self, name: str, err: Exception) -> None:
        if name not in self._complained:
            self._complained.add(name)
            _log.warning("a drafting layer failed; going on without its drafts", layer=name, error=repr(err))


def generate(
    target: Target,
    prompt_ids: TokenIds,
    config: DriverConfig | None = None,
    layers: Sequence[Layer] = (),
    max_tokens: int = 256,
    *,
    sampling: Sampling = GREEDY,
    curve: CostCurve | LiveCurve | None = None,
    trust: Trust | None = None,
    stop: StopRule | None = None,
    content: Callable[[Sequence[int]], ContentType] | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Result:
    """Write up to ``max_tokens`` tokens behind a prompt.

    The tokens are the target's own choices, whatever the layers say; without layers this is plain
    decoding.

    Args:
        target: the model.
        prompt_ids: 1-D, at least one token.
        config: policy and its settings.
        layers: in the order in which they are asked, cheapest first.
        sampling: how tokens are chosen. Drafted tokens that its grammar forbids are never sent.
        curve: the target's measured cost curve; without one a guess. A live one learns from the steps.
        trust: what earlier generations learned about these layers; it learns on.
        stop: ends the generation where it holds.
        content: says what kind of text token ids are, for controllers that go by it; asked now and then.
        on_step: called after every step, before the next one starts.
        clock: seconds; for accounting only.

    Raises:
        InvalidTokensError, LimitExceededError: the prompt.
        GrammarError: of ``sampling``, before anything is computed; or later, where nothing is permitted.
        ModelError: the target. Whatever a layer raises is counted, logged once and goes no further.
    """
    curve = curve or CostCurve.guessed(target.max_width)
    known = curve.curve if isinstance(curve, LiveCurve) else curve
    if known.max_width > target.max_width:
        raise InvalidConfigError(
            "the cost curve is wider than the target's batches",
            expected=f"at most {target.max_width}",
            got=known.max_width,
        )
    config = config or DriverConfig()
    driver = Driver(config, curve, [layer.spec for layer in layers], trust)
    chooser = target.chooser(sampling, prompt_ids)
    asked = _Layers(layers, clock, target.vocab_size, chooser.permit)
    began = clock()
    prefill = target.begin(prompt_ids)
    prefilled = clock()
    prompt = tuple(int(t) for t in prompt_ids)
    gains = config.policy is Policy.EXPECTED_GAIN
    cost: VerifyCost = known.effective() if gains else config.first_match_cost
    asked.begin(prompt, cost)
    told = clock()

    written: list[int] = []
    sources: list[int] = []
    steps: list[StepRecord] = []
    ask_seconds = 0.0
    replay = 0
    event: Event = Begin(
        len(prompt),
        max_tokens,
        target.context_size,
        target.vocab_size,
        target.eog_ids,
        target.max_width,
        target.replays,
        ContentType.GENERAL if content is None else content(prompt[-_CONTENT_TOKENS:]),
    )
    while True:
        decision = driver.on(event)
        if isinstance(decision, AskLayer):
            event = asked.ask(decision, written)
            ask_seconds += event.seconds
        elif isinstance(decision, Finish):
            break
        else:
            start = len(prompt) + len(written) - 1
            last = written[-1] if written else prompt[-1]
            before = clock()
            seen = target.verify(decision.token_ids, chooser, max_tokens - len(written), stop)
            seconds = clock() - before
            record = StepRecord(
                start,
                (last, *decision.token_ids),
                decision.sources,
                decision.probs,
                decision.layer,
                seen.accepted,
                seen.emitted,
                ask_seconds,
                seconds,
                decision,
                replay,
            )
            replay = seen.replay
            written.extend(seen.emitted)
            kept = min(seen.accepted, len(seen.emitted))
            sources.extend(decision.sources[:kept])
            sources.extend([_NONE] * (len(seen.emitted) - kept))
            steps.append(record)
            ask_seconds = 0.0
            if on_step is not None:
                on_step(record)
            event = Verified(
                seen.emitted,
                seen.accepted,
                len(decision.token_ids) + 1,
                seen.stopped,
                seen.replay,
                seconds,
                _content_now(content, written, len(seen.emitted)),
            )
    decoded = clock()
    asked.end(written, driver.feedback)
    for name, forbidden in asked.forbidden.items():
        driver.stats.layer(name).forbidden = forbidden
    ended = clock()
    return Result(
        prompt,
        tuple(written),
        tuple(sources),
        decision.reason,
        driver.stats,
        tuple(steps),
        prefill,
        sampling,
        prefilled - began,
        decoded - told,
        (told - prefilled) + (ended - decoded),
    )
