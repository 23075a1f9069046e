"""``suffixsvc replay``: hit rates of a recorded log in our engine."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import typer

from suffixsvc.verb_options import argument, option, with_options
from suffixsvc_bench.replay.options import LOG_TOKENIZER
from suffixsvc_cli.base.bars import progress_bars
from suffixsvc_cli.base.options import AsJson


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """The command line."""

    logs: tuple[Path, ...] = argument(help="Recorded logs: JSON lines, plain or .gz, one call per line.")
    tokenizer: Path | None = option(None, help=LOG_TOKENIZER)
    cost: float = option(0.05, help="Cost of a drafted token, in plain decode steps.")
    cost_curve: Path | None = option(
        None,
        help='Measured cost curve instead: a JSON list or {"cost": list}; entry w: a step of w tokens.',
    )
    max_draft: int = option(64, help="Maximum drafted tokens per step.")
    tree: bool = option(False, "--tree/--chain", help="Draft trees instead of chains.")
    agents: tuple[str, ...] = option((), "--agent", help="Use only calls of this agent. Repeatable.")
    max_tokens: int = option(0, min=0, help="Maximum response tokens of each log; 0 = no limit.")


@with_options
def replay(options: ReplayOptions, as_json: AsJson = False) -> None:
    """Measure hit rates of the cache on recorded logs, without running a model.

    Each line of a log is a JSON object with "response_token_ids" and, optionally, "prompt_token_ids" (or
    "response" and "prompt" as texts, with --tokenizer), "agent" and "session_id".

    Every call is replayed: each step drafts, accepts what agrees with the recorded answer and continues after
    it. Each log starts with an empty cache.

    "prompt" is evidence in the call's own prompt and answer, "suffix" evidence in earlier answers. MAT is
    tokens per step of the target (1 = no gain); "speedup" is at --cost.

    suffixsvc bench replay compares with other methods and draws plots.
    """
    from suffixsvc_bench.replay.inputs import encoder_of, read_curve
    from suffixsvc_bench.replay.run import replay as replayed
    from suffixsvc_bench.replay.traces import Selection, load_trace
    from suffixsvc_bench.report.provenance import provenance

    cost: Any = read_curve(options.cost_curve) if options.cost_curve else options.cost
    encode = encoder_of(options.tokenizer) if options.tokenizer else None
    selection = Selection(agents=options.agents, max_tokens=options.max_tokens)
    origin = provenance()
    results: dict[str, dict[str, Any]] = {}
    for log in options.logs:
        trace = load_trace(log, encode, selection)
        with progress_bars() as bars:
            advance = partial(bars.advance, bars.add_task(log.name, total=len(trace.calls)))
            results[str(log)] = replayed(
                trace.calls, cost, options.max_draft, tree=options.tree, progress=advance
            )
    if as_json:
        report = {
            "provenance": origin.as_dict(),
            "tree": options.tree,
            "cost": "curve" if options.cost_curve else options.cost,
        }
        typer.echo(json.dumps(report | {"logs": results}, indent=2))
        return
    _print(results, origin.line())


def _print(results: dict[str, dict[str, Any]], origin: str) -> None:
    from rich.console import Console

    from suffixsvc_cli.base.tables import number_table

    console = Console()
    for name, rates in results.items():
        columns = ("steps_with_draft", "steps_with_hit", "tokens_accepted", "acceptance_rate")
        rows = [
            (layer, *(f"{row[column]:.1%}" for column in columns))
            for layer, row in [*rates["layers"].items(), ("all", rates)]
        ]
        heads = ("layer", "steps with a draft", "steps with a hit", "tokens accepted", "acceptance")
        console.print(number_table(heads, rows, no_wrap=False, title=name))
        console.print(
            f"{rates['calls']} calls, {rates['tokens']} tokens in {rates['steps']} steps: "
            f"[bold]MAT {rates['mean_accepted_tokens']:.2f}[/], "
            f"{rates['drafted_per_step']:.1f} drafted per step, "
            f"[bold]priced speedup {rates['priced_speedup']:.2f}[/], "
            f"{rates['microseconds_per_step']:.0f} µs per step",
            soft_wrap=True,  # one line, for grep
        )
    console.print(origin, style="dim", highlight=False, soft_wrap=True)
