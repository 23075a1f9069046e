"""``suffixsvc bench preload``: gain of preloaded recipes on held-out questions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from suffixsvc_cli.base.options import AsJson

if TYPE_CHECKING:
    from suffixsvc_bench.replay.logs import Call
    from suffixsvc_caches.recipes import Recipe


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
    as_json: AsJson = False,
) -> None:
    """Measure the gain of preloaded recipes on held-out questions, against a cold namespace.

    Replays the recorded answers by llama-server's rules (with the recipe's static cache and without) and
    through the engine, without a model. With --model, also runs the model: plain, cold and preloaded,
    alternating. Run nothing else on the machine meanwhile.
    """
    from suffixsvc_bench.preload.replayed import held_out_calls, run_replay
    from suffixsvc_bench.preload.tables import preload_parts
    from suffixsvc_bench.report.output import print_results
    from suffixsvc_bench.report.provenance import provenance
    from suffixsvc_caches.recipes import READY_MADE, find_recipe

    origin = provenance()
    chosen = [find_recipe(name) for name in recipes or READY_MADE]
    calls = [(recipe, held_out_calls(recipe)) for recipe in chosen]
    results = {
        "provenance": origin.as_dict(),
        "cost": cost,
        "replay": [run_replay(recipe, its, cost) for recipe, its in calls],
        "live": [],
    }
    if model is not None:
        few = [(recipe, its[:questions]) for recipe, its in calls]
        results["live"] = _run_live(few, model, threads, max_tokens)
    print_results(results, preload_parts, as_json=as_json)


def _run_live(
    calls: Sequence[tuple[Recipe, Sequence[Call]]], model: Path, threads: int, max_tokens: int
) -> list[dict[str, Any]]:
    from suffixsvc_bench.preload.live import run_live
    from suffixsvc_caches.tokenizers.load import require_fingerprint
    from suffixsvc_driver.profile.target_cost import measured_curve
    from suffixsvc_driver.targets.llama.context_settings import ContextSettings
    from suffixsvc_driver.targets.single import LlamaTarget

    with LlamaTarget(model, ContextSettings(threads=threads)) as target:
        for recipe, _ in calls:
            require_fingerprint(target.model.vocabulary.fingerprint, recipe.tokenizer, str(model))
        curve = measured_curve(target)
        return [run_live(recipe, target, curve, its, max_tokens) for recipe, its in calls]
