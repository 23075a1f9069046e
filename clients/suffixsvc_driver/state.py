"""The speculation driver as a state machine: events in, decisions out; no clock, no transport, no model.

    IDLE --Begin--> ASKING --LayerAnswer/LayerFailed--> ASKING ... --> VERIFYING --Verified--> ASKING ...
                                                                                          \\-> DONE

In every step the layers are asked in order, each at most once, and one of their drafts - or none - goes to
the target. See :mod:`suffixsvc_driver.policy` for what "pays" means and :mod:`suffixsvc_driver.trust` for
what a layer's probabilities are worth.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Final

from suffixsvc.errors import InvalidConfigError, InvalidInputError, LimitExceededError
from suffixsvc.types import DraftSource
from suffixsvc_driver.accounting import Stats
from suffixsvc_driver.chain import Chain, clean_chain
from suffixsvc_driver.config import DriverConfig, LayerKind, LayerSpec, Policy
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import (
    AskLayer,
    Begin,
    Decision,
    Event,
    Feedback,
    Finish,
    FinishReason,
    LayerAnswer,
    LayerFailed,
    Verified,
    Verify,
)
from suffixsvc_driver.layer_state import DraftModelState, LayerState, layer_state
from suffixsvc_driver.policy import AdaptiveK, Choice, RunningRate, best_ask, best_prefix
from suffixsvc_driver.trust import Trust

__all__ = ["Driver"]

_SOURCE_OF: Final = {
    LayerKind.PROMPT_LOOKUP: DraftSource.PROMPT_LOOKUP,
    LayerKind.SUFFIX: DraftSource.NAMESPACE,
    LayerKind.DRAFT_MODEL: DraftSource.DRAFT_MODEL,
}
_NONE: Final = int(DraftSource.NONE)
_PLAIN: Final = Verify()
_NO_CHOICE: Final = Choice()
#: what a draft model is believed to get right before anything was seen
_DRAFT_MODEL_PRIOR: Final = 0.7
_NOT_BEGUN: Final = Begin(prompt_length=1, max_tokens=1, context_size=1, vocab_size=1)


class _Phase(enum.StrEnum):
    IDLE = "idle"
    ASKING = "asking"
    VERIFYING = "verifying"
    DONE = "done"


class Driver:
    """One generation. Deterministic: the same events give the same decisions.

    Args:
        config: see :class:`DriverConfig`.
        curve: what the target's steps cost.
        layers: in the order in which they are asked, cheapest first.
        trust: learned tables to go on with; a new one when absent.
    """

    def __init__(
        self,
        config: DriverConfig,
        curve: CostCurve,
        layers: Sequence[LayerSpec] = (),
        trust: Trust | None = None,
    ) -> None:
        names = [spec.name for spec in layers]
        if len(set(names)) != len(names) or "" in names:
            raise InvalidConfigError("layers need names of their own", expected="unique names", got=names)
        self.config = config
        self.curve = curve
        self.trust = trust if trust is not None else Trust()
        self.stats = Stats()
        for name in names:
            self.stats.layer(name)
        self._layers = [
            layer_state(spec, self.trust.asking(spec.name, spec.seconds_per_ask)) for spec in layers
        ]
        self._rate = RunningRate(config.rate_decay)
        self._adaptive = AdaptiveK(config)
        self._phase = _Phase.IDLE
        self._begin = _NOT_BEGUN
        self._written = 0
        self._next_layer = 0
        self._ask: AskLayer | None = None
        self._verify = _PLAIN
        self._best = _NO_CHOICE
        self._best_layer = -1
        self._best_probs: list[float] = []
        self._asking_cost = 0.0
        self._feedback: Feedback | None = None

    @property
    def rate(self) -> float:
        """Tokens per unit cost so far: the lambda of the expected-gain rule."""
        return self._rate.value

    @property
    def feedback(self) -> Feedback | None:
        """What the target really got in the last step."""
        return self._feedback

    def on(self, event: Event) -> Decision:
        """Take an event, return what to do next.

        Raises:
            InvalidInputError: an event that does not answer the last decision. Nothing changes.
        """
        match event:
            case Begin():
                self._expect(self._phase is _Phase.IDLE, event)
                return self._on_begin(event)
            case LayerAnswer() | LayerFailed():
                self._expect(self._ask is not None and event.layer == self._ask.layer, event)
                return self._on_layer(event, self._ask.budget if self._ask else 0)
            case Verified():
                self._expect(self._phase is _Phase.VERIFYING, event)
                return self._on_verified(event)
        raise InvalidInputError("not an event of the driver", got=type(event).__name__)

    def _expect(self, fits: bool, event: Event) -> None:
        if not fits:
            waiting = self._ask.layer if self._ask else ""
            raise InvalidInputError(
                "an event that does not answer the last decision",
                expected=f"{self._phase} {waiting}".strip(),
                got=type(event).__name__,
            )

    # -- a generation starts

    def _on_begin(self, event: Begin) -> Decision:
        if event.prompt_length < 1 or event.max_tokens < 1 or event.vocab_size < 1:
            raise InvalidInputError(
                "a generation needs a prompt, a vocabulary and something to write",
                expected="prompt_length, max_tokens and vocab_size >= 1",
                got=(event.prompt_length, event.max_tokens, event.vocab_size),
            )
        if event.prompt_length > event.context_size:
            raise LimitExceededError(
                "the prompt is longer than the target's context",
                expected=f"at most {event.context_size} tokens",
                got=event.prompt_length,
            )
        self._begin = event
        for layer in self._layers:
            layer.wrote(event.prompt_length)
        return self._start_step()

    def _start_step(self) -> Decision:
        self._phase = _Phase.ASKING
        self._next_layer = 0
        self._best, self._best_layer = _NO_CHOICE, -1
        self._best_probs = []
        self._asking_cost = 0.0
        for layer in self._layers:
            layer.chain = Chain()
        return self._ask_next()

    # -- asking

    def _context_left(self) -> int:
        """Tokens that still fit, the newest one included: it is not in the KV cache yet."""
        return self._begin.context_size - self._begin.prompt_length - self._written + 1

    def _room(self) -> int:
        """The widest batch possible."""
        return min(self._begin.max_width, self._context_left())

    def _limit(self) -> int:
        """Drafted tokens that can still be of use: the target adds one of its own."""
        return min(self.config.max_draft_tokens, self._begin.max_tokens - self._written - 1)

    def _ask_next(self) -> Decision:
        while self._next_layer < len(self._layers):
            layer = self._layers[self._next_layer]
            self._next_layer += 1
            budget = self._budget(layer)
            if budget is None:
                layer.pass_over()
                continue
            layer.asking.asked()
            self._ask = AskLayer(layer.spec.name, budget, self._feedback)
            return self._ask
        self._ask = None
        return self._decide()

    def _budget(self, layer: LayerState) -> int | None:
        """Tokens to ask this layer for; 0 tells it what was written, None leaves it alone."""
        limit = min(self._limit(), layer.spec.max_draft_tokens)
        if self.config.policy is Policy.EXPECTED_GAIN:
            return self._paying_budget(layer, limit)
        if self._best_layer < 0:
            return max(0, min(limit, self._adaptive.value, self._room() - 1))
        return 0 if layer.spec.kind is LayerKind.SUFFIX else None

    def _paying_budget(self, layer: LayerState, limit: int) -> int | None:
        if isinstance(layer, DraftModelState):
            return self._draft_model_budget(layer, limit)
        unit = self.curve.seconds_per_step
        due = layer.asking.due(self.config.probe_every_steps, unit)
        budget = min(limit, self.curve.widest_paying - 1, self._room() - 1)
        # no question is worth more than a draft of which every token is right
        worth = float(budget) if due else layer.asking.worth(layer.dry_steps, self._best.gain)
        price = self._in_steps(layer.asking.seconds)
        return budget if budget > 0 and worth > self._rate.value * price else None

    def _draft_model_budget(self, layer: DraftModelState, limit: int) -> int | None:
        def best(acceptance: float) -> Choice:
            return best_ask(
                acceptance,
                self.curve,
                self._rate.value,
                limit,
                self._room(),
                cost_per_ask=self._in_steps(layer.spec.seconds_per_ask),
                cost_per_token=self._in_steps(layer.token_seconds),
            )

        reading = layer.reading_seconds
        hoped = best(self.trust.acceptance(layer.spec.name, _DRAFT_MODEL_PRIOR))
        left = (self._begin.max_tokens - self._written) / (1 + hoped.length)
        # reading is paid once and may serve every step that is left
        gain = (hoped.gain - self._best.gain) * max(1.0, left)
        if gain > self._rate.value * self._in_steps(reading):
            return hoped.length
        price = reading + layer.token_seconds
        if not layer.asking.due(self.config.probe_every_steps, self.curve.seconds_per_step, price):
            return None
        ideal = best(1.0)
        return ideal.length if ideal.gain > self._best.gain else None

    def _in_steps(self, seconds: float) -> float:
        """In plain steps of the target; 0 where nobody knows how long one takes."""
        unit = self.curve.seconds_per_step
        return seconds / unit if unit else 0.0

    def _on_layer(self, event: LayerAnswer | LayerFailed, budget: int) -> Decision:
        index = self._next_layer - 1
        layer = self._layers[index]
        counts = self.stats.layer(layer.spec.name)
        counts.asked += 1
        seconds = event.seconds if 0.0 < event.seconds < math.inf else 0.0
        counts.seconds += seconds
        self._asking_cost += self._in_steps(seconds)
        if isinstance(event, LayerFailed):
            counts.failures += 1
            layer.measure(0, seconds)
            self._learn_worth(layer, self._best.gain)
            return self._ask_next()
        source = _SOURCE_OF[layer.spec.kind]
        chain = clean_chain(event.draft, budget, self._begin.vocab_size, source)
        layer.chain = chain
        counts.junk += chain.junk
        counts.answered += len(chain) > 0
        counts.offered += len(chain)
        layer.measure(len(chain), seconds)
        at_hand = self._best.gain
        self._consider(index, chain)
        self._learn_worth(layer, at_hand)
        return self._ask_next()

    def _learn_worth(self, layer: LayerState, at_hand: float) -> None:
        """First-match does not weigh gains."""
        if self.config.policy is Policy.EXPECTED_GAIN:
            layer.learn(at_hand, self._best.gain - at_hand)

    def _consider(self, index: int, chain: Chain) -> None:
        if self.config.policy is Policy.FIRST_MATCH:
            if self._best_layer < 0 and len(chain) >= self.config.min_match_tokens:
                width = len(chain) + 1
                self._best, self._best_layer = Choice(len(chain), width), index
                self._best_probs = self._believed(index, chain)
            return
        probs = self._believed(index, chain)
        choice = best_prefix(probs, self.curve, self._rate.value, self._limit(), self._room())
        if choice.gain > self._best.gain:
            self._best, self._best_layer, self._best_probs = choice, index, probs

    def _believed(self, index: int, chain: Chain) -> list[float]:
        name = self._layers[index].spec.name
        return [self.trust.believe(name, claim, depth) for depth, claim in enumerate(chain.claims)]

    # -- verifying

    def _decide(self) -> Verify:
        self._phase = _Phase.VERIFYING
        self._verify = _PLAIN
        if self._best_layer >= 0 and self._best.length > 0:
            layer = self._layers[self._best_layer]
            n = self._best.length
            padding = self._best.width - 1 - n
            tokens = layer.chain.token_ids[:n]
            self._verify = Verify(
                tokens + tokens[-1:] * padding,
                layer.chain.sources[:n] + (_NONE,) * padding,
                tuple(self._best_probs[:n]) + (0.0,) * padding,
                layer.spec.name,
                padding,
            )
        return self._verify

    def _on_verified(self, event: Verified) -> Decision:
        sent = self._verify
        emitted = event.emitted
        kept = min(len(emitted), event.accepted)
        fits = (
            0 < len(emitted) <= event.accepted + 1
            and 0 <= event.accepted <= len(sent.token_ids)
            and event.width == len(sent.token_ids) + 1
            and emitted[:kept] == sent.token_ids[:kept]
        )
        self._expect(fits, event)
        self._learn(emitted)
        drafted = len(sent.token_ids) - sent.padding
        accepted = min(event.accepted, drafted)
        written = [*sent.sources[:kept], *[_NONE] * (len(emitted) - kept)]
        self.stats.count_step(sent.layer, sent.sources[:drafted], accepted, written, sent.padding)
        cost = self._cost_of(event.width) + self._asking_cost
        self.stats.cost += cost
        self._rate.add(len(emitted), cost)
        if drafted:
            self._adaptive.add(drafted, accepted)
        source = DraftSource(sent.sources[0]) if drafted else DraftSource.NONE
        self._feedback = Feedback(event.width, accepted, source)
        self._written += len(emitted)
        for layer in self._layers:
            layer.wrote(len(emitted))
        reason = self._finished(emitted[-1], event.stopped)
        if reason is not None:
            self._phase = _Phase.DONE
            return Finish(reason)
        return self._start_step()

    def _cost_of(self, width: int) -> float:
        """first-match may send more than the curve knows: its last step goes on by the mean slope."""
        known = self.curve.max_width
        if width <= known:
            return self.curve.costs[width]
        return self.curve.costs[known] * width / known

    def _learn(self, emitted: tuple[int, ...]) -> None:
        """Label what every layer answered in this step, sent or not, by what the target wrote."""
        for layer in self._layers:
            chain = layer.chain
            for depth, (token, truth) in enumerate(zip(chain.token_ids, emitted, strict=False)):
                self.trust.learn(layer.spec.name, chain.claims[depth], depth, token == truth)
                if token != truth:
                    break

    def _finished(self, last: int, stopped: bool) -> FinishReason | None:
        if stopped or last in self._begin.eog_ids:
            return FinishReason.STOP
        if self._written >= self._begin.max_tokens:
            return FinishReason.LENGTH
        if self._context_left() < 1:
            return FinishReason.CONTEXT
        return None
