"""Results of ``suffixsvc bench decode`` as data."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from suffixsvc_bench.decode.figures import LengthRow, Ratio, Row
from suffixsvc_bench.decode.pricing.supplied_costs import SuppliedCostRow
from suffixsvc_bench.decode.variants.variants import Setting
from suffixsvc_bench.report.provenance import Provenance
from suffixsvc_bench.speculation.paired import Outcome, Pair


@dataclass(slots=True)
class Measured:
    """Everything that a run measured.

    Attributes:
        rows: one summary for each workload and variant.
        forecasts: by workload: the speedup of the replay of the same calls, see
            :mod:`suffixsvc_bench.decode.workload.forecast`.
        forecast_curves: by workload: the cost curve of the forecast, learned from all variants' steps in the
            run.
        pairs: by workload and variant, every pair.
        against: by workload and other variant: speedup of the first variant over it.
        cost_rows: rows at supplied costs, by the name of the costs.
        supplied_costs: descriptions of the supplied costs, by name.
        curve: cost curve of the first target at the start of the run.
        settings: by variant: driver settings compared at the first temperature on the first target.
        compared: by workload and variant: the pairs of those settings.
        lengths: by workload and variant: the calls of conversations by the length of their prompts.
        failed: by workload and external variant: why it failed.
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
    cost_rows: dict[str, list[SuppliedCostRow]] = field(default_factory=dict)
    supplied_costs: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)
    compared: dict[str, dict[str, list[Pair]]] = field(default_factory=dict)
    lengths: dict[str, dict[str, list[LengthRow]]] = field(default_factory=dict)
    failed: dict[str, dict[str, str]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data with every pair."""
        return {
            "provenance": self.provenance.as_dict(),
            "target": self.target,
            "draft": self.draft,
            "threads": self.threads,
            "curve": self.curve,
            "options": self.options,
            "rows": [asdict(row) for row in self.rows],
            "forecasts": self.forecasts,
            "forecast_curves": self.forecast_curves,
            "against": {
                w: {n: asdict(r) for n, r in variants.items()} for w, variants in self.against.items()
            },
            "lengths": {
                w: {n: [asdict(row) for row in rows] for n, rows in variants.items()}
                for w, variants in self.lengths.items()
            },
            "failed": self.failed,
            "prices": self.supplied_costs,
            "priced": {name: [asdict(row) for row in rows] for name, rows in self.cost_rows.items()},
            "pairs": {
                workload: {name: [_plain(pair) for pair in pairs] for name, pairs in variants.items()}
                for workload, variants in self.pairs.items()
            },
        }


def _plain(pair: Pair) -> dict[str, Any]:
    def outcome(which: Outcome) -> dict[str, Any]:
        counts = ("tokens", "steps", "drafted", "accepted", "by_layer")
        return {name: getattr(which, name) for name in counts} | {
            "seconds": round(which.seconds, 5),
            "asking_seconds": round(sum(which.own_ms) / 1e3, 5),
            "deciding_seconds": round(which.deciding_seconds, 5),
        }

    return {
        "job": pair.job,
        "agent": pair.agent,
        "prompt_tokens": pair.prompt_tokens,
        "ratio": round(pair.ratio, 4),
        "outcome": outcome(pair.outcome),
        "reference": outcome(pair.reference),
    }
