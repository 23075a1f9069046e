"""What came out, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from suffixsvc_bench.tables import Grid

__all__ = ["decode_grid", "forecast_grid"]


def decode_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each workload and way, from :meth:`Measured.as_dict`."""
    grid = Grid(
        (
            "workload",
            "way",
            "speedup (95 %)",
            "median of calls",
            "tokens/s",
            "MAT",
            "drafted",
            "accepted",
            "asking p50 / p99 ms",
            "calls",
        )
    )
    for row in measured["rows"]:
        ratio = row["speedup"]
        grid.rows.append(
            [
                row["workload"],
                row["variant"],
                f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})",
                f"{ratio['median']:.2f}",
                f"{row['tokens_per_second']:.1f}",
                f"{row['tokens_per_step']:.2f}",
                f"{row['drafted']:,}",
                f"{row['accepted']:,} ({row['acceptance']:.0%})",
                f"{row['own_ms_p50']:.2f} / {row['own_ms_p99']:.2f}",
                str(ratio["pairs"]),
            ]
        )
    return grid


def forecast_grid(measured: Mapping[str, Any]) -> Grid:
    """The default way beside what the replay of the same calls says."""
    grid = Grid(("workload", "measured", "forecast by replay", "measured / forecast"))
    for workload, forecast in measured["forecasts"].items():
        row = next((r for r in measured["rows"] if r["workload"] == workload), None)
        if row is not None and forecast:
            value = row["speedup"]["value"]
            grid.rows.append([workload, f"{value:.2f}", f"{forecast:.2f}", f"{value / forecast:.2f}"])
    return grid
