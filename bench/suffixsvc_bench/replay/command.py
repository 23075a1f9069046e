"""``suffixsvc bench replay``: from its options to tables, JSON and the report."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table

from suffixsvc.errors import InvalidInputError
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.methods import MethodSpec, known_methods, missing_methods
from suffixsvc_bench.replay.compare import NamedCost, Plan, ReplayObserver, TraceResult, compare
from suffixsvc_bench.replay.document import as_document
from suffixsvc_bench.replay.grids import describe, summary_grids, trace_grids
from suffixsvc_bench.replay.inputs import encoder_of, read_curve
from suffixsvc_bench.replay.kinds import RULE
from suffixsvc_bench.replay.logs import Call, find_logs
from suffixsvc_bench.replay.report import write_report
from suffixsvc_bench.replay.traces import Selection, Trace, load_traces, log_name, split_agents
from suffixsvc_bench.report.output import require_file_path
from suffixsvc_bench.report.provenance import Provenance, provenance
from suffixsvc_bench.report.tables import print_grid

__all__ = ["ReplayRequest", "list_methods", "run_bench_replay"]

#: values of K in a sweep
SWEEP: Final = (4, 8, 16, 24, 32, 48)
COSTS: Final = (0.01, 0.05, 0.2)
#: table width where standard output is not a terminal
_TABLE_WIDTH: Final = 170


@dataclass(frozen=True, slots=True)
class ReplayRequest:
    """The options of the verb; see its help."""

    logs: Sequence[Path]
    tokenizer: Path | None = None
    methods: Sequence[str] = ()
    costs: Sequence[float] = ()
    cost_curve: Path | None = None
    k: int | None = None
    sweep: bool | None = None
    agents: Sequence[str] = ()
    max_tokens: int = 0
    max_calls: int = 0
    prompt_tokens: int = 3000
    train: float = 0.0
    train_logs: Sequence[Path] = ()
    warm: bool = False
    shuffle: bool = False
    seed: int = 0
    starting_weights: Path | None = None
    report: Path | None = None
    as_json: bool = False

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data from which the run can be reproduced."""
        return json.loads(json.dumps(asdict(self), default=str))  # type: ignore[no-any-return] # json.loads of a dict


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
    all_logs, by_log = split_agents(request.agents, [log_name(path) for path in paths])
    selection = Selection(
        all_logs,
        by_log,
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
    with _Bars(len(paths)) as bars:
        for result in compare(traces, plan, bars):
            results.append(result)
            if not request.as_json:
                with bars.hidden():
                    console.print(describe(result), style="bold", highlight=False, soft_wrap=True)
                    for grid in trace_grids(result, plan):
                        print_grid(console, grid)
    if request.as_json:
        print(json.dumps(as_document(origin, request.as_dict(), plan, results), indent=1))
    else:
        _conclude(console, request, results, plan, origin)
    if request.report is not None:
        write_report(request.report, results, plan, _facts(request, origin))


def _conclude(
    console: Console,
    request: ReplayRequest,
    results: Sequence[TraceResult],
    plan: Plan,
    origin: Provenance,
) -> None:
    if len(results) > 1:
        for grid in summary_grids(results, plan):
            print_grid(console, grid)
    for name, why in missing_methods().items():
        console.print(f"not compared: {name}: {why}", highlight=False, soft_wrap=True)
    console.print(f"kinds of text: {RULE}", style="dim", highlight=False, soft_wrap=True)
    console.print(f"{origin.line()}, seed {request.seed}", style="dim", highlight=False, soft_wrap=True)


def _facts(request: ReplayRequest, origin: Provenance) -> list[tuple[str, str]]:
    """Facts on the run for the report."""
    changed = {name: value for name, value in request.as_dict().items() if value != getattr(_DEFAULTS, name)}
    settings = ", ".join(
        f"{name} {' '.join(map(str, value)) if isinstance(value, list) else value}"
        for name, value in changed.items()
        if name not in ("logs", "report", "as_json") and value not in ([], None)
    )
    return [
        ("made by", origin.line()),
        ("machine", origin.machine),
        ("seed", str(request.seed)),
        ("settings", settings or "the defaults"),
        ("kinds of text", RULE),
        *(("not compared", f"{name}: {why}") for name, why in missing_methods().items()),
    ]


_DEFAULTS: Final = ReplayRequest(logs=())


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
        keep_warm=request.warm,
        starting_weights=request.starting_weights,
    )


def _chosen(keys: Sequence[str], trains_offline: bool) -> list[MethodSpec]:
    """Methods that were requested. ``trains_offline``: there are warm-up calls for methods that need them."""
    known = known_methods()
    if not keys:
        return [spec for spec in known.values() if trains_offline or not spec.trains_offline]
    for key in keys:
        if not any(key == spec.key or key in spec.families for spec in known.values()):
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


class _Bars(ReplayObserver):
    """Progress on stderr: traces, and calls of the current one; removed at the end."""

    def __init__(self, traces: int) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
        console = Console(file=sys.stderr)
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._traces = traces
        self._number = 0
        self._name = ""
        self._task: TaskID | None = None

    def __enter__(self) -> _Bars:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Hide the bars while tables are printed: stderr and stdout share the screen."""
        self._progress.stop()
        yield
        self._progress.start()

    def trace(self, trace: Trace, calls: int) -> None:
        """See :class:`ReplayObserver`."""
        self._number += 1
        self._name = f"{self._number}/{self._traces} {trace.name}"
        if self._task is not None:
            self._progress.remove_task(self._task)
        self._task = self._progress.add_task(self._name, total=calls)
        if self._progress.disable:
            print(f"replaying {self._name}: {calls} calls, all methods together", file=sys.stderr, flush=True)

    def replay(self, title: str) -> None:
        """See :class:`ReplayObserver`."""
        if self._task is not None:
            self._progress.update(self._task, description=f"{self._name}: {title}")

    def call(self, _: Call) -> None:
        """See :class:`ReplayObserver`."""
        if self._task is not None:
            self._progress.advance(self._task)
