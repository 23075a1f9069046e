"""Results of the benchmark of the wire, as data and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from suffixsvc_bench.report.provenance import Provenance
from suffixsvc_bench.report.tables import Grid

__all__ = ["Percentiles", "RpcReport", "Timing", "rpc_grid", "rpc_line"]


@dataclass(frozen=True, slots=True)
class Percentiles:
    """Microseconds per call."""

    p50: float
    p90: float
    p99: float
    mean: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Percentiles:
        """Percentiles of durations in seconds."""
        p50, p90, p99 = np.percentile(seconds, [50, 90, 99]) * 1e6
        return cls(float(p50), float(p90), float(p99), float(np.mean(seconds)) * 1e6)


@dataclass(frozen=True, slots=True)
class Timing:
    """One configuration: our step and the echo of the same sizes, in alternating rounds of one run.

    Attributes:
        transport: unix or tcp. kind: stream, direct or unary.
        mode: hot (back-to-back calls) or cold (a CPU-bound pause before each call, as in decoding).
        batch: sessions in one message.
        calls: timed calls of either kind.
        request_bytes, reply_bytes: mean message sizes.
        drafted: mean tokens in the answer to a step.
        step, echo: microseconds per message.
        engine: microseconds for steps of as many sessions in this process, without a service.
        ratio: ratio of the medians, step / echo.
        beyond_us_per_session: difference of the medians, step - echo, per session.
        sessions_per_second: steps of one session per second, from the mean, without the caller's own work.
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
        """Ratio of the medians, step / echo."""
        return self.step.p50 / self.echo.p50

    @property
    def beyond_us_per_session(self) -> float:
        """Difference of the medians per session, microseconds."""
        return (self.step.p50 - self.echo.p50) / self.batch

    @property
    def sessions_per_second(self) -> float:
        """Steps of one session per second."""
        return self.batch * 1e6 / self.step.mean

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        derived = ("ratio", "beyond_us_per_session", "sessions_per_second")
        return asdict(self) | {name: getattr(self, name) for name in derived}


@dataclass(frozen=True, slots=True)
class RpcReport:
    """A run: provenance, options and results."""

    provenance: Provenance
    options: dict[str, Any]
    timings: list[Timing]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return {
            "provenance": self.provenance.as_dict(),
            "options": self.options,
            "timings": [timing.as_dict() for timing in self.timings],
        }


_HEADINGS = ("us per call", "step p50", "step p90", "step p99", "echo p50", "echo p90", "echo p99")
_DERIVED = ("ratio", "beyond", "engine", "steps/s")


def rpc_grid(report: Mapping[str, Any]) -> Grid:
    """The timings of :meth:`RpcReport.as_dict`, one row per configuration."""
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
    """One sentence on the number of calls and the drafts."""
    timings, options = report["timings"], report["options"]
    drafted = sum(t["drafted"] for t in timings) / len(timings)
    return (
        f"Percentiles of {options['calls']} calls; {drafted:.1f} tokens drafted per step; "
        f"seed {options['seed']}."
    )
