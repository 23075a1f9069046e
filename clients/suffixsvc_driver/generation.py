"""One generation's book: what its layers were asked, what was written and where every token came from.

Shared by the loops: :mod:`suffixsvc_driver.loop` runs one, :mod:`suffixsvc_driver.parallel` several at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeGuard

import structlog

from suffixsvc.errors import InvalidConfigError
from suffixsvc.types import Draft, DraftSource, VerifyCost
from suffixsvc_driver.accounting import Stats
from suffixsvc_driver.chooser import Chooser
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
    Propose,
    Verified,
    Verify,
    Wait,
)
from suffixsvc_driver.layers import ContinuingLayer, Layer, PricedLayer
from suffixsvc_driver.live_curve import GUESSED, LiveCurve
from suffixsvc_driver.permitting import Permit, cut_forbidden
from suffixsvc_driver.policy import RunningRate
from suffixsvc_driver.sampling import Sampling
from suffixsvc_driver.state import Driver
from suffixsvc_driver.targets import Prefilled, TargetShape, Verification
from suffixsvc_driver.tree import follow
from suffixsvc_driver.trust import Trust

__all__ = ["Generation", "Result", "StepRecord", "curve_for"]

_log = structlog.get_logger(__name__)
_NONE: Final = int(DraftSource.NONE)
#: tokens by which the kind of a text is judged
_CONTENT_TOKENS: Final = 64


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One target step.

    Attributes:
        start: absolute position of the batch's first token.
        token_ids: of the batch: the last real token, then what was drafted, padding included.
        sources: DraftSource of each drafted token.
        probs: what the driver believed of each.
        layer: whose draft it was, empty for a plain step.
        accepted: drafted tokens the target agreed with.
        emitted: the tokens written.
        ask_seconds: spent in layers before the step.
        target_seconds: spent in the target.
        decision: what the driver decided, and what it looked at before; of a tree it has the parents.
        replayed: tokens that the batch computed again in front of ``start``.
        beside: tokens of other generations in the batch.
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
    beside: int = 0


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


def _is_priced(layer: Layer) -> TypeGuard[PricedLayer]:
    try:
        return isinstance(layer, PricedLayer)
    except Exception:  # looking up its attributes runs the layer's own code
        return False


class _Layers:
    """The layers of one generation: how much of the output each was told, who complained already."""

    def __init__(
        self, layers: Sequence[Layer], clock: Callable[[], float], vocab_size: int, permit: Permit | None
    ) -> None:
        self._layers = {layer.spec.name: layer for layer in layers}
        self._priced = {name: layer for name, layer in self._layers.items() if _is_priced(layer)}
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

    def reprice(self, cost: VerifyCost) -> None:
        for name, layer in self._priced.items():
            try:
                layer.reprice(cost)
            except Exception as err:  # a layer can never hurt
                self._complain(name, err)

    def ask(self, ask: AskLayer, written: list[int]) -> LayerAnswer | LayerFailed:
        name = ask.layer
        new = written[self._told[name] :]
        self._told[name] = len(written)
        before = self._clock()
        try:
            layer = self._layers[name]
            if ask.suggested and isinstance(layer, ContinuingLayer):
                draft = layer.draft(new, ask.budget, ask.verified, after=ask.after, suggested=ask.suggested)
            elif ask.after and isinstance(layer, ContinuingLayer):
                draft = layer.draft(new, ask.budget, ask.verified, after=ask.after)
            else:
                draft = layer.draft(new, ask.budget, ask.verified)
            seconds = self._clock() - before
            if draft is Draft.unanswered():
                return LayerFailed(name, "no answer in time", seconds)
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


def curve_for(target: TargetShape, curve: CostCurve | LiveCurve | None) -> CostCurve | LiveCurve:
    """``curve``, or a guess that learns from the steps where there is none.

    Raises:
        InvalidConfigError: it is wider than the target's batches.
    """
    curve = curve or LiveCurve(CostCurve.guessed(target.max_width), GUESSED)
    known = curve.curve if isinstance(curve, LiveCurve) else curve
    if known.max_width > target.max_width:
        raise InvalidConfigError(
            "the cost curve is wider than the target's batches",
            expected=f"at most {target.max_width}",
            got=known.max_width,
        )
    return curve


class Generation:
    """What a loop needs of one generation besides the target: decisions, the layers behind them, the book.

    Args:
        layers: in the order in which they are asked, cheapest first.
        chooser: what chooses its tokens; drafted ones that its grammar forbids are cut off.
        vocab_size: of the target.
        content: says what kind of text token ids are; asked now and then.
        rate: shared by generations that run in the same batches.

    Raises:
        InvalidConfigError: layers of the same name.
    """

    def __init__(
        self,
        config: DriverConfig,
        curve: CostCurve | LiveCurve,
        layers: Sequence[Layer],
        max_tokens: int,
        clock: Callable[[], float],
        chooser: Chooser,
        vocab_size: int,
        *,
        trust: Trust | None = None,
        rate: RunningRate | None = None,
        content: Callable[[Sequence[int]], ContentType] | None = None,
    ) -> None:
        self.driver = Driver(config, curve, [layer.spec for layer in layers], trust, rate)
        self.chooser, self.max_tokens = chooser, max_tokens
        self._layers = _Layers(layers, clock, vocab_size, chooser.permit)
        self._content, self._clock = content, clock
        self._prompt: tuple[int, ...] = ()
        self._written: list[int] = []
        self._sources: list[int] = []
        self._steps: list[StepRecord] = []
        self._ask_seconds = 0.0
        self._replay = 0
        self._priced_by: CostCurve | None = None  # what layers were told; None where they do not go by it
        self._reason = FinishReason.LENGTH

    @property
    def left(self) -> int:
        """Tokens that may still be written."""
        return self.max_tokens - len(self._written)

    @property
    def room(self) -> int:
        """Tokens of the widest batch that still fits into the context, the newest one included."""
        return self.driver.room

    @property
    def replay(self) -> int:
        """Tokens in front of the newest one that the next batch computes again."""
        return self._replay

    def begin(
        self,
        target: TargetShape,
        prompt: tuple[int, ...],
        prefill: Prefilled,
        prefill_seconds: float,
        *,
        paced: bool = False,
    ) -> Verify | Finish | Wait | Propose:
        """The prompt is prefilled: tell the layers, and take the first decision."""
        self._prompt, self._prefill, self._prefill_seconds = prompt, prefill, prefill_seconds
        began = self._clock()
        driver = self.driver
        gains = driver.config.policy is Policy.EXPECTED_GAIN
        self._priced_by = driver.curve if gains else None
        cost: VerifyCost = driver.curve.effective() if gains else driver.config.first_match_cost
        self._layers.begin(prompt, cost)
        self._told = self._clock()
        self._telling = self._told - began
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
                paced,
            )
        )

    def on(self, event: Event) -> Verify | Finish | Wait | Propose:
        """What to do next, once every layer that was to be asked has answered."""
        decision = self.driver.on(event)
        curve = self.driver.curve
        if isinstance(decision, AskLayer) and self._priced_by is not None and self._priced_by is not curve:
            self._priced_by = curve
            self._layers.reprice(curve.effective())
        while isinstance(decision, AskLayer):
            answer = self._layers.ask(decision, self._written)
            self._ask_seconds += answer.seconds
            decision = self.driver.on(answer)
        if isinstance(decision, Finish):
            self._reason = decision.reason
        return decision

    def write_down(self, sent: Verify, seen: Verification, seconds: float, *, beside: int = 0) -> StepRecord:
        """The target verified ``sent``: write it down. :meth:`go_on` must follow.

        Args:
            seconds: what the batch took.
            beside: tokens of other generations in it.
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
            self._ask_seconds,
            seconds,
            sent,
            self._replay,
            beside,
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
        self._ask_seconds = 0.0
        return record

    def go_on(self, record: StepRecord, seen: Verification) -> Verify | Finish | Wait | Propose:
        """What to do after the step that was just written down."""
        return self.on(
            Verified(
                seen.emitted,
                seen.accepted,
                len(record.token_ids),
                seen.stopped,
                seen.replay,
                record.target_seconds,
                _content_now(self._content, self._written, len(seen.emitted)),
            )
        )

    def finish(self) -> Result:
        """The last decision was to finish: tell the layers the rest."""
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
            self.chooser.sampling,
            self._prefill_seconds,
            decoded - self._told,
            self._telling + ended - decoded,
        )
