"""Tables of the benchmark of preloaded recipes."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

from suffixsvc_bench.report.tables import Grid


def preload_parts(results: Mapping[str, Any]) -> list[Grid | str]:
    """Tables of llama-server's rules, of our engine, and of the model where one was run."""
    priced = f"speedup at {results['cost']:g}"
    head = ("calls", "tokens")
    server = Grid(("llama-server", *head, "MAT without", "MAT with", "accepted without", "with"))
    ours = Grid(("ours", *head, "MAT cold", "MAT preloaded", f"{priced} cold", "preloaded"))
    for row in results["replay"]:
        sizes = [row["recipe"], str(row["calls"]), f"{row['tokens']:,}"]
        mat = [f"{each['mat']:.2f}" for each in row["server"]]
        accepted = [f"{each['n_accept'] / max(1, each['n_drafted']):.0%}" for each in row["server"]]
        server.rows.append([*sizes, *mat, *accepted])
        mat = [f"{each['mean_accepted_tokens']:.2f}" for each in row["ours"]]
        ours.rows.append([*sizes, *mat, *(f"{each['priced_speedup']:.2f}" for each in row["ours"])])
    ratios = ("cold / plain", "preloaded / plain", "preloaded / cold")
    live = Grid(("recipe", "questions", "tokens", *ratios, "steps saved"))
    for row in results["live"]:
        sizes = [row["recipe"], str(len(row["tokens"])), f"{sum(row['tokens']):,}"]
        saved = 1 - row["steps"][1] / max(1, row["steps"][0])
        live.rows.append([*sizes, *(f"{each:.2f}" for each in live_speedups(row)), f"{saved:.0%}"])
    return [server, ours, *([live] if live.rows else [])]


def live_speedups(row: Mapping[str, Any]) -> list[float]:
    """Medians over the questions: cold / plain, preloaded / plain, preloaded / cold."""
    pairs = (("plain_s", "cold_s"), ("plain_s", "preloaded_s"), ("cold_s", "preloaded_s"))
    return [median(a / b for a, b in zip(row[one], row[other], strict=True)) for one, other in pairs]
