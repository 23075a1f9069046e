"""Tables of `bench decode`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from suffixsvc_bench.report.tables import Grid

__all__ = ["against_grid", "decode_grid", "failure_sentences", "forecast_grid", "priced_grid"]

#: step widths whose costs are listed beside a forecast
_WIDTHS: Final = (2, 4, 8, 16)


def decode_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each workload and variant, from :meth:`Measured.as_dict`."""
    grid = Grid(
        (
            "workload",
            "variant",
            "speedup (95 %)",
            "median of calls",
            "tokens/s",
            "MAT",
            "drafted",
            "accepted",
            "queries p50 / p99 ms",
            "driver ms",
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
                f"{row['tokens_per_step']:.2f}" if row["tokens_per_step"] else "",
                f"{row['drafted']:,}",
                f"{row['accepted']:,} ({row['acceptance']:.0%})",
                f"{row['own_ms_p50']:.2f} / {row['own_ms_p99']:.2f}" if row["own_ms_p99"] else "",
                f"{row['deciding_ms']:.2f}" if row["deciding_ms"] else "",
                str(ratio["pairs"]),
            ]
        )
    return grid


def forecast_grid(measured: Mapping[str, Any]) -> Grid:
    """The first variant's speedup beside the forecast of the replay, and the costs of that forecast.

    Results of older versions have no costs.
    """
    curves = measured.get("forecast_curves", {})
    heads = ("workload", "measured", "forecast by replay", "measured / forecast")
    grid = Grid((*heads, "at costs of 2, 4, 8, 16 tokens") if curves else heads)
    for workload, forecast in measured["forecasts"].items():
        row = next((r for r in measured["rows"] if r["workload"] == workload), None)
        if row is not None and forecast:
            value = row["speedup"]["value"]
            cells = [workload, f"{value:.2f}", f"{forecast:.2f}", f"{value / forecast:.2f}"]
            grid.rows.append([*cells, _costs(curves[workload]["costs"])] if curves else cells)
    return grid


def _costs(costs: Sequence[float]) -> str:
    return ", ".join(f"{costs[width]:.2f}" for width in _WIDTHS if width < len(costs))


def failure_sentences(measured: Mapping[str, Any]) -> list[str]:
    """One sentence for each variant that failed."""
    return [
        f"{variant} failed on {workload}: {why}"
        for workload, variants in measured.get("failed", {}).items()
        for variant, why in variants.items()
    ]


def against_grid(measured: Mapping[str, Any]) -> Grid | None:
    """Speedup of the first variant over each other variant; None if there is no other."""
    others = list(dict.fromkeys(name for variants in measured["against"].values() for name in variants))
    if not others:
        return None
    grid = Grid(("workload", *(f"/ {name}" for name in others)))
    for workload, variants in measured["against"].items():
        cells = []
        for name in others:
            ratio = variants.get(name)
            cells.append(
                "" if ratio is None else f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"
            )
        grid.rows.append([workload, *cells])
    return grid


def priced_grid(rows: list[Mapping[str, Any]]) -> Grid:
    """A row for each workload and setting at supplied costs, with the accepted tokens of each layer."""
    layers = list(dict.fromkeys(name for row in rows for name in row["by_layer"]))
    grid = Grid(
        ("workload", "variant", "speedup", "MAT", "drafted", "accepted", *(f"of {n}" for n in layers))
    )
    for row in rows:
        grid.rows.append(
            [
                row["workload"],
                row["setting"],
                f"{row['speedup']:.2f}",
                f"{row['tokens_per_step']:.2f}",
                f"{row['drafted']:,}",
                f"{row['accepted']:,}",
                *(f"{row['by_layer'].get(name, 0):,}" for name in layers),
            ]
        )
    return grid
