"""Results of ``suffixsvc probe``, and their output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffixsvc.errors import StoreError
from suffixsvc.plots import Chart, Series
from suffixsvc.plots.files import svg_file
from suffixsvc_cli.base.tables import plain_table
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.speedup_estimate import (
    best_speedup,
    break_even_acceptance,
    break_even_step_seconds,
    speedup_estimates,
)
from suffixsvc_driver.targets.llama.machine import inspect_machine
from suffixsvc_driver.targets.llama.offload import CPU

_SHOWN: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_BAR: Final = 30
#: negligible increase of a step's duration
_NEGLIGIBLE: Final = 0.05

Results = Mapping[str, Any]


def probe_results(
    model: str,
    threads: int,
    curve: CostCurve,
    draft: str | None,
    token_seconds: float | None,
    queries: Results,
    *,
    device: str = CPU,
) -> dict[str, Any]:
    """Results of the verb as JSON-able data.

    Args:
        draft, token_seconds: draft model, and seconds of its tokens; None without one.
        queries: costs of queries: of :func:`suffixsvc_bench.rpc.query_cost.measure_cache_queries`, with
            "draft_worker" (None without one) and "failures".
        device: hardware that computed the steps.
    """
    engine, follower, rpc = (queries[f"{name}_us"] for name in ("engine", "follower", "rpc"))
    draft_cost = None if token_seconds is None else token_seconds / curve.seconds_per_step

    def with_queries(acceptance: float) -> dict[str, float | None]:
        """Speedups if a cache is queried in every step."""
        found: dict[str, float | None] = {}
        for name, us in (("embedded", engine), ("follower", follower), ("remote", rpc)):
            found[f"speedup_{name}"] = (
                best_speedup(curve, acceptance, query_cost=_steps(us, curve)) if us else None
            )
        pays = break_even_step_seconds(curve, acceptance, follower["p50"] / 1e6) if follower else None
        return found | {"follower_pays_from_ms": None if pays is None else pays * 1e3}

    return {
        "model": model,
        "threads": threads,
        "device": device,
        "curve": curve.to_json(),
        "widest_paying": curve.widest_paying,
        "draft": draft,
        "draft_cost": draft_cost,
        "prospects": [
            asdict(each) | with_queries(each.acceptance)
            for each in speedup_estimates(curve, draft_cost=draft_cost)
        ],
        "asking": {
            **queries,
            "engine_steps": _steps(engine, curve),
            "follower_steps": _steps(follower, curve) if follower else None,
            "rpc_steps": _steps(rpc, curve) if rpc else None,
            "hardly_noticed_from_ms": rpc["p50"] / 1e3 / _NEGLIGIBLE if rpc else None,
        },
        "machine": [asdict(each) for each in inspect_machine(threads)],
    }


def _steps(us: Mapping[str, float], curve: CostCurve) -> float:
    """The median of a query in plain steps."""
    return us["p50"] / 1e6 / curve.seconds_per_step


def print_results(found: Results, curve: CostCurve) -> None:
    """Print the results as text."""
    console = Console()
    step = curve.seconds_per_step
    console.print(
        f"{found['model']}, {_hardware(found)}: {step * 1e3:.1f} ms for a step of one token"
        f" ({1 / step:.1f} tokens/s)\n",
        markup=False,
    )
    costs = {width: curve.costs[width] for width in _SHOWN if width <= curve.max_width}
    rows = [
        (str(w), f"{cost:.2f}", f"{cost / w:.2f}", "█" * max(1, round(_BAR * cost / w)))
        for w, cost in costs.items()
    ]
    console.print(plain_table(("tokens per step", "cost, plain steps", "per token", ""), rows))
    console.print(_prospects(found))
    console.print(_conclusion(found, curve), markup=False)
    console.print(_query_table(found["asking"], curve))
    console.print(_query_conclusion(found["asking"], step * 1e3), markup=False)
    for note in found["machine"]:
        advice = f": {note['advice']}" if note["advice"] else ""
        console.print(Text(f"{note['what']}: {note['found']}{advice}", "yellow" if advice else ""))


def _hardware(found: Results) -> str:
    threads = f"{found['threads']} threads"
    return threads if found["device"] == CPU else f"{found['device']}, {threads}"


def _prospects(found: Results) -> Table:
    service, draft = found["asking"]["follower_us"], found["draft"]
    heads = ["accepted", "drafted per step", "tokens per step", "best speedup"]
    heads += ["with a service", "pays from steps of"] if service else []
    heads += [f"drafted by {draft}", "best speedup"] if draft else []
    rows = []
    for each in found["prospects"]:
        row = [f"{each['acceptance']:.0%}", _count(each["draft_tokens"]), f"{each['tokens_per_step']:.1f}"]
        row.append(f"{each['speedup']:.2f}")
        if service:
            pays = each["follower_pays_from_ms"]
            row += [f"{each['speedup_follower']:.2f}", "never" if pays is None else f"{pays:.2g} ms"]
        if each["speedup_with_model"] is not None:
            row += [_count(each["draft_tokens_with_model"]), f"{each['speedup_with_model']:.2f}"]
        rows.append(row)
    return plain_table(heads, rows, "\npossible speedup")


def _count(draft_tokens: int) -> str:
    return str(draft_tokens) if draft_tokens else "nothing"


def _query_table(asking: Results, curve: CostCurve) -> Table:
    taken = {
        "cache, in this process": asking["engine_us"],
        "cache, as a follower": asking["follower_us"],
        "cache, over gRPC": asking["rpc_us"],
    }
    if worker := asking["draft_worker"]:
        taken |= {"draft worker, one token": worker["question"], "... without computation": worker["around"]}
    rows = [
        (name, f"{us['p50']:.0f} us", f"{us['p99']:.0f} us", f"{_steps(us, curve):.1%}")
        for name, us in taken.items()
        if us is not None
    ]
    return plain_table(("queries", "p50", "p99", "of a plain step"), rows)


def _query_conclusion(asking: Results, here_ms: float) -> str:
    text, from_ms = "", asking["hardly_noticed_from_ms"]
    if from_ms is not None:
        text = (
            f"\nA query over gRPC in every step is negligible ({_NEGLIGIBLE:.0%}) for steps of"
            f" {from_ms:.2g} ms and more; those of this target take {here_ms:.2g} ms"
        )
        text += "." if here_ms >= from_ms else ": use a follower."
    return "\n".join([text, *(f"Not measured: {each}" for each in asking["failures"])]) + "\n"


def _conclusion(found: Results, curve: CostCurve) -> str:
    paying = break_even_acceptance(curve)
    if paying is None:
        text = "Drafting does not pay here at any acceptance."
    else:
        text = (
            f"Drafts from stored outputs pay from an acceptance of about {paying:.0%}; "
            f"the speedup with every token accepted is {found['prospects'][-1]['speedup']:.1f}."
        )
    if found["draft_cost"] is not None:
        text += f" A token of {found['draft']} costs {found['draft_cost']:.2f} of a plain step: "
        paying = break_even_acceptance(curve, token_cost=found["draft_cost"])
        text += "it does not pay at any acceptance." if paying is None else f"it pays from {paying:.0%}."
    return f"\n{text}\n"


def write_plot(path: Path, found: Results, curve: CostCurve) -> None:
    """Write the curve, and the best speedup by acceptance, as an SVG.

    Raises:
        StoreError: the file cannot be written.
    """
    widths = range(1, curve.max_width + 1)
    shares = [i / 100 for i in range(0, 101, 2)]
    possible = speedup_estimates(curve, shares, draft_cost=found["draft_cost"])
    speedups = [(each.acceptance * curve.max_width, each.speedup) for each in possible]
    series = [
        Series("cost of a step by tokens", [(w, curve.costs[w]) for w in widths], 0),
        Series("as many plain steps", [(w, float(w)) for w in widths], 1, dashed=True),
        Series("best speedup, by the share accepted (x: % of the width)", speedups, 2),
    ]
    title = f"Cost of steps: {found['model']}, {_hardware(found)}"
    chart = Chart(title, "", "tokens in a step", "plain steps", series)
    try:
        path.write_text(svg_file(chart), encoding="utf-8")
    except OSError as error:
        raise StoreError("--plot must be writable", got=error.strerror) from None
