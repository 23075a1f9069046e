"""Counters of a replay, and the rates derived from them.

Costs are applied last: a method that ignores costs is replayed once, and the widths of its steps determine
the cost of the replay for any cost curve.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

import numpy as np

from suffixsvc.types import Draft, DraftSource, VerifyCost
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.replay.calibration import Calibration

__all__ = ["LAYERS", "LayerRates", "Point", "ReplayStats", "total_cost"]

#: "prompt": evidence in the session's own text; "suffix": in another session's output
LAYERS: Final = {
    "prompt": frozenset({int(DraftSource.SESSION), int(DraftSource.PROMPT_LOOKUP)}),
    "suffix": frozenset({int(DraftSource.NAMESPACE), int(DraftSource.CORPUS)}),
}
_LAYER_OF: Final = {source: name for name, sources in LAYERS.items() for source in sources}
PERCENTILES: Final = (50, 90, 99)


@dataclass(slots=True)
class LayerRates:
    """Counts of steps and tokens of one layer."""

    num_steps_with_draft: int = 0
    num_steps_with_hit: int = 0
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """Increments of one call, a point of the time line."""

    tokens: int
    steps: int
    hits: int
    accepted: int


def share(part: float, whole: float) -> float:
    """part / whole; 0 if whole is 0."""
    return part / whole if whole else 0.0


def total_cost(widths: Mapping[int, int], cost: VerifyCost) -> float:
    """Cost of steps, in plain steps; ``widths`` counts the steps by drafted tokens.

    Raises:
        ValueError: a step was wider than the curve.
    """
    widest = max(widths, default=0)
    curve = as_cost_curve(cost, widest)
    if widest >= len(curve):
        raise ValueError(f"the curve must cover {widest} tokens; it ends at {len(curve) - 1}")
    return float(sum(count * curve[width] for width, count in widths.items()))


@dataclass(slots=True)
class ReplayStats:
    """Counters of one replay."""

    calls: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps_with_draft: int = 0
    steps_with_hit: int = 0
    #: number of steps by drafted tokens
    widths: Counter[int] = field(default_factory=Counter)
    layers: dict[str, LayerRates] = field(default_factory=lambda: {name: LayerRates() for name in LAYERS})
    calibration: Calibration = field(default_factory=Calibration)
    #: seconds of every step inside the method
    seconds: array[float] = field(default_factory=lambda: array("f"))
    points: list[Point] = field(default_factory=list)
    memory_bytes: int = 0
    #: totals at the end of the previous call
    _before: tuple[int, int, int, int] = (0, 0, 0, 0)

    @property
    def steps(self) -> int:
        """Number of steps."""
        return self.widths.total()

    def count(self, draft: Draft, path: list[int], taken: int, seconds: float) -> None:
        """Count a step: its draft, the accepted nodes, the tokens it emitted."""
        drafted = len(draft)
        self.widths[drafted] += 1
        self.tokens += taken
        self.seconds.append(seconds)
        if not drafted:
            return
        self.drafted += drafted
        self.accepted += len(path)
        self.steps_with_draft += 1
        self.steps_with_hit += bool(path)
        sources = draft.sources.tolist()
        for name, rates in self.layers.items():
            drafted_by_layer = sum(_LAYER_OF.get(source) == name for source in sources)
            accepted_by_layer = sum(_LAYER_OF.get(sources[node]) == name for node in path)
            rates.num_drafted += drafted_by_layer
            rates.num_accepted += accepted_by_layer
            rates.num_steps_with_draft += drafted_by_layer > 0
            rates.num_steps_with_hit += accepted_by_layer > 0
        self.calibration.add(draft.parents.tolist(), draft.probs.tolist(), path)

    def end_call(self) -> None:
        """Record the increments of a call that ended."""
        before = self._before
        self.calls += 1
        now = (self.tokens, self.steps, self.steps_with_hit, self.accepted)
        self.points.append(Point(*(b - a for a, b in zip(before, now, strict=True))))
        self._before = now

    def speedup(self, cost: VerifyCost) -> float:
        """Tokens per plain step of cost; 1 = plain decoding."""
        return share(self.tokens, total_cost(self.widths, cost))

    def microseconds(self) -> dict[str, float]:
        """Percentiles of the duration of a step, draft and append together."""
        if not self.seconds:
            return {f"p{p}": 0.0 for p in PERCENTILES} | {"mean": 0.0}
        us = np.frombuffer(self.seconds, np.float32).astype(np.float64) * 1e6
        found = np.percentile(us, PERCENTILES)
        return {f"p{p}": float(x) for p, x in zip(PERCENTILES, found, strict=True)} | {
            "mean": float(us.mean())
        }

    def rates(self) -> dict[str, Any]:
        """JSON-able rates between 0 and 1, means, and the counts they are derived from."""
        steps = self.steps
        return {
            "calls": self.calls,
            "tokens": self.tokens,
            "steps": steps,
            "mean_accepted_tokens": share(self.tokens, steps),
            "drafted_per_step": share(self.drafted, steps),
            "acceptance_rate": share(self.accepted, self.drafted),
            "steps_with_draft": share(self.steps_with_draft, steps),
            "steps_with_hit": share(self.steps_with_hit, steps),
            "tokens_accepted": share(self.accepted, self.tokens),
            "microseconds": self.microseconds(),
            "memory_bytes": self.memory_bytes,
            "layers": {
                name: {
                    "steps_with_draft": share(layer.num_steps_with_draft, steps),
                    "steps_with_hit": share(layer.num_steps_with_hit, steps),
                    "tokens_accepted": share(layer.num_accepted, self.tokens),
                    "acceptance_rate": share(layer.num_accepted, layer.num_drafted),
                    **asdict(layer),
                }
                for name, layer in self.layers.items()
            },
        }
