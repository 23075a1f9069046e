"""Calibration of each layer's probabilities, learned online from the tokens the target writes.

A layer gives every drafted token a raw probability of acceptance. The tokens that the target writes label
these probabilities, whether the draft was sent or not. Three levels of statistics correct them, each
level being the prior of the next, so that a poisoned cache is demoted after a few tokens and an accurate
one is not starved:

    layer                              expected / observed acceptances: scales probabilities down, never up
    layer, raw probability             acceptance in this bucket (of eight), shrunk towards the level above
    layer, raw probability, depth      the same at this depth of the draft (four buckets)

Counts halve at a cap, so the calibration follows a layer whose accuracy changes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from typing import Final

from suffixsvc_driver.policy.decaying_mean import DecayingMean
from suffixsvc_driver.policy.layer_value import LayerValue

#: upper ends of the raw-probability buckets; dense where most drafted tokens lie
_PROBABILITY_EDGES: Final = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
#: first depths of the depth buckets after the first
_DEPTH_EDGES: Final = (1, 4, 10)
#: weight of the level above, in labels
_PRIOR_WEIGHT: Final = 4.0
#: labels after which counts halve
_CAP: Final = 128.0

#: numbers of buckets
_PROBABILITIES: Final = len(_PROBABILITY_EDGES) + 1
_DEPTHS: Final = len(_DEPTH_EDGES) + 1


class _LayerTables:
    """Statistics of one layer. A mean without observations leaves its prior as it is.

    Attributes:
        overall: observed over expected acceptances.
        buckets: acceptance by probability bucket.
        cells: acceptance by probability bucket and depth bucket, the depths of a bucket side by side.
    """

    __slots__ = ("buckets", "cells", "overall")

    def __init__(self) -> None:
        self.overall = DecayingMean(_CAP)
        self.buckets = [DecayingMean(_CAP) for _ in range(_PROBABILITIES)]
        self.cells = [DecayingMean(_CAP) for _ in range(_PROBABILITIES * _DEPTHS)]


class Calibrator:
    """Calibration tables and query statistics of the layers of one pipeline, by layer name.

    Not thread-safe. Generations of the same agent should share one.
    """

    def __init__(self) -> None:
        self._layers: dict[str, _LayerTables] = {}
        self._layer_values: dict[str, LayerValue] = {}

    def layer_value(self, layer: str, prior_seconds: float) -> LayerValue:
        """Cost and expected gain of queries to ``layer``; ``prior_seconds`` counts in the first call only."""
        return self._layer_values.setdefault(layer, LayerValue(prior_seconds))

    def calibrate(self, layer: str, raw_probability: float, depth: int) -> float:
        """P(accepted | all tokens before it accepted) of a drafted token.

        Args:
            raw_probability: as given by the layer, 0 .. 1.
            depth: position in the draft, 0 for the first token.
        """
        return self.calibrate_all(layer, (raw_probability,), (depth,))[0]

    def calibrate_all(
        self, layer: str, raw_probs: Iterable[float], depths: Iterable[int]
    ) -> tuple[float, ...]:
        """:meth:`calibrate` of all tokens of a draft."""
        tables = self._layers.get(layer)
        if tables is None:
            return tuple(raw_probs)
        scale = min(1.0, tables.overall.mean(1.0, _PRIOR_WEIGHT))
        buckets, cells = tables.buckets, tables.cells
        found = []
        for raw, depth in zip(raw_probs, depths, strict=False):
            bucket = bisect_right(_PROBABILITY_EDGES, raw)
            mean = buckets[bucket]
            p = (mean.total + _PRIOR_WEIGHT * (raw * scale)) / (mean.weight + _PRIOR_WEIGHT)
            mean = cells[bucket * _DEPTHS + bisect_right(_DEPTH_EDGES, depth)]
            found.append((mean.total + _PRIOR_WEIGHT * p) / (mean.weight + _PRIOR_WEIGHT))
        return tuple(found)

    def learn(self, layer: str, raw_probability: float, depth: int, hit: bool) -> None:
        """Record a label: whether the target wrote this token, all tokens before it being accepted."""
        tables = self._layers.get(layer)
        if tables is None:
            tables = self._layers[layer] = _LayerTables()
        overall = tables.overall
        overall.add(hit, raw_probability)
        # Underestimates earn no credit that later overestimates could use up.
        overall.total = min(overall.total, overall.weight + _PRIOR_WEIGHT)
        bucket = bisect_right(_PROBABILITY_EDGES, raw_probability)
        tables.buckets[bucket].add(hit)
        tables.cells[bucket * _DEPTHS + bisect_right(_DEPTH_EDGES, depth)].add(hit)

    def acceptance(self, layer: str, prior: float) -> float:
        """Acceptance rate of the layer's labelled tokens; ``prior`` before there are any."""
        hits = seen = 0.0
        tables = self._layers.get(layer)
        if tables is not None:
            for mean in tables.buckets:
                hits, seen = hits + mean.total, seen + mean.weight
        return (hits + _PRIOR_WEIGHT * prior) / (seen + _PRIOR_WEIGHT)
