"""What ``suffixsvc probe`` shows."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.machine import MachineNote
from suffixsvc_driver.prospects import Prospect, prospects

from suffixsvc.errors import StoreError
from suffixsvc.plots import Chart, Series
from suffixsvc.plots.files import svg_file

__all__ = ["Probe", "write_plot"]

_SHOWN: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_BAR: Final = 30


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

    def as_plain(self) -> dict[str, Any]:
        """For machines."""
        return {
            "model": self.model,
            "threads": self.threads,
            "curve": self.curve.to_json(),
            "widest_paying": self.curve.widest_paying,
            "draft": self.draft or None,
            "draft_cost": self.draft_cost,
            "prospects": [asdict(each) for each in self.prospects],
            "machine": [asdict(each) for each in self.machine],
        }

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
        if self.draft:
            heads += [f"drafted by {self.draft}", "speedup at best"]
        table = Table(*heads, box=None, pad_edge=False, title="\nwhat is possible", title_justify="left")
        for each in self.prospects:
            row = [f"{each.acceptance:.0%}", _count(each.draft_tokens), f"{each.tokens_per_step:.1f}",
                   f"{each.speedup:.2f}"]  # fmt: skip
            if each.speedup_with_model is not None:
                row += [_count(each.draft_tokens_with_model), f"{each.speedup_with_model:.2f}"]
            table.add_row(*row)
        return table

    def _conclusion(self) -> str:
        paying = next((p for p in self.prospects if p.draft_tokens), None)
        if paying is None:
            told = "Drafting cannot pay here, whatever is accepted."
        else:
            best = self.prospects[-1]
            told = (
                f"Drafts from memory pay from an acceptance of about {paying.acceptance:.0%} on; "
                f"a perfect drafter would reach {best.speedup:.1f} times plain decoding."
            )
        if self.draft_cost is not None:
            told += f" A token of {self.draft} costs {self.draft_cost:.2f} of a plain step: "
            with_model = next((p for p in self.prospects if p.draft_tokens_with_model), None)
            told += (
                f"it pays from {with_model.acceptance:.0%} on."
                if with_model
                else "it cannot pay at any acceptance."
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
