"""Planner of queries: whether to query a layer in a step, for how many tokens, continuing which draft.

A query is made if its expected gain over the best draft so far exceeds its cost, or if an exploratory
query is due.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.events import Feedback, QueryLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.policy.chain_gain import Choice, Headroom, best_query
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind, Policy
from suffixsvc_driver.speculation.draft_assembly import Candidate, StepDraft
from suffixsvc_driver.speculation.layer_state import DraftModelState, LayerState
from suffixsvc_driver.speculation.tree_assembly import TreeDraft

__all__ = ["DraftPlanner", "in_steps"]

_Probs = tuple[float, ...]
#: prior acceptance rate of a draft model
_DRAFT_MODEL_PRIOR: Final = 0.7


class _Plan(NamedTuple):
    """Possible query: its best outcome, the tokens that it continues, and the tokens that it suggests."""

    choice: Choice
    after: tuple[int, ...] = ()
    suggested: tuple[int, ...] = ()


class _Best(Protocol):
    def __call__(self, acceptance: float, after: _Probs = (), suggested: _Probs = ()) -> Choice: ...


def in_steps(seconds: float, curve: CostCurve) -> float:
    """Convert seconds to plain steps of the target; 0 if the seconds of a plain step are unknown."""
    unit = curve.seconds_per_step
    return seconds / unit if unit else 0.0


class DraftPlanner:
    """Plans the queries of one generation."""

    def __init__(self, config: DriverConfig, calibrator: Calibrator) -> None:
        self._config, self._calibrator = config, calibrator

    def plan(
        self,
        layer: LayerState,
        draft: StepDraft | TreeDraft,
        feedback: Feedback | None,
        *,
        k: int,
        left: int,
        eog_ids: frozenset[int] = frozenset(),
    ) -> QueryLayer | None:
        """Return the query of a layer in this step, or None.

        A query of budget 0 only passes on the emitted tokens.

        Args:
            layer: the layer to query.
            draft: the draft of the layers before it.
            feedback: result of the last step.
            k: K of the first-match policy: tokens to draft.
            left: tokens that may still be emitted.
            eog_ids: end-of-generation tokens.
        """
        limit = min(draft.headroom.limit, layer.spec.max_draft_tokens)
        if self._config.policy is Policy.EXPECTED_GAIN:
            if isinstance(layer, DraftModelState):
                return self._query_draft_model(layer, draft, limit, feedback, left, eog_ids)
            budget = self._paying_budget(layer, draft, limit)
        elif draft.choice.length == 0:
            budget = max(0, min(limit, k, draft.headroom.room - 1))
        elif layer.spec.kind is LayerKind.SUFFIX:
            budget = 0
        else:
            draft.record_skip(layer.spec.name, "an earlier layer has matched")
            return None
        return None if budget is None else QueryLayer(layer.spec.name, budget, feedback)

    def _paying_budget(self, layer: LayerState, draft: StepDraft | TreeDraft, limit: int) -> int | None:
        curve, headroom = draft.curve, draft.headroom
        due = layer.value.exploration_due(self._config.probe_every_steps, curve.seconds_per_step)
        widest = curve.max_width - 1 - headroom.other_tokens
        budget = min(limit, curve.widest_paying - 1, headroom.room - 1, widest)
        if budget < 1:
            draft.record_skip(layer.spec.name, _why_no_budget(limit, headroom.room))
            return None
        # the gain of an exploratory query is bounded by a draft that is accepted entirely
        gain = float(budget) if due else layer.value.expected_gain(layer.misses)
        cost = draft.rate * in_steps(layer.value.seconds, curve)
        if gain > cost:
            return budget
        draft.record_skip(
            layer.spec.name, f"a query costs {cost:.2g} tokens, more than its expected gain of {gain:.2g}"
        )
        return None

    def _query_draft_model(
        self,
        layer: DraftModelState,
        draft: StepDraft | TreeDraft,
        limit: int,
        feedback: Feedback | None,
        left: int,
        eog_ids: frozenset[int],
    ) -> QueryLayer | None:
        """Return the query of the largest expected gain, if that exceeds the cost of reading the text."""
        curve, rate, room = draft.curve, draft.rate, draft.headroom
        headroom = Headroom(limit, room.room, room.other_tokens, room.replays)

        def best(acceptance: float, after: _Probs = (), suggested: _Probs = ()) -> Choice:
            return best_query(
                acceptance,
                curve,
                rate,
                headroom,
                after=after,
                suggested=suggested,
                cost_per_query=in_steps(layer.spec.seconds_per_query, curve),
                cost_per_token=in_steps(layer.token_seconds, curve),
                cost_per_read=in_steps(layer.read_seconds, curve),
            )

        name, acceptance = layer.spec.name, self._calibrator.acceptance(layer.spec.name, _DRAFT_MODEL_PRIOR)
        reading = layer.catch_up_seconds
        plans = _plans(layer, draft.candidate, limit - 1, acceptance, best, eog_ids)
        choice, after, suggested = max(plans, key=lambda plan: plan.choice.gain)
        best_gain = draft.continuable_gain if after else draft.gain
        # the text is read once, and that may serve every remaining step
        gain = (choice.gain - best_gain) * max(1.0, left / (1 + choice.length))
        if gain > rate * in_steps(reading, curve):
            return QueryLayer(name, choice.length - len(after), feedback, after, suggested)
        seconds = reading + layer.token_seconds
        if not layer.value.exploration_due(self._config.probe_every_steps, curve.seconds_per_step, seconds):
            each, first = in_steps(layer.token_seconds, curve), in_steps(reading, curve)
            why = f"a token costs {each:.2g} plain steps, reading {first:.2g}, {acceptance:.0%} are accepted"
            draft.record_skip(name, f"no draft of it would pay: {why}")
            return None
        ideal = best(1.0)
        if ideal.gain > draft.gain:
            return QueryLayer(name, ideal.length, feedback)
        draft.record_skip(name, "no draft of it would pay, even if every token were accepted")
        return None


def _plans(
    layer: DraftModelState,
    candidate: Candidate,
    most: int,
    acceptance: float,
    best: _Best,
    eog_ids: frozenset[int],
) -> Iterator[_Plan]:
    """Yield the possible queries of a draft model.

    A query independent of the draft so far; one with the draft suggested to it, if it verifies suggestions;
    else queries that continue the draft at each handover position.
    """
    yield _Plan(best(acceptance))
    probs = candidate.probs[:most]
    if layer.spec.checks:
        if count := _suggestions(probs, layer):
            choice = best(acceptance, suggested=probs[:count])
            yield _Plan(choice, suggested=candidate.token_ids[: max(0, min(count, choice.length - 1))])
    elif layer.spec.continues:
        for start in _handovers(probs, acceptance):
            if candidate.token_ids[start - 1] in eog_ids:
                break
            yield _Plan(best(acceptance, probs[:start]), after=candidate.token_ids[:start])


def _handovers(probs: _Probs, acceptance: float) -> list[int]:
    """Return the prefix lengths of a draft that a layer of this acceptance may continue.

    Before each token that is less probable than the layer's own tokens, and after the last one.
    """
    lengths = [length for length in range(1, len(probs)) if probs[length] < acceptance]
    return [*lengths, len(probs)] if probs else []


def _suggestions(probs: _Probs, layer: DraftModelState) -> int:
    """Return how many tokens of a draft to suggest.

    A token is suggested while the pass that it is expected to save is longer than reading it.
    """
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
        return "the context is full after the next token"
    return "no wider batch pays, even if every token were accepted"
