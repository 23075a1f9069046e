"""What a run found, for people and for machines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from suffixsvc_bench.provenance import Provenance
from suffixsvc_bench.tables import Grid

__all__ = ["Percentiles", "RpcReport", "Timing", "rpc_grid", "rpc_line"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Microseconds a call."""

    p50: float
    p90: float
    p99: float
    mean: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        p50, p90, p99 = np.percentile(seconds, [50, 90, 99]) * 1e6
        return cls(float(p50), float(p90), float(p99), float(np.mean(seconds)) * 1e6)


@dataclass(frozen=True, slots=True)
class Timing:
    """One configuration: our step and the echo of the same sizes, in alternating rounds of one run.

    Attributes:
        transport: unix or tcp. kind: stream, direct or unary.
        mode: hot (calls follow each other) or cold (a CPU-bound pause before each, as a model makes).
        batch: sessions in one message.
        calls: timed, of either.
        request_bytes, reply_bytes: mean sizes.
        drafted: tokens a step was answered with, mean.
        step, echo: microseconds a message.
        engine: the steps of as many sessions without any service, one after the other in this process.
        ratio: of the medians, step / echo.
        beyond_us_per_session: what the median step takes beyond the median echo, for each session.
        sessions_per_second: steps of one session answered, by the mean; the caller's own work left out.
    """

    transport: str
    kind: str
    batch: int
    mode: str
    calls: int
    request_bytes: float
    reply_bytes: float
    drafted: float
    step: Percentiles
    echo: Percentiles
    engine: Percentiles

    @property
    def ratio(self) -> float:
        return self.step.p50 / self.echo.p50

    @property
    def beyond_us_per_session(self) -> float:
        return (self.step.p50 - self.echo.p50) / self.batch

    @property
    def sessions_per_second(self) -> float:
        return self.batch * 1e6 / self.step.mean

    def as_dict(self) -> dict[str, Any]:
        derived = ("ratio", "beyond_us_per_session", "sessions_per_second")
        return asdict(self) | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True, slots=True)
class RpcReport:
    """A run: where, with which options, and what was found."""

    provenance: Provenance
    options: dict[str, Any]
    timings: list[Timing]

    def as_dict(self) -> dict[str, Any]:
        return {
            "provenance": self.provenance.as_dict(),
            "options": self.options,
            "timings": [timing.as_dict() for timing in self.timings],
        }


_HEADINGS = ("microseconds a call", "step p50", "p90", "p99", "echo p50", "p90", "p99")
_DERIVED = ("step / echo", "beyond", "engine", "steps/s")


def rpc_grid(report: Mapping[str, Any]) -> Grid:
    """The timings of :meth:`RpcReport.as_dict`, a row a configuration."""
    grid = Grid([*_HEADINGS, *_DERIVED])
    for t in report["timings"]:
        times = [t[subject][p] for subject in ("step", "echo") for p in ("p50", "p90", "p99")]
        grid.rows.append(
            [
                f"{t['transport']} {t['kind']} x{t['batch']} {t['mode']}",
                *(f"{time:.0f}" for time in times),
                f"{t['ratio']:.2f}",
                f"{t['beyond_us_per_session']:.1f}",
                f"{t['engine']['p50'] / t['batch']:.1f}",
                f"{t['sessions_per_second']:.0f}",
            ]
        )
    return grid


def rpc_line(report: Mapping[str, Any]) -> str:
    """What was counted, in a sentence."""
    timings, options = report["timings"], report["options"]
    drafted = sum(t["drafted"] for t in timings) / len(timings)
    return (
        f"Medians and percentiles of {options['calls']} calls; {drafted:.1f} tokens drafted a step; "
        f"seed {options['seed']}."
    )
