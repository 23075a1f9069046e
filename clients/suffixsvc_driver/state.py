"""The speculation driver as a state machine: events in, decisions out; no clock, no transport, no model.

    IDLE --Begin--> ASKING --LayerAnswer/LayerFailed--> ASKING ... --> VERIFYING --Verified--> ASKING ...
                                                                                          \\-> DONE

    paced:   IDLE --Begin--> WAITING --Next--> ASKING ... --> PROPOSING --Grant--> VERIFYING --Verified--> ...

In every step the layers are asked in order, each at most once, and one of their drafts - or none - goes to
the target; a tree put together from all of them where the target takes trees. See
:mod:`suffixsvc_driver.policy` for what "pays" means and :mod:`suffixsvc_driver.trust` for what a layer's
probabilities are worth.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Sequence
from typing import Final

from suffixsvc.errors import InvalidConfigError, InvalidInputError, LimitExceededError
from suffixsvc.types import DraftSource
from suffixsvc_driver.accounting import Stats
from suffixsvc_driver.chain import CleanDraft, clean_chain, clean_tree
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
    Grant,
    LayerAnswer,
    LayerFailed,
    Next,
    Verified,
    Verify,
    Wait,
)
from suffixsvc_driver.layer_state import LayerState, layer_state
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.policy import Headroom, RunningRate
from suffixsvc_driver.questions import Questions, in_steps
from suffixsvc_driver.tree import depths_of, follow
from suffixsvc_driver.tree_draft import TreeDraft
from suffixsvc_driver.trust import Trust

__all__ = ["Driver"]

_SOURCE_OF: Final = {
    LayerKind.PROMPT_LOOKUP: DraftSource.PROMPT_LOOKUP,
    LayerKind.SUFFIX: DraftSource.NAMESPACE,
    LayerKind.DRAFT_MODEL: DraftSource.DRAFT_MODEL,
}
#: layers that draft from text, the session's own included
_TEXT_LAYERS: Final = (LayerKind.PROMPT_LOOKUP, LayerKind.SUFFIX)
_NONE: Final = int(DraftSource.NONE)
_PLAIN: Final = Verify()
_NOT_BEGUN: Final = Begin(prompt_length=1, max_tokens=1, context_size=1, vocab_size=1)


class _Phase(enum.StrEnum):
    IDLE = "idle"
    WAITING = "waiting"
    ASKING = "asking"
    PROPOSING = "proposing"
    VERIFYING = "verifying"
    DONE = "done"


class Driver:
    """One generation. Deterministic: the same events give the same decisions.

    Args:
        config: see :class:`DriverConfig`.
        curve: what the target's steps cost; a live one goes on learning from them.
        layers: in the order in which they are asked, cheapest first; under expected gain prompt lookup comes
            after the suffix layers, which know its text.
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
            layer_state(spec, self.trust.asking(spec.name, spec.seconds_per_ask))
            for spec in _in_turn(layers, config.policy)
        ]
        self._questions = Questions(config, self.trust)
        self._rate = rate if rate is not None else RunningRate(config.rate_decay)
        self._controller = make_controller(config)
        self._phase = _Phase.IDLE
        self._begin = _NOT_BEGUN
        self._written = 0
        self._next_layer = 0
        self._ask: AskLayer | None = None
        self._text_searched = False  # a layer that knows the session's own text has answered in this step
        self._verify = _PLAIN
        self._replay = 0
        self._beside = 0  # tokens of other generations in the batch
        self._base = 1  # tokens of the step without any drafts, as far as known when it begins
        self._most = 0  # tokens with logits that may be in it
        self._trees = False
        self._proposed = 0
        self._draft: StepDraft | TreeDraft = StepDraft(self.curve, 1.0, Headroom(0, 1))
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
    def room(self) -> int:
        """The widest batch that this generation could have next, tokens, those computed again left out."""
        return self._room()

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
            case Next():
                self._expect(self._phase is _Phase.WAITING and event.beside >= 0 and event.room >= 1, event)
                self._beside, self._most = event.beside, event.room
                return self._start_step()
            case Grant():
                self._expect(self._phase is _Phase.PROPOSING, event)
                return self._on_grant(event)
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
        gains = self.config.policy is Policy.EXPECTED_GAIN
        # a state that cannot be cut is that of one path
        self._trees = event.max_branches > 1 and gains and not event.replays
        self._most = event.max_width
        return self._end_step()

    def _end_step(self) -> Decision:
        if self._begin.paced:
            self._phase = _Phase.WAITING
            return Wait()
        return self._start_step()

    def _start_step(self) -> Decision:
        self._phase = _Phase.ASKING
        self._next_layer = 0
        self._base = 1 + self._replay + self._beside if self._begin.paced else 1
        headroom = Headroom(self._limit(), self._room(), self._replay + self._beside, self._begin.replays)
        curve = self._trial() or self.curve
        if self._trees:
            self._draft = TreeDraft(curve, self._rate.value, headroom, self._begin.max_branches)
        else:
            self._draft = StepDraft(curve, self._rate.value, headroom)
        self._asking_cost = 0.0
        self._text_searched = False
        for layer in self._layers:
            layer.begin_step()
        if self._wants_plain():
            return self._go_plain()
        return self._ask_next()

    def _learns(self) -> LiveCurve | None:
        """A curve that a step may be taken for. Generations that share a batch have one in common, so all of
        them decide alike, and as the loop does that shares the batch out."""
        return self._live if self.config.policy is Policy.EXPECTED_GAIN else None

    def _trial(self) -> CostCurve | None:
        live = self._learns()
        if live is None or (self._replay and not self._begin.paced):
            return None
        return live.trial(self._base)

    def _wants_plain(self) -> bool:
        live = self._learns()
        return live is not None and live.plain_due

    def _go_plain(self) -> Decision:
        for layer in self._layers:
            self._draft.leave_alone(
                layer.spec.name, "a step without drafts is due, to see what one takes now"
            )
            layer.pass_over()
        self._ask = None
        return self._decide()

    # -- asking

    def _context_left(self) -> int:
        """Tokens that still fit, the newest one included: it is not in the KV cache yet."""
        return self._begin.context_size - self._begin.prompt_length - self._written + 1

    def _room(self) -> int:
        """The widest batch possible. The tokens of a tree need as much room as those of a chain: each is a
        cell of the KV cache, wherever it hangs."""
        return min(self._most, self._context_left())

    def _limit(self) -> int:
        """Drafted tokens that can still be of use: the target adds one of its own."""
        return min(self.config.max_draft_tokens, self._begin.max_tokens - self._written - 1)

    def _ask_next(self) -> Decision:
        while self._next_layer < len(self._layers):
            layer = self._layers[self._next_layer]
            self._next_layer += 1
            if self._text_searched and layer.spec.kind is LayerKind.PROMPT_LOOKUP:
                self._draft.leave_alone(layer.spec.name, "the suffix layer has answered, and knows its text")
                layer.pass_over()
                continue
            ask = self._questions.ask(
                layer,
                self._draft,
                self._feedback,
                first_match=self._controller.value,
                left=self._begin.max_tokens - self._written,
                eog_ids=self._begin.eog_ids,
            )
            if ask is None:
                layer.pass_over()
                continue
            layer.asking.asked()
            layer.after, layer.suggested = ask.after, ask.suggested
            self._ask = ask
            return ask
        self._ask = None
        return self._decide()

    def _on_layer(self, event: LayerAnswer | LayerFailed, budget: int) -> Decision:
        layer = self._layers[self._next_layer - 1]
        counts = self.stats.layer(layer.spec.name)
        counts.asked += 1
        seconds = event.seconds if 0.0 < event.seconds < math.inf else 0.0
        counts.seconds += seconds
        self._asking_cost += in_steps(seconds, self.curve)
        at_hand = self._draft.gain
        gains = self.config.policy is Policy.EXPECTED_GAIN
        if isinstance(event, LayerFailed):
            counts.failures += 1
            layer.measure(0, seconds)
            self._draft.leave_alone(layer.spec.name, "it failed")
        else:
            source = _SOURCE_OF[layer.spec.kind]
            clean = clean_tree if self._trees else clean_chain
            answer = clean(event.draft, budget, self._begin.vocab_size, source, self._begin.eog_ids)
            layer.answer = answer
            counts.junk += answer.junk
            counts.answered += len(answer) > 0
            counts.offered += len(answer)
            layer.measure(len(answer), seconds)
            self._consider(layer, answer, budget)
            self._text_searched |= gains and layer.spec.kind is LayerKind.SUFFIX
        # first-match does not weigh gains; and what makes a tree less believed has added nothing to it
        if gains:
            price = self._draft.rate * in_steps(layer.asking.seconds, self.curve)
            added = max(0.0, self._draft.gain - at_hand)
            every, unit = self.config.probe_every_steps, self.curve.seconds_per_step
            layer.learn(added, price, every, unit)
            if added > 0.0 and layer.spec.kind in _TEXT_LAYERS:
                for other in self._layers:  # what one of them finds, the others would have found
                    if other.spec.kind in _TEXT_LAYERS:
                        other.dry_steps = 0
        return self._ask_next()

    def _consider(self, layer: LayerState, answer: CleanDraft, budget: int) -> None:
        depth = len(layer.after)
        name = layer.spec.name
        depths = depths_of(answer.parents) or range(len(answer))
        probs = tuple(
            self.trust.believe(name, claim, depth + d) for claim, d in zip(answer.claims, depths, strict=True)
        )
        offer = Offer(name, answer.token_ids, answer.sources, probs, parents=answer.parents)
        draft = self._draft
        if isinstance(draft, TreeDraft) or self.config.policy is Policy.EXPECTED_GAIN:
            draft.consider(offer, budget, layer.after, suggested=len(layer.suggested))
        elif draft.choice.length == 0 and len(answer) >= self.config.min_match_tokens:
            draft.take(offer, len(answer), budget)
        else:
            draft.leave_alone(name, f"{len(answer)} tokens are no match" if budget else "told, not asked")

    # -- verifying

    def _decide(self) -> Decision:
        if self._begin.paced:
            self._phase = _Phase.PROPOSING
            proposal = self._draft.propose()
            self._proposed = len(proposal.gains)
            return proposal
        return self._send(self._draft.decide())

    def _on_grant(self, event: Grant) -> Decision:
        counts = (event.length, event.padding, event.beside)
        fits = min(counts) >= 0 and event.length <= self._proposed
        self._expect(fits and 1 + event.length + event.padding <= self._room(), event)
        self._beside = event.beside
        return self._send(self._draft.cut(event.length, event.padding))

    def _send(self, verify: Verify) -> Verify:
        self._phase = _Phase.VERIFYING
        self._verify = verify
        return verify

    def _on_verified(self, event: Verified) -> Decision:
        sent = self._verify
        emitted = event.emitted
        kept = min(len(emitted), event.accepted)
        path = self._path(sent, emitted[:kept])
        fits = (
            0 < len(emitted) <= event.accepted + 1
            and 0 <= event.accepted <= len(sent.token_ids)
            and event.width == len(sent.token_ids) + 1
            and len(path) == kept
        )
        self._expect(fits, event)
        for layer in self._layers:
            layer.label(self.trust, emitted)
        drafted = len(sent.token_ids) - sent.padding
        # padding hangs behind everything else
        accepted = min(event.accepted, drafted) if not sent.parents else sum(i < drafted for i in path)
        written = [*(sent.sources[i] for i in path), *[_NONE] * (len(emitted) - kept)]
        self.stats.count_step(sent, accepted, written, path[:accepted] if sent.parents else ())
        width = event.width + self._replay
        cost = self._cost_of(width) + self._asking_cost
        self.stats.cost += cost
        self.stats.replayed += self._replay
        self._rate.add(len(emitted), cost)
        # a shared batch is observed once, by the loop that shares it out
        if self._live is not None and not self._begin.paced:
            self._live.observe(width, event.seconds, self._base)
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
        return self._end_step()

    @staticmethod
    def _path(sent: Verify, kept: tuple[int, ...]) -> Sequence[int]:
        """Which drafted tokens were written."""
        if sent.parents:
            return follow(sent.token_ids, sent.parents, kept)
        return range(len(kept)) if kept == sent.token_ids[: len(kept)] else ()

    def _cost_of(self, width: int) -> float:
        """In plain steps: of a batch that others share, as much as this generation's share of its tokens."""
        if not self._beside:
            return self.curve.cost(width)
        return self.curve.cost(width + self._beside) * width / (width + self._beside)

    def _finished(self, last: int, stopped: bool) -> FinishReason | None:
        if stopped or last in self._begin.eog_ids:
            return FinishReason.STOP
        if self._written >= self._begin.max_tokens:
            return FinishReason.LENGTH
        if self._context_left() < 1:
            return FinishReason.CONTEXT
        return None


def _in_turn(layers: Sequence[LayerSpec], policy: Policy) -> Sequence[LayerSpec]:
    """Layers as they are asked. Under expected gain prompt lookup is what is left where no suffix layer
    answers, so it comes after them; first-match keeps the order it is given."""
    last = max((i for i, spec in enumerate(layers) if spec.kind is LayerKind.SUFFIX), default=-1)
    if policy is not Policy.EXPECTED_GAIN or last < 0:
        return layers
    lookups = [spec for spec in layers[:last] if spec.kind is LayerKind.PROMPT_LOOKUP]
    return [*(spec for spec in layers[: last + 1] if spec not in lookups), *lookups, *layers[last + 1 :]]
