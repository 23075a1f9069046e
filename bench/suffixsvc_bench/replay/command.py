"""``suffixsvc bench replay``: from its options to tables, JSON and the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

from rich.console import Console
from rich.table import Table

from suffixsvc.errors import InvalidInputError
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.methods import MethodSpec, known_methods, missing_methods
from suffixsvc_bench.replay.compare import NamedCost, Plan, TraceResult, compare
from suffixsvc_bench.replay.document import as_document
from suffixsvc_bench.replay.grids import describe, summary_grids, trace_grids
from suffixsvc_bench.replay.inputs import encoder_of, read_curve
from suffixsvc_bench.replay.logs import find_logs
from suffixsvc_bench.replay.options import ReplayRequest, Start
from suffixsvc_bench.replay.report import write_report
from suffixsvc_bench.replay.traces import RULE, Selection, load_traces, log_name, split_agents
from suffixsvc_bench.report.output import report_progress, require_file_path
from suffixsvc_bench.report.provenance import Provenance, provenance
from suffixsvc_bench.report.tables import print_grid

#: values of K in a sweep
SWEEP: Final = (4, 8, 16, 24, 32, 48)
COSTS: Final = (0.01, 0.05, 0.2)
#: table width where standard output is not a terminal
_TABLE_WIDTH: Final = 170


def list_methods() -> None:
    """Print the methods that can be compared here, and those that are not installed."""
    console = Console(width=max(Console().width, _TABLE_WIDTH))
    table = Table("--method", "name", "K", "drafts for a cost", "what it does")
    for spec in known_methods().values():
        table.add_row(
            spec.key, spec.title, str(spec.default_k), "yes" if spec.cost_aware else "", spec.description
        )
    console.print(table)
    for name, why in missing_methods().items():
        console.print(f"{name}: {why}", highlight=False, soft_wrap=True)


def run_bench_replay(request: ReplayRequest) -> None:
    """Compare, print, write the report.

    Raises:
        InvalidInputError, InvalidCostError: an option or a file is invalid; nothing was written.
    """
    plan = _plan(request)
    require_file_path(request.report)
    paths = find_logs(request.logs)
    if not paths:
        raise InvalidInputError("logs must name at least one log or directory of logs")
    selection = Selection(
        *split_agents(request.agents, [log_name(path) for path in paths]),
        request.max_tokens,
        request.max_calls,
        request.train,
        request.shuffle,
        request.seed,
    )
    encode = encoder_of(request.tokenizer) if request.tokenizer else None
    traces = load_traces(paths, find_logs(request.train_logs), encode, selection)
    origin = provenance()
    console = Console()
    if not console.is_terminal:
        console = Console(width=_TABLE_WIDTH)
    results: list[TraceResult] = []
    compared = compare(
        traces, plan, lambda trace, done: progress(f"{len(results) + 1}/{len(paths)} {trace}", done)
    )
    while True:
        with report_progress() as progress:
            result = next(compared, None)
        if result is None:
            break
        results.append(result)
        if not request.as_json:  # without a bar: stderr and stdout share the screen
            console.print(describe(result), style="bold", highlight=False, soft_wrap=True)
            for grid in trace_grids(result, plan):
                print_grid(console, grid)
    if request.as_json:
        print(json.dumps(as_document(origin, request.as_dict(), plan, results), indent=1))
    else:
        for grid in summary_grids(results, plan) if len(results) > 1 else ():
            print_grid(console, grid)
        for name, why in missing_methods().items():
            console.print(f"not compared: {name}: {why}", highlight=False, soft_wrap=True)
        for line in (f"kinds of text: {RULE}", f"{origin.line()}, seed {request.seed}"):
            console.print(line, style="dim", highlight=False, soft_wrap=True)
    if request.report is not None:
        write_report(request.report, results, plan, _facts(request, origin))


def _facts(request: ReplayRequest, origin: Provenance) -> list[tuple[str, str]]:
    """Facts on the run for the report."""
    defaults = ReplayRequest().as_dict()
    settings = ", ".join(
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in request.as_dict().items()
        if name not in ("logs", "report", "as_json") and value != defaults[name]
    )
    return [
        ("made by", origin.line()),
        ("machine", origin.machine),
        ("seed", str(request.seed)),
        ("settings", settings or "the defaults"),
        ("kinds of text", RULE),
        *(("not compared", f"{name}: {why}") for name, why in missing_methods().items()),
    ]


def _plan(request: ReplayRequest) -> Plan:
    costs = [NamedCost(f"{c:g}", float(c)) for c in dict.fromkeys(request.costs or COSTS)]
    for cost in costs:
        as_cost_curve(cost.cost, 1)
    if request.cost_curve is not None:
        costs.append(NamedCost("curve", read_curve(request.cost_curve)))
    sweep = request.report is not None if request.sweep is None else request.sweep
    return Plan(
        methods=_chosen(request.methods, bool(request.train or request.train_logs)),
        costs=costs,
        k=request.k,
        sweep=SWEEP if sweep else (),
        prompt_tokens=request.prompt_tokens,
        keep_warm=request.start is Start.WARM,
        starting_weights=request.starting_weights,
    )


def _chosen(keys: Sequence[str], trains_offline: bool) -> list[MethodSpec]:
    """Methods that were requested. ``trains_offline``: there are warm-up calls for methods that need them."""
    known = known_methods()
    if not keys:
        return [spec for spec in known.values() if trains_offline or not spec.trains_offline]
    for key in keys:
        if not any(key in (spec.key, *spec.families) for spec in known.values()):
            raise InvalidInputError(
                "--method must be known",
                expected=f"one of {', '.join(known)}",
                got=key,
                remedy=missing_methods().get(key),
            )
    chosen = [spec for spec in known.values() if {spec.key, *spec.families} & set(keys)]
    for spec in chosen:
        if spec.trains_offline and not trains_offline:
            raise InvalidInputError(
                f"--train or --train-log must be given with --method {spec.key}, to build its cache"
            )
    return chosen
