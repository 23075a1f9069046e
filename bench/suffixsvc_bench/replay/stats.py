"""Counters of a replay, the rates derived from them, and the calibration of its draft probabilities.

Costs are applied last: a method that ignores costs is replayed once, and the widths of its steps determine
the cost of the replay for any cost curve.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np

from suffixsvc.types import Draft, DraftSource, VerifyCost
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.report.statistics import percentiles

#: "prompt": evidence in the session's own text; "suffix": in another session's output
LAYERS: Final = {
    "prompt": frozenset({int(DraftSource.SESSION), int(DraftSource.PROMPT_LOOKUP)}),
    "suffix": frozenset({int(DraftSource.NAMESPACE), int(DraftSource.CORPUS)}),
}
BINS: Final = 20


class ReliabilityBin(NamedTuple):
    """Nodes of similar predicted probability."""

    predicted: float  #: mean path probability
    observed: float  #: share that was accepted
    nodes: int


@dataclass(frozen=True, slots=True)
class Reliability:
    """A reliability diagram with two summary measures.

    Attributes:
        ece: expected calibration error, the mean of |predicted - observed| over all nodes.
        largest_bin_gap: the largest |predicted - observed| of a bin.
        bins: by ascending probability, of equal mass up to ties.
    """

    ece: float
    largest_bin_gap: float
    bins: tuple[ReliabilityBin, ...]


def reliability(predicted: Any, accepted: Any, bins: int = BINS) -> Reliability | None:
    """Group nodes into equal-mass bins of predicted probability; equal probabilities share a bin.

    Args:
        predicted: float[n] path probabilities.
        accepted: bool[n].
        bins: number of bins.

    Returns:
        None without nodes.
    """
    p = np.asarray(predicted, np.float64)
    hit = np.asarray(accepted, np.float64)
    if not len(p):
        return None
    order = np.argsort(p, kind="stable")
    p, hit = p[order], hit[order]
    wanted = np.linspace(0, len(p), bins + 1)[1:-1].round().astype(np.int64)
    # a cut inside a run of equal probabilities moves to the run's start
    cuts = np.unique(np.searchsorted(p, p[np.minimum(wanted, len(p) - 1)], side="left"))
    edges = [0, *[int(c) for c in cuts if 0 < c < len(p)], len(p)]
    made = tuple(
        ReliabilityBin(float(p[a:b].mean()), float(hit[a:b].mean()), b - a) for a, b in pairwise(edges)
    )
    gaps = [abs(b.predicted - b.observed) for b in made]
    ece = sum(gap * b.nodes for gap, b in zip(gaps, made, strict=True)) / len(p)
    return Reliability(ece, max(gaps), made)


def pooled(bins: Sequence[ReliabilityBin], count: int = BINS) -> list[tuple[float, float]]:
    """Merge the bins of several replays into about ``count`` of similar mass: (predicted, observed),
    ascending.
    """
    ordered = sorted(bins, key=lambda b: b.predicted)
    mass = sum(b.nodes for b in ordered) / count
    points: list[tuple[float, float]] = []
    predicted = observed = filled = 0.0
    for number, one in enumerate(ordered, 1):
        predicted += one.predicted * one.nodes
        observed += one.observed * one.nodes
        filled += one.nodes
        # slightly less than the mass: bins of one replay have it up to one node
        if filled >= 0.9 * mass or number == len(ordered):
            points.append((predicted / filled, observed / filled))
            predicted = observed = filled = 0.0
    return points


class Calibration:
    """Path probability and outcome of every drafted node of a replay: 5 bytes per node."""

    def __init__(self) -> None:
        self._predicted = array("f")
        self._accepted = bytearray()

    def add(self, parents: list[int], probs: list[float], path: list[int]) -> None:
        """Add a draft's nodes; ``path`` are the accepted ones. Drafts without probabilities are skipped."""
        if not probs or probs[0] != probs[0]:
            return
        whole: list[float] = []
        for parent, p in zip(parents, probs, strict=True):
            whole.append(p if parent < 0 else whole[parent] * p)
        outcome = bytearray(len(whole))
        for node in path:
            outcome[node] = 1
        self._predicted.extend(whole)
        self._accepted += outcome

    def __len__(self) -> int:
        return len(self._accepted)

    def reliability(self) -> Reliability | None:
        """The reliability diagram; None without nodes."""
        return reliability(self._predicted, np.frombuffer(bytes(self._accepted), np.uint8))


@dataclass(slots=True)
class LayerRates:
    """Counts of steps and tokens of one layer."""

    num_steps_with_draft: int = 0
    num_steps_with_hit: int = 0
    num_drafted: int = 0
    num_accepted: int = 0


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
    #: (tokens, steps, steps with a hit, accepted tokens) at the end of each call
    totals: list[tuple[int, int, int, int]] = field(default_factory=list)
    memory_bytes: int = 0

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
            drafted_by_layer = sum(source in LAYERS[name] for source in sources)
            accepted_by_layer = sum(sources[node] in LAYERS[name] for node in path)
            rates.num_drafted += drafted_by_layer
            rates.num_accepted += accepted_by_layer
            rates.num_steps_with_draft += drafted_by_layer > 0
            rates.num_steps_with_hit += accepted_by_layer > 0
        self.calibration.add(draft.parents.tolist(), draft.probs.tolist(), path)

    def end_call(self) -> None:
        """Record the totals at the end of a call."""
        self.totals.append((self.tokens, self.steps, self.steps_with_hit, self.accepted))

    def speedup(self, cost: VerifyCost) -> float:
        """Tokens per plain step of cost; 1 = plain decoding."""
        return share(self.tokens, total_cost(self.widths, cost))

    def rates(self) -> dict[str, Any]:
        """JSON-able rates between 0 and 1, means, and the counts they are derived from."""
        steps = self.steps
        return {
            "calls": len(self.totals),
            "tokens": self.tokens,
            "steps": steps,
            "mean_accepted_tokens": share(self.tokens, steps),
            "drafted_per_step": share(self.drafted, steps),
            "acceptance_rate": share(self.accepted, self.drafted),
            "steps_with_draft": share(self.steps_with_draft, steps),
            "steps_with_hit": share(self.steps_with_hit, steps),
            "tokens_accepted": share(self.accepted, self.tokens),
            "microseconds": percentiles(self.seconds.tolist() or [0.0]),
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
