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
from suffixsvc_driver.controllers import make_controller
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.drafting import Offer, StepDraft
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
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.policy import Choice, Headroom, RunningRate, best_ask
from suffixsvc_driver.trust import Trust

__all__ = ["Driver"]

_SOURCE_OF: Final = {
    LayerKind.PROMPT_LOOKUP: DraftSource.PROMPT_LOOKUP,
    LayerKind.SUFFIX: DraftSource.NAMESPACE,
    LayerKind.DRAFT_MODEL: DraftSource.DRAFT_MODEL,
}
_NONE: Final = int(DraftSource.NONE)
_PLAIN: Final = Verify()
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
        curve: what the target's steps cost; a live one goes on learning from them.
        layers: in the order in which they are asked, cheapest first.
        trust: learned tables to go on with; a new one when absent.
        rate: tokens per unit cost so far, shared by generations that run in the same batches.
    """

    def __init__(
        self,
        config: DriverConfig,
        curve: CostCurve | LiveCurve,
        layers: Sequence[LayerSpec] = (),
        trust: Trust | None = None,
        rate: RunningRate | None = None,
    ) -> None:
        names = [spec.name for spec in layers]
        if len(set(names)) != len(names) or "" in names:
            raise InvalidConfigError("layers need names of their own", expected="unique names", got=names)
        self.config = config
        self._live = curve if isinstance(curve, LiveCurve) else None
        self._fixed = curve.curve if isinstance(curve, LiveCurve) else curve
        self.trust = trust if trust is not None else Trust()
        self.stats = Stats()
        for name in names:
            self.stats.layer(name)
        self._layers = [
            layer_state(spec, self.trust.asking(spec.name, spec.seconds_per_ask)) for spec in layers
        ]
        self._rate = rate if rate is not None else RunningRate(config.rate_decay)
        self._controller = make_controller(config)
        self._phase = _Phase.IDLE
        self._begin = _NOT_BEGUN
        self._written = 0
        self._next_layer = 0
        self._ask: AskLayer | None = None
        self._verify = _PLAIN
        self._replay = 0
        self._beside = 0
        self._draft = StepDraft(self.curve, 1.0, Headroom(0, 1))
        self._asking_cost = 0.0
        self._feedback: Feedback | None = None

    @property
    def curve(self) -> CostCurve:
        """What steps cost, as far as it is known now."""
        return self._live.curve if self._live is not None else self._fixed

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
        self._controller.about(event.content)
        for layer in self._layers:
            layer.wrote(event.prompt_length)
        return self._start_step()

    def _start_step(self) -> Decision:
        self._phase = _Phase.ASKING
        self._next_layer = 0
        headroom = Headroom(self._limit(), self._room(), self._replay + self._beside, self._begin.replays)
        self._draft = StepDraft(self.curve, self._rate.value, headroom)
        self._asking_cost = 0.0
        for layer in self._layers:
            layer.chain, layer.after = Chain(), ()
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
            ask = self._question(layer)
            if ask is None:
                layer.pass_over()
                continue
            layer.asking.asked()
            layer.after = ask.after
            self._ask = ask
            return ask
        self._ask = None
        return self._decide()

    def _question(self, layer: LayerState) -> AskLayer | None:
        """What to ask this layer; a budget of 0 tells it what was written, None leaves it alone."""
        name = layer.spec.name
        limit = min(self._draft.headroom.limit, layer.spec.max_draft_tokens)
        if self.config.policy is Policy.EXPECTED_GAIN:
            if isinstance(layer, DraftModelState):
                return self._ask_draft_model(layer, limit)
            budget = self._paying_budget(layer, limit)
        elif self._draft.choice.length == 0:
            budget = max(0, min(limit, self._controller.value, self._room() - 1))
        elif layer.spec.kind is LayerKind.SUFFIX:
            budget = 0
        else:
            self._draft.leave_alone(name, "the first match is taken")
            return None
        return None if budget is None else AskLayer(name, budget, self._feedback)

    def _paying_budget(self, layer: LayerState, limit: int) -> int | None:
        unit = self.curve.seconds_per_step
        due = layer.asking.due(self.config.probe_every_steps, unit)
        beside = self._draft.headroom.beside
        budget = min(limit, self.curve.widest_paying - 1, self._room() - 1, self.curve.max_width - 1 - beside)
        if budget < 1:
            self._draft.leave_alone(layer.spec.name, self._why_no_budget(limit))
            return None
        # no question is worth more than a draft of which every token is right
        worth = float(budget) if due else layer.asking.worth(layer.dry_steps, self._draft.gain)
        price = self._rate.value * self._in_steps(layer.asking.seconds)
        if worth > price:
            return budget
        why = f"asking costs {price:.2g} tokens, more than the {worth:.2g} it has been worth here"
        self._draft.leave_alone(layer.spec.name, why)
        return None

    def _why_no_budget(self, limit: int) -> str:
        if limit < 1:
            return "only one more token is wanted"
        if self._room() < 2:
            return "the context is full behind the next token"
        return "no wider batch pays, even if every token of it were right"

    def _ask_draft_model(self, layer: DraftModelState, limit: int) -> AskLayer | None:
        """From where the text ends, or behind the draft at hand, whichever is worth more."""
        draft = self._draft
        headroom = Headroom(limit, draft.headroom.room, draft.headroom.beside, draft.headroom.replays)

        def best(acceptance: float, after: tuple[float, ...] = ()) -> Choice:
            return best_ask(
                acceptance,
                self.curve,
                self._rate.value,
                headroom,
                after=after,
                cost_per_ask=self._in_steps(layer.spec.seconds_per_ask),
                cost_per_token=self._in_steps(layer.token_seconds),
            )

        name, acceptance = layer.spec.name, self.trust.acceptance(layer.spec.name, _DRAFT_MODEL_PRIOR)
        hoped = best(acceptance)
        after: tuple[int, ...] = ()
        reading = layer.reading_seconds
        if layer.spec.continues and draft.complete and len(draft.offer) < limit:
            behind = best(acceptance, draft.offer.probs)
            if behind.gain > hoped.gain:
                hoped, after = behind, draft.offer.token_ids
        asked = hoped.length - len(after)
        left = (self._begin.max_tokens - self._written) / (1 + hoped.length)
        # reading is paid once and may serve every step that is left
        gain = (hoped.gain - draft.gain) * max(1.0, left)
        if gain > self._rate.value * self._in_steps(reading):
            return AskLayer(name, asked, self._feedback, after)
        price = reading + layer.token_seconds
        if not layer.asking.due(self.config.probe_every_steps, self.curve.seconds_per_step, price):
            each, first = self._in_steps(layer.token_seconds), self._in_steps(reading)
            why = f"a token costs {each:.2g} plain steps, reading {first:.2g}, {acceptance:.0%} are accepted"
            self._draft.leave_alone(name, f"no draft of it would pay: {why}")
            return None
        ideal = best(1.0)
        if ideal.gain > draft.gain:
            return AskLayer(name, ideal.length, self._feedback)
        self._draft.leave_alone(name, "even right in every token it would not pay")
        return None

    def _in_steps(self, seconds: float) -> float:
        """In plain steps of the target; 0 where nobody knows how long one takes."""
        unit = self.curve.seconds_per_step
        return seconds / unit if unit else 0.0

    def _on_layer(self, event: LayerAnswer | LayerFailed, budget: int) -> Decision:
        layer = self._layers[self._next_layer - 1]
        counts = self.stats.layer(layer.spec.name)
        counts.asked += 1
        seconds = event.seconds if 0.0 < event.seconds < math.inf else 0.0
        counts.seconds += seconds
        self._asking_cost += self._in_steps(seconds)
        at_hand = self._draft.gain
        if isinstance(event, LayerFailed):
            counts.failures += 1
            layer.measure(0, seconds)
            self._draft.leave_alone(layer.spec.name, "it failed")
        else:
            source = _SOURCE_OF[layer.spec.kind]
            chain = clean_chain(event.draft, budget, self._begin.vocab_size, source)
            layer.chain = chain
            counts.junk += chain.junk
            counts.answered += len(chain) > 0
            counts.offered += len(chain)
            layer.measure(len(chain), seconds)
            self._consider(layer, chain, budget)
        # first-match does not weigh gains
        if self.config.policy is Policy.EXPECTED_GAIN:
            layer.learn(at_hand, self._draft.gain - at_hand)
        return self._ask_next()

    def _consider(self, layer: LayerState, chain: Chain, budget: int) -> None:
        depth = len(layer.after)
        name = layer.spec.name
        probs = tuple(self.trust.believe(name, claim, depth + i) for i, claim in enumerate(chain.claims))
        offer = Offer(name, chain.token_ids, chain.sources, probs)
        draft = self._draft
        if self.config.policy is Policy.FIRST_MATCH:
            counts = draft.choice.length == 0 and len(chain) >= self.config.min_match_tokens
            if counts:
                draft.take(offer, len(chain), budget)
            else:
                draft.leave_alone(name, f"{len(chain)} tokens are no match" if budget else "told, not asked")
        elif depth:
            draft.consider(draft.offer.then(offer), budget, f"behind {depth} tokens")
        else:
            draft.consider(offer, budget)

    # -- verifying

    def _decide(self) -> Verify:
        self._phase = _Phase.VERIFYING
        self._verify = self._draft.decide()
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
        self.stats.count_step(sent, accepted, written)
        beside = self._draft.headroom.beside
        cost = self._cost_of(event.width + beside) + self._asking_cost
        self.stats.cost += cost
        self.stats.replayed += self._replay
        self._rate.add(len(emitted), cost)
        if self._live is not None:
            self._live.observe(event.width + beside, event.seconds)
        if drafted:
            self._controller.add(drafted, accepted)
        if event.content is not None:
            self._controller.about(event.content)
        self._replay = event.replay
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
        """In plain steps: what the batch costs beyond the other generations' tokens in it, and this one's
        share of those."""
        shared = self.curve.cost(1 + self._beside)
        return self.curve.cost(width) - shared + shared / (1 + self._beside)

    def _learn(self, emitted: tuple[int, ...]) -> None:
        """Label what every layer answered in this step, sent or not, by what the target wrote."""
        for layer in self._layers:
            chain, start = layer.chain, len(layer.after)
            if emitted[:start] != layer.after:
                continue  # what it went on behind did not come
            for i, (token, truth) in enumerate(zip(chain.token_ids, emitted[start:], strict=False)):
                self.trust.learn(layer.spec.name, chain.claims[i], start + i, token == truth)
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
