"""Tables of `bench decode`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from suffixsvc_bench.decode.pricing.supplied_costs import supplied_costs_heading
from suffixsvc_bench.report.tables import Grid

#: step widths whose costs are listed beside a forecast
_WIDTHS: Final = (2, 4, 8, 16)


def decode_parts(measured: Mapping[str, Any]) -> list[Grid | str]:
    """All tables and sentences, from :meth:`Measured.as_dict`."""
    parts: list[Grid | str] = [decode_grid(measured), *failure_sentences(measured), forecast_grid(measured)]
    if measured.get("lengths"):
        parts += ["Conversations, by the length of the prompt:", length_grid(measured)]
    others = against_grid(measured)
    if others is not None:
        first = measured["rows"][0]["variant"]
        parts += [f"{first} over the other variants, on the same answers:", others]
    for name, rows in measured["priced"].items():
        about = measured["prices"][name]
        parts += [f"{supplied_costs_heading(name, about)} ({about}):", priced_grid(rows)]
    return parts


def decode_grid(measured: Mapping[str, Any]) -> Grid:
    """A row for each workload and variant."""
    columns: dict[str, Callable[[Mapping[str, Any]], str]] = {
        "workload": lambda row: row["workload"],
        "variant": lambda row: row["variant"],
        "speedup (95 %)": lambda row: _interval(row["speedup"]),
        "median of calls": lambda row: f"{row['speedup']['median']:.2f}",
        "tokens/s": lambda row: f"{row['tokens_per_second']:.1f}",
        "MAT": lambda row: f"{row['tokens_per_step']:.2f}" if row["tokens_per_step"] else "",
        "drafted": lambda row: f"{row['drafted']:,}",
        "accepted": lambda row: f"{row['accepted']:,} ({row['acceptance']:.0%})",
        "queries p50 / p99 ms": lambda row: (
            f"{row['own_ms_p50']:.2f} / {row['own_ms_p99']:.2f}" if row["own_ms_p99"] else ""
        ),
        "driver ms": lambda row: f"{row['deciding_ms']:.2f}" if row["deciding_ms"] else "",
        "calls": lambda row: str(row["speedup"]["pairs"]),
    }
    return Grid(list(columns), [[cell(row) for cell in columns.values()] for row in measured["rows"]])


def _interval(ratio: Mapping[str, float]) -> str:
    return f"{ratio['value']:.2f} ({ratio['low']:.2f} to {ratio['high']:.2f})"


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


def length_grid(measured: Mapping[str, Any]) -> Grid:
    """Acceptance and speedup by the length of the conversation, for each workload and variant."""
    heads = ("workload", "variant", "prompt tokens", "speedup (95 %)", "MAT", "drafted", "accepted", "calls")
    grid = Grid(heads)
    for workload, variants in measured["lengths"].items():
        for variant, rows in variants.items():
            for row in rows:
                grid.rows.append(
                    [
                        workload,
                        variant,
                        f"{row['least']:,} to {row['most']:,}",
                        _interval(row["speedup"]),
                        f"{row['tokens_per_step']:.2f}" if row["tokens_per_step"] else "",
                        f"{row['drafted']:,}",
                        f"{row['accepted']:,} ({row['acceptance']:.0%})",
                        str(row["speedup"]["pairs"]),
                    ]
                )
    return grid


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
        cells = [_interval(variants[name]) if name in variants else "" for name in others]
        grid.rows.append([workload, *cells])
    return grid


def priced_grid(rows: Sequence[Mapping[str, Any]]) -> Grid:
    """A row for each workload and setting at supplied costs, with the accepted tokens of each layer."""
    layers = list(dict.fromkeys(name for row in rows for name in row["by_layer"]))
    grid = Grid(
        ("workload", "variant", "speedup", "MAT", "drafted", "accepted", *(f"of {n}" for n in layers))
    )
    for row in rows:
        counts = [row["drafted"], row["accepted"], *(row["by_layer"].get(name, 0) for name in layers)]
        figures = [f"{row['speedup']:.2f}", f"{row['tokens_per_step']:.2f}"]
        grid.rows.append([row["workload"], row["setting"], *figures, *(f"{count:,}" for count in counts)])
    return grid
