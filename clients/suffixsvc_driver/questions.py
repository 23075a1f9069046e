"""What a layer is asked for in a step: a question has a price, and a draft at hand makes it worth less."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from suffixsvc_driver.config import DriverConfig, LayerKind, Policy
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.drafting import Offer, StepDraft
from suffixsvc_driver.events import AskLayer, Feedback
from suffixsvc_driver.layer_state import DraftModelState, LayerState
from suffixsvc_driver.policy import Choice, Headroom, best_ask
from suffixsvc_driver.tree_draft import TreeDraft
from suffixsvc_driver.trust import Trust

__all__ = ["Questions", "in_steps"]

_Probs = tuple[float, ...]
#: what a draft model is believed to get right before anything was seen
_DRAFT_MODEL_PRIOR: Final = 0.7


class _Plan(NamedTuple):
    """What a question would bring, what it goes on behind, and what it suggests."""

    choice: Choice
    after: tuple[int, ...] = ()
    suggested: tuple[int, ...] = ()


class _Best(Protocol):
    def __call__(self, acceptance: float, after: _Probs = (), suggested: _Probs = ()) -> Choice: ...


def in_steps(seconds: float, curve: CostCurve) -> float:
    """In plain steps of the target; 0 where nobody knows how long one takes."""
    unit = curve.seconds_per_step
    return seconds / unit if unit else 0.0


class Questions:
    """Of one generation."""

    def __init__(self, config: DriverConfig, trust: Trust) -> None:
        self._config, self._trust = config, trust

    def ask(
        self,
        layer: LayerState,
        draft: StepDraft | TreeDraft,
        verified: Feedback | None,
        *,
        first_match: int,
        left: int,
        eog_ids: frozenset[int] = frozenset(),
    ) -> AskLayer | None:
        """What to ask this layer; a budget of 0 tells it what was written, None leaves it alone.

        Args:
            draft: what the layers before it have offered.
            verified: what the target got in the last step.
            first_match: how many tokens the controller drafts under that policy.
            left: tokens that may still be written.
            eog_ids: tokens behind which there is nothing.
        """
        limit = min(draft.headroom.limit, layer.spec.max_draft_tokens)
        if self._config.policy is Policy.EXPECTED_GAIN:
            if isinstance(layer, DraftModelState):
                return self._ask_draft_model(layer, draft, limit, verified, left, eog_ids)
            budget = self._paying_budget(layer, draft, limit)
        elif draft.choice.length == 0:
            budget = max(0, min(limit, first_match, draft.headroom.room - 1))
        elif layer.spec.kind is LayerKind.SUFFIX:
            budget = 0
        else:
            draft.leave_alone(layer.spec.name, "the first match is taken")
            return None
        return None if budget is None else AskLayer(layer.spec.name, budget, verified)

    def _paying_budget(self, layer: LayerState, draft: StepDraft | TreeDraft, limit: int) -> int | None:
        curve, headroom = draft.curve, draft.headroom
        due = layer.asking.due(self._config.probe_every_steps, curve.seconds_per_step)
        widest = curve.max_width - 1 - headroom.beside
        budget = min(limit, curve.widest_paying - 1, headroom.room - 1, widest)
        if budget < 1:
            draft.leave_alone(layer.spec.name, _why_no_budget(limit, headroom.room))
            return None
        # no question is worth more than a draft of which every token is right
        worth = float(budget) if due else layer.asking.worth(layer.dry_steps)
        price = draft.rate * in_steps(layer.asking.seconds, curve)
        if worth > price:
            return budget
        why = f"asking costs {price:.2g} tokens, more than the {worth:.2g} it has been worth here"
        draft.leave_alone(layer.spec.name, why)
        return None

    def _ask_draft_model(
        self,
        layer: DraftModelState,
        draft: StepDraft | TreeDraft,
        limit: int,
        verified: Feedback | None,
        left: int,
        eog_ids: frozenset[int],
    ) -> AskLayer | None:
        """The plan that is worth most, if it is worth its price."""
        curve, rate, room = draft.curve, draft.rate, draft.headroom
        headroom = Headroom(limit, room.room, room.beside, room.replays)

        def best(acceptance: float, after: _Probs = (), suggested: _Probs = ()) -> Choice:
            return best_ask(
                acceptance,
                curve,
                rate,
                headroom,
                after=after,
                suggested=suggested,
                cost_per_ask=in_steps(layer.spec.seconds_per_ask, curve),
                cost_per_token=in_steps(layer.token_seconds, curve),
                cost_per_read=in_steps(layer.read_seconds, curve),
            )

        name, acceptance = layer.spec.name, self._trust.acceptance(layer.spec.name, _DRAFT_MODEL_PRIOR)
        reading = layer.reading_seconds
        plans = _plans(layer, draft.offer, limit - 1, acceptance, best, eog_ids)
        hoped, after, suggested = max(plans, key=lambda plan: plan.choice.gain)
        asked = hoped.length - len(after)
        at_hand = draft.gain_behind if after else draft.gain
        # reading is paid once and may serve every step that is left
        gain = (hoped.gain - at_hand) * max(1.0, left / (1 + hoped.length))
        if gain > rate * in_steps(reading, curve):
            return AskLayer(name, asked, verified, after, suggested)
        price = reading + layer.token_seconds
        if not layer.asking.due(self._config.probe_every_steps, curve.seconds_per_step, price):
            each, first = in_steps(layer.token_seconds, curve), in_steps(reading, curve)
            why = f"a token costs {each:.2g} plain steps, reading {first:.2g}, {acceptance:.0%} are accepted"
            draft.leave_alone(name, f"no draft of it would pay: {why}")
            return None
        ideal = best(1.0)
        if ideal.gain > draft.gain:
            return AskLayer(name, ideal.length, verified)
        draft.leave_alone(name, "even right in every token it would not pay")
        return None


def _plans(
    layer: DraftModelState,
    offer: Offer,
    most: int,
    acceptance: float,
    best: _Best,
    eog_ids: frozenset[int],
) -> Iterator[_Plan]:
    """Ways to ask a draft model: as if nothing was there; with the draft at hand suggested to it; where it
    does not look at suggestions, to go on behind that draft, before what is doubted more than its own."""
    yield _Plan(best(acceptance))
    probs = offer.probs[:most]
    if layer.spec.checks:
        if count := _suggestions(probs, layer):
            choice = best(acceptance, suggested=probs[:count])
            yield _Plan(choice, suggested=offer.token_ids[: max(0, min(count, choice.length - 1))])
    elif layer.spec.continues:
        for start in _handovers(probs, acceptance):
            if offer.token_ids[start - 1] in eog_ids:
                break
            yield _Plan(best(acceptance, probs[:start]), after=offer.token_ids[:start])


def _handovers(probs: _Probs, acceptance: float) -> list[int]:
    """Behind how many tokens of a draft a layer of this acceptance might go on: before each one that is
    doubted more than the layer's own, and behind all."""
    lengths = [length for length in range(1, len(probs)) if probs[length] < acceptance]
    return [*lengths, len(probs)] if probs else []


def _suggestions(probs: _Probs, layer: DraftModelState) -> int:
    """How many tokens of a draft to suggest: as long as one is likelier to save a pass than reading it costs
    of one."""
    path, most = 1.0, min(len(probs), layer.spec.checks)
    for length in range(most):
        path *= probs[length]
        if path * layer.token_seconds <= layer.read_seconds:
            return length
    return most


def _why_no_budget(limit: int, room: int) -> str:
    if limit < 1:
        return "only one more token is wanted"
    if room < 2:
        return "the context is full behind the next token"
    return "no wider batch pays, even if every token of it were right"
