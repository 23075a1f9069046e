"""What ``suffixsvc bench decode`` found, as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from suffixsvc_bench.decode.figures import Pair, Ratio, Row
from suffixsvc_bench.decode.priced import PricedRow
from suffixsvc_bench.decode.variants import Setting
from suffixsvc_bench.provenance import Provenance

__all__ = ["Measured"]


@dataclass(slots=True)
class Measured:
    """What came out.

    Attributes:
        rows: one for each workload and way.
        forecasts: by workload: what the replay of the same calls says, see
            :mod:`suffixsvc_bench.decode.forecast`.
        forecast_curves: by workload: what they are made with, the costs of all ways' steps while it was run.
        pairs: by workload and way, every single pair.
        against: by workload and other way: the first way's speed over it.
        priced: at supplied prices, by their name.
        curve: of the first target, when the run began.
        settings: what was compared at the first temperature on the first target, by name.
        compared: the pairs of that: by workload and way.
        failed: by workload and way of somebody else's: why it was left out.
    """

    provenance: Provenance
    target: str
    draft: str
    threads: int
    curve: dict[str, Any]
    options: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    forecasts: dict[str, float] = field(default_factory=dict)
    forecast_curves: dict[str, dict[str, Any]] = field(default_factory=dict)
    pairs: dict[str, dict[str, list[Pair]]] = field(default_factory=dict)
    against: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    priced: dict[str, list[PricedRow]] = field(default_factory=dict)
    prices: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)
    compared: dict[str, dict[str, list[Pair]]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, every pair included."""
        return {
            "provenance": self.provenance.as_dict(),
            "target": self.target,
            "draft": self.draft,
            "threads": self.threads,
            "curve": self.curve,
            "options": self.options,
            "rows": [row.as_dict() for row in self.rows],
            "forecasts": self.forecasts,
            "forecast_curves": self.forecast_curves,
            "against": {w: {n: asdict(r) for n, r in ways.items()} for w, ways in self.against.items()},
            "failed": self.failed,
            "prices": self.prices,
            "priced": {name: [asdict(row) for row in rows] for name, rows in self.priced.items()},
            "pairs": {
                workload: {name: [_plain(pair) for pair in pairs] for name, pairs in ways.items()}
                for workload, ways in self.pairs.items()
            },
        }


def _plain(pair: Pair) -> dict[str, Any]:
    def outcome(which: Any) -> dict[str, Any]:
        return {
            "tokens": which.tokens,
            "seconds": round(which.seconds, 5),
            "steps": which.steps,
            "drafted": which.drafted,
            "accepted": which.accepted,
            "by_layer": which.by_layer,
            "asking_seconds": round(sum(which.own_ms) / 1e3, 5),
            "deciding_seconds": round(which.deciding_seconds, 5),
        }

    return {
        "job": pair.job,
        "agent": pair.agent,
        "ratio": round(pair.ratio, 4),
        "outcome": outcome(pair.outcome),
        "reference": outcome(pair.reference),
    }
