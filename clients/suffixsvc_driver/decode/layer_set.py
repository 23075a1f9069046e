"""Layers of one generation: sends them the emitted tokens and queries them, and isolates their failures.

Whatever a layer raises is logged once per layer and treated as an empty draft.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import structlog

from suffixsvc.types import Draft, Verified, VerifyCost
from suffixsvc_driver.drafts.events import LayerAnswer, LayerFailed, QueryLayer
from suffixsvc_driver.layers import CostAwareLayer, Layer
from suffixsvc_driver.sampling.grammar_filter import Permit, cut_forbidden

_log = structlog.get_logger(__name__)


class LayerSet:
    """Layers of one generation, by name.

    Args:
        layers: the layers.
        clock: seconds, to time queries.
        vocab_size: of the target.
        permit: the grammar of the generation; None without one.

    Attributes:
        forbidden: number of drafted tokens that the grammar forbids, by layer.
    """

    def __init__(
        self, layers: Sequence[Layer], clock: Callable[[], float], vocab_size: int, permit: Permit | None
    ) -> None:
        self._layers = {layer.spec.name: layer for layer in layers}
        self._priced = [name for name, layer in self._layers.items() if _is_priced(layer)]
        self._sent = dict.fromkeys(self._layers, 0)  # emitted tokens that each layer has received
        self._failed: set[str] = set()
        self._clock = clock
        self._vocab_size, self._permit = vocab_size, permit
        self.forbidden = dict.fromkeys(self._layers, 0)

    def begin(self, prompt: tuple[int, ...], cost: VerifyCost) -> None:
        """Start the generation in every layer."""
        for name in self._layers:
            self._call(name, "begin", prompt, cost)

    def set_cost(self, cost: VerifyCost) -> None:
        """Send the target's new costs to the layers that use them."""
        for name in self._priced:
            self._call(name, "set_cost", cost)

    def query(self, query: QueryLayer, written: list[int]) -> LayerAnswer | LayerFailed:
        """Query a layer.

        Args:
            query: the query.
            written: all tokens emitted so far.
        """
        name = query.layer
        new = written[self._sent[name] :]
        self._sent[name] = len(written)
        before = self._clock()
        try:
            draft = self._layers[name].draft(new, query)
            seconds = self._clock() - before
            if draft is Draft.unanswered():
                return LayerFailed(name, "no answer in time", seconds)
            if self._permit is not None:
                permit = _permit_after(query.after, self._permit)
                draft, cut = cut_forbidden(draft, query.budget, self._vocab_size, permit)
                self.forbidden[name] += cut
        except Exception as err:
            self._log_failure(name, err)
            return LayerFailed(name, type(err).__name__, self._clock() - before)
        return LayerAnswer(name, draft, seconds)

    def end(self, written: list[int], verified: Verified | None) -> None:
        """Send the remaining tokens to every layer and end the generation."""
        for name in self._layers:
            self._call(name, "end", written[self._sent[name] :], verified)

    def _call(self, name: str, method: str, *args: Any) -> None:
        try:
            getattr(self._layers[name], method)(*args)
        except Exception as err:
            self._log_failure(name, err)

    def _log_failure(self, name: str, err: Exception) -> None:
        if name not in self._failed:
            self._failed.add(name)
            _log.warning("a drafting layer failed; going on without its drafts", layer=name, error=repr(err))


def _permit_after(after: Sequence[int], permit: Permit) -> Permit:
    """Return the grammar's rule for tokens that continue ``after``."""
    if not after:
        return permit
    return lambda tokens: max(0, permit([*after, *tokens]) - len(after))


def _is_priced(layer: Layer) -> bool:
    try:
        return isinstance(layer, CostAwareLayer)
    except Exception:  # the check reads attributes, which runs the layer's code
        return False
