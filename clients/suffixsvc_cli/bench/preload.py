"""``suffixsvc bench preload``: gain of preloaded recipes on held-out questions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from suffixsvc_bench.preload import LiveRow, ReplayRow
    from suffixsvc_bench.report.tables import Grid

__all__ = ["bench_preload"]


def bench_preload(
    recipes: Annotated[
        list[str] | None, typer.Argument(help="Names or folders of recipes. Default: sql json code.")
    ] = None,
    cost: Annotated[float, typer.Option(help="Cost of a drafted token, in plain steps.")] = 0.05,
    model: Annotated[
        Path | None, typer.Option(help="Also run this model (a GGUF with the recipes' tokenizer).")
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of the model.")] = 2,
    questions: Annotated[int, typer.Option(min=1, help="Questions of each recipe to the model.")] = 8,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens of an answer of the model.")] = 160,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure the gain of preloaded recipes on held-out questions, against a cold namespace.

    Replays the recorded answers by llama-server's rules (with the recipe's static cache and without) and
    through the engine, without a model. With --model, also runs the model: plain, cold and preloaded,
    alternating. Run nothing else on the machine meanwhile.
    """
    from rich.console import Console

    from suffixsvc_bench.preload import held_out_calls, run_replay
    from suffixsvc_bench.report.provenance import provenance
    from suffixsvc_bench.report.tables import print_grid
    from suffixsvc_caches.recipes import READY_MADE, find_recipe

    origin = provenance()
    chosen = [find_recipe(name) for name in recipes or READY_MADE]
    calls = {recipe.name: held_out_calls(recipe) for recipe in chosen}
    rows = [run_replay(recipe, calls[recipe.name], cost) for recipe in chosen]
    live = _run_live(chosen, calls, model, threads, questions, max_tokens) if model else []
    if as_json:
        plain = {"provenance": origin.as_dict(), "cost": cost, **_plain(rows, live)}
        typer.echo(json.dumps(plain, indent=2))
        return
    console = Console()
    print_grid(console, _server_grid(rows))
    print_grid(console, _ours_grid(rows, cost))
    if live:
        print_grid(console, _live_grid(live))
    console.print(origin.line(), style="dim", highlight=False, soft_wrap=True)


def _run_live(
    recipes: Any, calls: dict[str, Any], model: Path, threads: int, questions: int, max_tokens: int
) -> list[LiveRow]:
    from suffixsvc_bench.preload import run_live
    from suffixsvc_caches.tokenizers import require_fingerprint
    from suffixsvc_driver.profile.target_cost import measured_curve
    from suffixsvc_driver.targets.llama.context import ContextSettings
    from suffixsvc_driver.targets.single import LlamaTarget

    with LlamaTarget(model, ContextSettings(threads=threads)) as target:
        for recipe in recipes:
            require_fingerprint(target.model.vocabulary.fingerprint, recipe.tokenizer, str(model))
        curve = measured_curve(target)
        return [
            run_live(recipe, target, curve, calls[recipe.name][:questions], max_tokens) for recipe in recipes
        ]


def _server_grid(rows: list[ReplayRow]) -> Grid:
    from suffixsvc_bench.report.tables import Grid

    grid = Grid(("llama-server", "calls", "tokens", "MAT without", "MAT with", "accepted without", "with"))
    for row in rows:
        mat = [f"{each.tokens_per_step:.2f}" for each in row.server]
        accepted = [f"{each.accept:.0%}" for each in row.server]
        grid.rows.append([row.recipe, str(row.calls), f"{row.tokens:,}", *mat, *accepted])
    return grid


def _ours_grid(rows: list[ReplayRow], cost: float) -> Grid:
    from suffixsvc_bench.report.tables import Grid

    priced = f"speedup at {cost:g}"
    grid = Grid(("ours", "calls", "tokens", "MAT cold", "MAT preloaded", f"{priced} cold", "preloaded"))
    for row in rows:
        rates = [each.rates() for each in row.ours]
        mat = [f"{each['mean_accepted_tokens']:.2f}" for each in rates]
        speedup = [f"{each['priced_speedup']:.2f}" for each in rates]
        grid.rows.append([row.recipe, str(row.calls), f"{row.tokens:,}", *mat, *speedup])
    return grid


def _live_grid(rows: list[LiveRow]) -> Grid:
    from suffixsvc_bench.report.tables import Grid

    grid = Grid(
        (
            "recipe",
            "questions",
            "tokens",
            "cold / plain",
            "preloaded / plain",
            "preloaded / cold",
            "steps saved",
        )
    )
    for row in rows:
        saved = 1 - row.steps[1] / max(1, row.steps[0])
        grid.rows.append(
            [
                row.recipe,
                str(len(row.tokens)),
                f"{sum(row.tokens):,}",
                *(f"{each:.2f}" for each in row.speedups()),
                f"{saved:.0%}",
            ]
        )
    return grid


def _plain(rows: list[ReplayRow], live: list[LiveRow]) -> dict[str, Any]:
    return {
        "replay": [
            {
                "recipe": row.recipe,
                "calls": row.calls,
                "tokens": row.tokens,
                "server": [
                    {"n_drafted": each.n_drafted, "n_accept": each.n_accept, "mat": each.tokens_per_step}
                    for each in row.server
                ],
                "ours": [each.rates() for each in row.ours],
            }
            for row in rows
        ],
        "live": [
            {
                "recipe": row.recipe,
                "tokens": row.tokens,
                "plain_s": row.plain,
                "cold_s": row.cold,
                "preloaded_s": row.preloaded,
                "steps": row.steps,
            }
            for row in live
        ],
    }
