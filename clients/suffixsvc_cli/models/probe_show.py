"""Output of ``suffixsvc probe``."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffixsvc.errors import StoreError
from suffixsvc.plots import Chart, Series
from suffixsvc.plots.files import svg_file
from suffixsvc_bench.rpc.query_cost import CacheQueryCost, WorkerQueryCost
from suffixsvc_bench.rpc.report import Percentiles
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.speedup_estimate import (
    SpeedupEstimate,
    best_speedup,
    break_even_acceptance,
    break_even_step_seconds,
    speedup_estimates,
)
from suffixsvc_driver.targets.llama.machine import MachineNote

__all__ = ["Probe", "QueryCosts", "write_plot"]

_SHOWN: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_BAR: Final = 30
#: negligible increase of a step's duration
_NEGLIGIBLE: Final = 0.05


@dataclass(frozen=True, slots=True)
class QueryCosts:
    """Costs of queries for drafts.

    Attributes:
        cache: a step of the suffix cache, in process and over a socket.
        worker: queries to a draft worker; None without one.
        draft_seconds: per token of the draft model, measured by its worker or in this process; None without
            one.
        failures: what could not be measured, and why.
    """

    cache: CacheQueryCost
    worker: WorkerQueryCost | None = None
    draft_seconds: float | None = None
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """Results of the verb.

    Attributes:
        draft_cost: of a token of the draft model, in plain steps; None without one.
    """

    model: str
    threads: int
    curve: CostCurve
    draft: str
    draft_cost: float | None
    prospects: tuple[SpeedupEstimate, ...]
    machine: tuple[MachineNote, ...]
    queries: QueryCosts

    @property
    def remote_us(self) -> Percentiles | None:
        """A step over a socket; None if not measured."""
        return self.queries.cache.rpc

    @property
    def negligible_seconds(self) -> float | None:
        """Duration of a plain step from which the service's query is negligible; None if not measured."""
        return None if self.remote_us is None else self.remote_us.p50 / 1e6 / _NEGLIGIBLE

    def to_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return {
            "model": self.model,
            "threads": self.threads,
            "curve": self.curve.to_json(),
            "widest_paying": self.curve.widest_paying,
            "draft": self.draft or None,
            "draft_cost": self.draft_cost,
            "prospects": [asdict(each) | self._with_queries(each.acceptance) for each in self.prospects],
            "asking": self._queries_to_dict(),
            "machine": [asdict(each) for each in self.machine],
        }

    def _queries_to_dict(self) -> dict[str, Any]:
        queries, remote, negligible = self.queries, self.remote_us, self.negligible_seconds
        return {
            "calls": queries.cache.calls,
            "drafted": queries.cache.drafted,
            "engine_us": asdict(queries.cache.engine),
            "engine_steps": self._steps(queries.cache.engine.p50),
            "rpc_us": asdict(remote) if remote else None,
            "rpc_steps": self._steps(remote.p50) if remote else None,
            "hardly_noticed_from_ms": None if negligible is None else negligible * 1e3,
            "draft_worker": asdict(queries.worker) if queries.worker else None,
            "failures": list(queries.failures),
        }

    def _with_queries(self, acceptance: float) -> dict[str, float | None]:
        """Speedups if a cache is queried in every step."""
        engine, remote = self.queries.cache.engine.p50, self.remote_us
        if remote is None:
            speedup = pays = None
        else:
            speedup = best_speedup(self.curve, acceptance, query_cost=self._steps(remote.p50))
            pays = break_even_step_seconds(self.curve, acceptance, remote.p50 / 1e6)
        return {
            "speedup_embedded": best_speedup(self.curve, acceptance, query_cost=self._steps(engine)),
            "speedup_remote": speedup,
            "remote_pays_from_ms": None if pays is None else pays * 1e3,
        }

    def _steps(self, microseconds: float) -> float:
        return microseconds / 1e6 / self.curve.seconds_per_step

    def show(self) -> None:
        """Print the results as text."""
        console = Console()
        step = self.curve.seconds_per_step
        console.print(
            f"{self.model}, {self.threads} threads: {step * 1e3:.1f} ms for a step of one token"
            f" ({1 / step:.1f} tokens/s)\n",
            markup=False,
        )
        console.print(self._costs())
        console.print(self._prospects())
        console.print(self._conclusion(), markup=False)
        console.print(self._query_table())
        console.print(self._query_conclusion(), markup=False)
        for note in self.machine:
            advice = f": {note.advice}" if note.advice else ""
            console.print(Text(f"{note.what}: {note.found}{advice}", "yellow" if note.advice else ""))

    def _costs(self) -> Table:
        table = Table("tokens per step", "cost, plain steps", "per token", "", box=None, pad_edge=False)
        for width in (w for w in _SHOWN if w <= self.curve.max_width):
            cost = self.curve.costs[width]
            table.add_row(
                str(width), f"{cost:.2f}", f"{cost / width:.2f}", "█" * max(1, round(_BAR * cost / width))
            )
        return table

    def _prospects(self) -> Table:
        heads = ["accepted", "drafted per step", "tokens per step", "best speedup"]
        if self.remote_us:
            heads += ["with a service", "pays from steps of"]
        if self.draft:
            heads += [f"drafted by {self.draft}", "best speedup"]
        table = Table(*heads, box=None, pad_edge=False, title="\npossible speedup", title_justify="left")
        for each in self.prospects:
            row = [f"{each.acceptance:.0%}", _count(each.draft_tokens), f"{each.tokens_per_step:.1f}",
                   f"{each.speedup:.2f}"]  # fmt: skip
            if self.remote_us:
                queried = self._with_queries(each.acceptance)
                speedup, pays = queried["speedup_remote"], queried["remote_pays_from_ms"]
                row += [f"{speedup:.2f}", "never" if pays is None else f"{pays:.2g} ms"]
            if each.speedup_with_model is not None:
                row += [_count(each.draft_tokens_with_model), f"{each.speedup_with_model:.2f}"]
            table.add_row(*row)
        return table

    def _query_table(self) -> Table:
        table = Table("queries", "p50", "p99", "of a plain step", box=None, pad_edge=False)
        cache, worker = self.queries.cache, self.queries.worker
        rows = [("cache, in this process", cache.engine), ("cache, as a service", cache.rpc)]
        if worker:
            rows += [
                ("draft worker, one token", worker.question),
                ("... without computation", worker.around),
            ]
        for name, taken in rows:
            if taken is not None:
                share = f"{self._steps(taken.p50):.1%}"
                table.add_row(name, f"{taken.p50:.0f} us", f"{taken.p99:.0f} us", share)
        return table

    def _query_conclusion(self) -> str:
        text = ""
        if self.negligible_seconds is not None:
            here = self.curve.seconds_per_step
            text = (
                f"\nA query in every step is negligible ({_NEGLIGIBLE:.0%}) for steps of"
                f" {self.negligible_seconds * 1e3:.2g} ms and more; those of this target take"
                f" {here * 1e3:.2g} ms"
            )
            text += "." if here >= self.negligible_seconds else ": use the cache in the same process."
        return "\n".join([text, *(f"Not measured: {each}" for each in self.queries.failures)]) + "\n"

    def _conclusion(self) -> str:
        paying = break_even_acceptance(self.curve)
        if paying is None:
            text = "Drafting does not pay here at any acceptance."
        else:
            best = self.prospects[-1]
            text = (
                f"Drafts from stored outputs pay from an acceptance of about {paying:.0%}; "
                f"the speedup with every token accepted is {best.speedup:.1f}."
            )
        if self.draft_cost is not None:
            text += f" A token of {self.draft} costs {self.draft_cost:.2f} of a plain step: "
            with_model = break_even_acceptance(self.curve, token_cost=self.draft_cost)
            text += (
                "it does not pay at any acceptance."
                if with_model is None
                else f"it pays from {with_model:.0%}."
            )
        return f"\n{text}\n"


def _count(draft_tokens: int) -> str:
    return str(draft_tokens) if draft_tokens else "nothing"


def write_plot(path: Path, found: Probe) -> None:
    """Write the curve, and the best speedup by acceptance, as an SVG.

    Raises:
        StoreError: the file cannot be written.
    """
    widths = range(1, found.curve.max_width + 1)
    shares = [i / 100 for i in range(0, 101, 2)]
    possible = speedup_estimates(found.curve, shares, draft_cost=found.draft_cost)
    series = [
        Series("cost of a step by tokens", [(w, found.curve.costs[w]) for w in widths], 0),
        Series("as many plain steps", [(w, float(w)) for w in widths], 1, dashed=True),
        Series(
            "best speedup, by the share accepted (x: % of the width)",
            [(p.acceptance * found.curve.max_width, p.speedup) for p in possible],
            2,
        ),
    ]
    chart = Chart(
        f"Cost of steps: {found.model}, {found.threads} threads",
        "",
        "tokens in a step",
        "plain steps",
        series,
    )
    try:
        path.write_text(svg_file(chart), encoding="utf-8")
    except OSError as error:
        raise StoreError("--plot must be writable", got=error.strerror) from None
