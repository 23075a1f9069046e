"""What ``suffixsvc probe`` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text
from suffixsvc_bench.rpc_bench.asking import AskingCost, WorkerCost
from suffixsvc_bench.rpc_bench.report import Percentiles
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.machine import MachineNote
from suffixsvc_driver.prospects import Prospect, best_speedup, paying_step_seconds, pays_from, prospects

from suffixsvc.errors import StoreError
from suffixsvc.plots import Chart, Series
from suffixsvc.plots.files import svg_file

__all__ = ["Asked", "Probe", "write_plot"]

_SHOWN: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_BAR: Final = 30
#: of a step: so much longer is hardly noticed
_HARDLY: Final = 0.05


@dataclass(frozen=True, slots=True)
class Asked:
    """What asking for drafts costs.

    Attributes:
        cache: a step of the suffix cache, in process and over a socket.
        worker: questions of a draft worker; None without one.
        draft_seconds: of a token of the draft model, measured by its worker or in this process; None without
            one.
        failures: what could not be measured, and why.
    """

    cache: AskingCost
    worker: WorkerCost | None = None
    draft_seconds: float | None = None
    failures: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Probe:
    """What was measured.

    Attributes:
        draft_cost: of a token of the draft model, in plain steps; None without one.
    """

    model: str
    threads: int
    curve: CostCurve
    draft: str
    draft_cost: float | None
    prospects: tuple[Prospect, ...]
    machine: tuple[MachineNote, ...]
    asked: Asked

    @property
    def remote_us(self) -> Percentiles | None:
        """A step over a socket; None where that was left out."""
        return self.asked.cache.rpc

    @property
    def unnoticed_seconds(self) -> float | None:
        """A plain step of this length is hardly longer with the service asked in it."""
        return None if self.remote_us is None else self.remote_us.p50 / 1e6 / _HARDLY

    def as_plain(self) -> dict[str, Any]:
        """For machines."""
        return {
            "model": self.model,
            "threads": self.threads,
            "curve": self.curve.to_json(),
            "widest_paying": self.curve.widest_paying,
            "draft": self.draft or None,
            "draft_cost": self.draft_cost,
            "prospects": [asdict(each) | self._with_asking(each.acceptance) for each in self.prospects],
            "asking": self._asking_as_plain(),
            "machine": [asdict(each) for each in self.machine],
        }

    def _asking_as_plain(self) -> dict[str, Any]:
        asked, remote, unnoticed = self.asked, self.remote_us, self.unnoticed_seconds
        return {
            "calls": asked.cache.calls,
            "drafted": asked.cache.drafted,
            "engine_us": asdict(asked.cache.engine),
            "engine_steps": self._steps(asked.cache.engine.p50),
            "rpc_us": asdict(remote) if remote else None,
            "rpc_steps": self._steps(remote.p50) if remote else None,
            "hardly_noticed_from_ms": None if unnoticed is None else unnoticed * 1e3,
            "draft_worker": asdict(asked.worker) if asked.worker else None,
            "failures": list(asked.failures),
        }

    def _with_asking(self, acceptance: float) -> dict[str, float | None]:
        """What becomes of a speedup where a cache is asked in every step."""
        engine, remote = self.asked.cache.engine.p50, self.remote_us
        if remote is None:
            speedup = pays = None
        else:
            speedup = best_speedup(self.curve, acceptance, ask_cost=self._steps(remote.p50))
            pays = paying_step_seconds(self.curve, acceptance, remote.p50 / 1e6)
        return {
            "speedup_embedded": best_speedup(self.curve, acceptance, ask_cost=self._steps(engine)),
            "speedup_remote": speedup,
            "remote_pays_from_ms": None if pays is None else pays * 1e3,
        }

    def _steps(self, microseconds: float) -> float:
        return microseconds / 1e6 / self.curve.seconds_per_step

    def show(self) -> None:
        """For people."""
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
        console.print(self._asking())
        console.print(self._about_asking(), markup=False)
        for note in self.machine:
            advice = f": {note.advice}" if note.advice else ""
            console.print(Text(f"{note.what}: {note.found}{advice}", "yellow" if note.advice else ""))

    def _costs(self) -> Table:
        table = Table("tokens a step", "cost, plain steps", "a token", "", box=None, pad_edge=False)
        for width in (w for w in _SHOWN if w <= self.curve.max_width):
            cost = self.curve.costs[width]
            table.add_row(
                str(width), f"{cost:.2f}", f"{cost / width:.2f}", "█" * max(1, round(_BAR * cost / width))
            )
        return table

    def _prospects(self) -> Table:
        heads = ["accepted", "drafted a step", "tokens a step", "speedup at best"]
        if self.remote_us:
            heads += ["with a service", "pays from steps of"]
        if self.draft:
            heads += [f"drafted by {self.draft}", "speedup at best"]
        table = Table(*heads, box=None, pad_edge=False, title="\nwhat is possible", title_justify="left")
        for each in self.prospects:
            row = [f"{each.acceptance:.0%}", _count(each.draft_tokens), f"{each.tokens_per_step:.1f}",
                   f"{each.speedup:.2f}"]  # fmt: skip
            if self.remote_us:
                asked = self._with_asking(each.acceptance)
                speedup, pays = asked["speedup_remote"], asked["remote_pays_from_ms"]
                row += [f"{speedup:.2f}", "never" if pays is None else f"{pays:.2g} ms"]
            if each.speedup_with_model is not None:
                row += [_count(each.draft_tokens_with_model), f"{each.speedup_with_model:.2f}"]
            table.add_row(*row)
        return table

    def _asking(self) -> Table:
        table = Table("asking", "p50", "p99", "of a plain step", box=None, pad_edge=False)
        cache, worker = self.asked.cache, self.asked.worker
        rows = [("the cache, in this process", cache.engine), ("the cache, as a service", cache.rpc)]
        if worker:
            rows += [
                ("a draft worker, for a token", worker.question),
                ("... without computing", worker.around),
            ]
        for name, taken in rows:
            if taken is not None:
                share = f"{self._steps(taken.p50):.1%}"
                table.add_row(name, f"{taken.p50:.0f} us", f"{taken.p99:.0f} us", share)
        return table

    def _about_asking(self) -> str:
        told = ""
        if self.unnoticed_seconds is not None:
            here = self.curve.seconds_per_step
            told = (
                f"\nAsked in every step, a service is hardly noticed ({_HARDLY:.0%}) from steps of"
                f" {self.unnoticed_seconds * 1e3:.2g} ms on; those of this target take {here * 1e3:.2g} ms"
            )
            told += "." if here >= self.unnoticed_seconds else ": use the cache in the same process."
        return "\n".join([told, *(f"Not measured: {each}" for each in self.asked.failures)]) + "\n"

    def _conclusion(self) -> str:
        paying = pays_from(self.curve)
        if paying is None:
            told = "Drafting cannot pay here, whatever is accepted."
        else:
            best = self.prospects[-1]
            told = (
                f"Drafts from memory pay from an acceptance of about {paying:.0%} on; "
                f"a perfect drafter would reach {best.speedup:.1f} times plain decoding."
            )
        if self.draft_cost is not None:
            told += f" A token of {self.draft} costs {self.draft_cost:.2f} of a plain step: "
            with_model = pays_from(self.curve, token_cost=self.draft_cost)
            told += (
                "it cannot pay at any acceptance."
                if with_model is None
                else f"it pays from {with_model:.0%} on."
            )
        return f"\n{told}\n"


def _count(draft_tokens: int) -> str:
    return str(draft_tokens) if draft_tokens else "nothing"


def write_plot(path: Path, found: Probe) -> None:
    """The curve, and the best speedup for each acceptance, as an SVG. StoreError: the disk."""
    widths = range(1, found.curve.max_width + 1)
    shares = [i / 100 for i in range(0, 101, 2)]
    possible = prospects(found.curve, shares, draft_cost=found.draft_cost)
    series = [
        Series("cost of a step of as many tokens", [(w, found.curve.costs[w]) for w in widths], 0),
        Series("as many plain steps", [(w, float(w)) for w in widths], 1, dashed=True),
        Series(
            "best speedup, by the share accepted (x: % of the width)",
            [(p.acceptance * found.curve.max_width, p.speedup) for p in possible],
            2,
        ),
    ]
    chart = Chart(
        f"What a step costs: {found.model}, {found.threads} threads",
        "",
        "tokens in a step",
        "plain steps",
        series,
    )
    try:
        path.write_text(svg_file(chart), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"cannot write {path}", got=error.strerror) from None
