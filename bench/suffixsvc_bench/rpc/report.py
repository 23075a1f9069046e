"""Results of the benchmark of the wire as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffixsvc_bench.report.tables import Grid

_HEADINGS = ("us per call", "step p50", "step p90", "step p99", "echo p50", "echo p90", "echo p99")
_DERIVED = ("ratio", "beyond", "engine", "steps/s")


def rpc_grid(report: Mapping[str, Any]) -> Grid:
    """The timings of a run, one row per configuration."""
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


def rpc_parts(report: Mapping[str, Any]) -> list[Grid | str]:
    """The table, and one sentence on the number of calls and the drafts."""
    timings, options = report["timings"], report["options"]
    drafted = sum(t["drafted"] for t in timings) / len(timings)
    line = f"Percentiles of {options['calls']} calls; {drafted:.1f} tokens drafted per step; "
    return [rpc_grid(report), f"{line}seed {options['seed']}."]
