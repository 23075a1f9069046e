"""Planner of queries: whether to query a layer in a step, for how many tokens, continuing which draft.

A query is made if its expected gain over the best draft so far exceeds its cost, or if an exploratory
query is due.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.policy.expected_gain import Choice, StepParams, best_prefix, best_query
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind, Policy
from suffixsvc_driver.speculation.draft_assembly import Candidate, StepDraft
from suffixsvc_driver.speculation.layer_state import DraftModelState, LayerState

_Probs = tuple[float, ...]
#: prior acceptance rate of a draft model
_DRAFT_MODEL_PRIOR: Final = 0.7


class _Plan(NamedTuple):
    """Possible query: its best outcome, the tokens that it continues, and the tokens that it suggests."""

    choice: Choice
    after: tuple[int, ...] = ()
    suggested: tuple[int, ...] = ()


def in_steps(seconds: float, curve: CostCurve) -> float:
    """Convert seconds to plain steps of the target; 0 if the seconds of a plain step are unknown."""
    unit = curve.seconds_per_step
    return seconds / unit if unit else 0.0


class DraftPlanner:
    """Plans the queries of one generation.

    Attributes:
        eog_ids: end-of-generation tokens.
    """

    def __init__(self, config: DriverConfig) -> None:
        self._config = config
        self.eog_ids: frozenset[int] = frozenset()

    def plan(self, layer: LayerState, draft: StepDraft, k: int, left: int) -> QueryLayer | str:
        """Return the query of a layer in this step, or the reason why it is not queried.

        A query of budget 0 only passes on the emitted tokens.

        Args:
            layer: the layer to query.
            draft: the draft of the layers before it.
            k: K of the first-match policy: largest number of tokens to draft.
            left: tokens that may still be emitted.
        """
        step, name = draft.step, layer.spec.name
        limit = min(step.limit, layer.spec.max_draft_tokens)
        if self._config.policy is Policy.EXPECTED_GAIN:
            if isinstance(layer, DraftModelState):
                return self._query_draft_model(layer, draft, step._replace(limit=limit), left)
            return self._paying_query(layer, step, limit)
        if draft.choice.length == 0:
            return QueryLayer(name, max(0, min(limit, k, step.room - 1)))
        # a suffix session stores what is emitted, and its siblings draft from that at once; others catch up
        return QueryLayer(name, 0) if layer.spec.kind is LayerKind.SUFFIX else "an earlier layer has matched"

    def _paying_query(self, layer: LayerState, step: StepParams, limit: int) -> QueryLayer | str:
        curve = step.curve
        due = layer.value.exploration_due(self._config.probe_every_steps, curve.seconds_per_step)
        widest = curve.max_width - 1 - step.other_tokens
        budget = min(limit, curve.widest_paying - 1, step.room - 1, widest)
        if budget < 1:
            return _why_no_budget(step._replace(limit=limit))
        if layer.spec.kind is LayerKind.GRAMMAR:  # what a grammar forces does not depend on earlier steps
            return QueryLayer(layer.spec.name, budget)
        # the gain of an exploratory query is bounded by a draft that is accepted entirely
        gain = float(budget) if due else layer.value.expected_gain(layer.misses)
        cost = step.rate * in_steps(layer.value.seconds, curve)
        if gain > cost:
            return QueryLayer(layer.spec.name, budget)
        return f"a query costs {cost:.2g} tokens, more than its expected gain of {gain:.2g}"

    def _query_draft_model(
        self, layer: DraftModelState, draft: StepDraft, step: StepParams, left: int
    ) -> QueryLayer | str:
        """Return the query of the largest expected gain, if that exceeds the cost of reading the text."""
        curve = step.curve
        best = functools.partial(
            best_query,
            step=step,
            cost_per_query=in_steps(layer.spec.seconds_per_query, curve),
            cost_per_token=in_steps(layer.token_seconds, curve),
            cost_per_read=in_steps(layer.read_seconds, curve),
        )
        name, acceptance = layer.spec.name, layer.table.acceptance(_DRAFT_MODEL_PRIOR)
        reading = layer.catch_up_seconds
        plans = self._plans(layer, draft.continuable, step.limit - 1, acceptance, best)
        choice, after, suggested = max(plans, key=lambda plan: plan.choice.gain)
        best_gain = draft.choice.gain
        if after:
            best_gain = best_prefix(draft.continuable.probs, draft.step).gain
        # the text is read once, and that may serve every remaining step
        gain = (choice.gain - best_gain) * max(1.0, left / (1 + choice.length))
        if gain > step.rate * in_steps(reading, curve):
            return QueryLayer(name, choice.length - len(after), None, after, suggested)
        seconds = reading + layer.token_seconds
        if not layer.value.exploration_due(self._config.probe_every_steps, curve.seconds_per_step, seconds):
            each, first = in_steps(layer.token_seconds, curve), in_steps(reading, curve)
            why = f"a token costs {each:.2g} plain steps, reading {first:.2g}, {acceptance:.0%} are accepted"
            return f"no draft of it would pay: {why}"
        ideal = best(1.0)
        if ideal.gain > draft.choice.gain:
            return QueryLayer(name, ideal.length)
        return "no draft of it would pay, even if every token were accepted"

    def _plans(
        self,
        layer: DraftModelState,
        candidate: Candidate,
        most: int,
        acceptance: float,
        best: Callable[..., Choice],
    ) -> Iterator[_Plan]:
        """Yield the possible queries of a draft model.

        A query independent of the draft so far; one with the draft suggested to it, if it verifies
        suggestions; else queries that continue the draft at each handover position.
        """
        yield _Plan(best(acceptance))
        probs = candidate.probs[:most]
        if layer.spec.max_suggested:
            if count := _suggestions(probs, layer):
                choice = best(acceptance, suggested=probs[:count])
                yield _Plan(choice, suggested=candidate.token_ids[: max(0, min(count, choice.length - 1))])
        elif layer.spec.can_continue:
            for start in _handovers(probs, acceptance):
                if candidate.token_ids[start - 1] in self.eog_ids:
                    break
                yield _Plan(best(acceptance, after=probs[:start]), after=candidate.token_ids[:start])


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
    path, most = 1.0, min(len(probs), layer.spec.max_suggested)
    for length in range(most):
        path *= probs[length]
        if path * layer.token_seconds <= layer.read_seconds:
            return length
    return most


def _why_no_budget(step: StepParams) -> str:
    if step.limit < 1:
        return "only one more token is wanted"
    if step.room < 2:
        return "the context or the batch is full after the next token"
    return "no wider batch pays, even if every token were accepted"
