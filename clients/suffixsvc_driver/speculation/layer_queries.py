"""Queries of one generation: which layer is queried next in a step, and what its answer adds to the draft.

In every step the layers are queried in order, each at most once. Under expected gain, prompt lookup comes
after the suffix layers, which contain the session's text, and is skipped if one of them has answered.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from suffixsvc.types import DraftSource, Verified
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.chain import CleanDraft, valid_draft
from suffixsvc_driver.drafts.events import Begin, LayerAnswer, LayerFailed, QueryLayer
from suffixsvc_driver.drafts.tree import depths_of
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.policy.expected_gain import StepParams
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind, LayerSpec, Policy
from suffixsvc_driver.speculation.accounting import Stats
from suffixsvc_driver.speculation.draft_assembly import Candidate, StepDraft
from suffixsvc_driver.speculation.draft_planner import DraftPlanner, in_steps
from suffixsvc_driver.speculation.layer_state import LayerState, layer_state

_SOURCE_OF: Final = {
    LayerKind.GRAMMAR: DraftSource.GRAMMAR,
    LayerKind.PREDICTION: DraftSource.PREDICTION,
    LayerKind.PROMPT_LOOKUP: DraftSource.PROMPT_LOOKUP,
    LayerKind.SUFFIX: DraftSource.NAMESPACE,
    LayerKind.DRAFT_MODEL: DraftSource.DRAFT_MODEL,
}
#: layers that draft from text, the session's own included
_TEXT_LAYERS: Final = (LayerKind.PROMPT_LOOKUP, LayerKind.SUFFIX)


class LayerQueries:
    """Layers of one generation and the queries of its current step.

    Args:
        config: settings of the driver.
        specs: the layers, cheapest first.
        calibrator: learned statistics by layer name.
        stats: counts to update.

    Attributes:
        layers: state of each layer, in query order.
        pending: the query that has not been answered yet.
        draft: draft of the current step.
        cost: of the queries of the current step, in plain steps.
    """

    def __init__(
        self, config: DriverConfig, specs: Sequence[LayerSpec], calibrator: Calibrator, stats: Stats
    ) -> None:
        self._config, self._stats = config, stats
        self._by_gain = config.policy is Policy.EXPECTED_GAIN
        self.layers = [
            layer_state(
                spec,
                calibrator.layer_value(spec.name, spec.seconds_per_query),
                calibrator.table(spec.name),
            )
            for spec in _query_order(specs, config.policy)
        ]
        self._planner = DraftPlanner(config)
        self._begin = Begin(prompt_length=1, max_tokens=1, context_size=1, vocab_size=1)
        self._next = 0
        self._text_searched = False  # a layer that contains the session's text has answered in this step
        self._smallest_match = config.min_match_tokens
        self.pending: QueryLayer | None = None
        self.draft = StepDraft(StepParams(CostCurve((0.0, 1.0)), 1.0, 0, 1))
        self.cost = 0.0

    def begin(self, event: Begin) -> None:
        """Start the generation."""
        self._begin = event
        self._planner.eog_ids = event.eog_ids
        self.wrote(event.prompt_length)

    def start_step(self, draft: StepDraft) -> None:
        """Start a step with an empty draft."""
        self.draft = draft
        self._next = 0
        self._text_searched = False
        self.cost = 0.0
        for layer in self.layers:
            layer.begin_step()

    def skip_all(self, reason: str) -> None:
        """Skip all layers in this step."""
        for layer in self.layers:
            self.draft.record_skip(layer.spec.name, reason)
            layer.skip()

    def next_query(self, verified: Verified | None, k: int, left: int) -> QueryLayer | None:
        """Return the next query of the step, or None if no layer is left.

        Args:
            verified: result of the last step.
            k: K of the first-match policy: largest number of tokens to draft.
            left: tokens that may still be emitted.
        """
        self.pending = None
        if not self._by_gain:
            self._smallest_match = min(self._config.min_match_tokens, max(1, k))
        while self._next < len(self.layers):
            layer = self.layers[self._next]
            self._next += 1
            if self._text_searched and layer.spec.kind is LayerKind.PROMPT_LOOKUP:
                query: QueryLayer | str = "the suffix layer has answered, and knows its text"
            else:
                query = self._planner.plan(layer, self.draft, k, left)
            if isinstance(query, str):
                self.draft.record_skip(layer.spec.name, query)
                layer.skip()
                continue
            layer.value.record_query()
            layer.after, layer.suggested = query.after, query.suggested
            self.pending = QueryLayer(query.layer, query.budget, verified, query.after, query.suggested)
            break
        return self.pending

    def on_answer(self, event: LayerAnswer | LayerFailed, curve: CostCurve) -> None:
        """Add the answer of the pending query to the draft.

        Args:
            event: the answer.
            curve: current cost of the target's steps.
        """
        layer = self.layers[self._next - 1]
        budget = self.pending.budget if self.pending else 0
        counts = self._stats.layer(layer.spec.name)
        counts.asked += 1
        seconds = event.seconds if 0.0 < event.seconds < math.inf else 0.0
        counts.seconds += seconds
        self.cost += in_steps(seconds, curve)
        best_gain = self.draft.choice.gain
        by_gain = self._by_gain
        if isinstance(event, LayerFailed):
            counts.failures += 1
            layer.measure(0, seconds)
            self.draft.record_skip(layer.spec.name, "it failed")
        else:
            source = _SOURCE_OF[layer.spec.kind]
            begin, trees = self._begin, self.draft.trees
            answer = valid_draft(event.draft, budget, begin.vocab_size, source, begin.eog_ids, trees=trees)
            layer.answer = answer
            counts.junk += answer.junk
            drafted = len(answer.token_ids)
            counts.answered += drafted > 0
            counts.offered += drafted
            layer.measure(drafted, seconds)
            self._consider(layer, answer, budget)
            self._text_searched |= by_gain and layer.spec.kind is LayerKind.SUFFIX
        if by_gain:
            # the gain of a reconciled draft may fall, which is no negative gain of the query
            added = max(0.0, self.draft.choice.gain - best_gain)
            cost = self.draft.step.rate * in_steps(layer.value.seconds, curve)
            layer.learn(added, cost, self._config.probe_every_steps, curve.seconds_per_step)
            if added > 0.0 and layer.spec.kind in _TEXT_LAYERS:
                for other in self.layers:  # a hit of one text layer would have been a hit of the others
                    if other.spec.kind in _TEXT_LAYERS:
                        other.misses = 0

    def _consider(self, layer: LayerState, answer: CleanDraft, budget: int) -> None:
        name, after, drafted = layer.spec.name, len(layer.after), len(answer.token_ids)
        depths = list(range(after, after + drafted))
        if answer.parents:
            depths = [after + depth for depth in depths_of(answer.parents)]
        probs = tuple(layer.table.calibrate(answer.raw_probs, depths))
        candidate = Candidate(name, answer.token_ids, answer.sources, probs, parents=answer.parents)
        draft = self.draft
        if self._by_gain:
            draft.consider(candidate, budget, layer.after, suggested=len(layer.suggested))
        elif draft.choice.length == 0 and drafted >= self._smallest_match:
            draft.take(candidate, drafted, budget)
        else:
            draft.record_skip(name, f"{drafted} tokens are no match" if budget else "notified, not queried")

    def label(self, emitted: tuple[int, ...]) -> None:
        """Calibrate the layers by the tokens emitted in this step."""
        for layer in self.layers:
            layer.label(emitted)

    def wrote(self, tokens: int) -> None:
        """Record that the text has grown by ``tokens`` tokens."""
        for layer in self.layers:
            layer.wrote(tokens)


def _query_order(specs: Sequence[LayerSpec], policy: Policy) -> Sequence[LayerSpec]:
    """Return the layers in query order: that of the grammar first; first-match else keeps the given one."""
    specs = sorted(specs, key=lambda spec: spec.kind is not LayerKind.GRAMMAR)
    last = max((i for i, spec in enumerate(specs) if spec.kind is LayerKind.SUFFIX), default=-1)
    if policy is not Policy.EXPECTED_GAIN or last < 0:
        return specs
    lookups = [spec for spec in specs[:last] if spec.kind is LayerKind.PROMPT_LOOKUP]
    return [*(spec for spec in specs[: last + 1] if spec not in lookups), *lookups, *specs[last + 1 :]]
