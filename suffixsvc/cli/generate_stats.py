"""The statistics that ``suffixsvc generate`` ends with."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from suffixsvc_driver.accounting import HitCounts

from suffixsvc.cli.generate_show import ORIGINS, Style
from suffixsvc.cli.generate_turn import Totals, expected_speedup

__all__ = ["one_line", "print_statistics"]


def one_line(totals: Totals) -> str:
    """The most important of it."""
    stats = totals.stats
    return (
        f"{stats.tokens} tokens, {_per_second(stats.tokens, totals.decode_seconds)}, "
        f"{stats.mat:.2f} a step; {stats.accepted} of {stats.drafted} drafted ones accepted"
    )


def print_statistics(console: Console, totals: Totals, style: Style) -> None:
    """All of it."""
    stats = totals.stats
    turns = f" in {totals.turns} turns" if totals.turns > 1 else ""
    there = f"; {totals.reused} were there already" if totals.reused else ""
    lines = [
        f"{stats.tokens} tokens{turns}, {_per_second(stats.tokens, totals.decode_seconds)} of decoding, in "
        f"{stats.steps} steps: {stats.mat:.2f} a step (MAT)",
        f"prompt: {totals.prefilled} tokens read in {totals.prefill_seconds:.2f} s{there}",
        f"it ended: {totals.why_it_ended}",
    ]
    console.print("\n".join(lines), markup=False, soft_wrap=True)
    console.print(_origins(totals, style), soft_wrap=True)
    if stats.layers:
        console.print(_layers(totals))
    if totals.of_kinds():
        console.print(_evidence(totals))
    console.print(_speedup(totals), markup=False, soft_wrap=True)
    for line in _oddities(totals):
        console.print(line, markup=False, soft_wrap=True)


def _per_second(tokens: int, seconds: float) -> str:
    return f"{tokens / seconds:.1f} tokens/s" if seconds else "no time"


def _origins(totals: Totals, style: Style) -> Text:
    """Where the tokens came from, which is the legend once more."""
    line = Text("from: ")
    written = max(1, totals.stats.tokens)
    for source, origin in ORIGINS.items():
        count = totals.origins.get(source, 0)
        if not count:
            continue
        name = f"«{origin.letter}:{origin.name}»" if style is Style.MARKS and origin.letter else origin.name
        colour = Text.from_ansi(f"\x1b[{origin.sgr}m{name}\x1b[0m") if origin.sgr else Text(name)
        line.append_text(colour if style is Style.COLOURS else Text(name))
        line.append(f" {count} ({count / written:.0%})  ")
    line.rstrip()
    return line


def _layers(totals: Totals) -> Table:
    table = _table("layer", "asked", "drafted", "sent", "accepted", "of the text", "asking took")
    for name, layer in totals.stats.layers.items():
        table.add_row(
            name,
            str(layer.asked),
            str(layer.offered),
            *_hits(layer.sent),
            f"{totals.stats.layer_hit_rates(name)[2]:.0%}",
            f"{layer.seconds * 1e3:.1f} ms",
        )
    return table


def _evidence(totals: Totals) -> Table:
    table = _table("kind of evidence", "sent", "accepted", "of the text")
    for kind, counts in totals.of_kinds().items():
        table.add_row(kind, *_hits(counts), f"{totals.stats.hit_rates(kind)[2]:.0%}")
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _hits(counts: HitCounts) -> tuple[str, str]:
    rate = f" ({counts.acceptance_rate:.0%})" if counts.drafted else ""
    return str(counts.drafted), f"{counts.accepted}{rate}"


def _speedup(totals: Totals) -> str:
    guess = "" if totals.measured else ", which is a guess"
    line = f"speedup: {expected_speedup(totals.stats):.2f} expected by the cost curve{guess}"
    if totals.measured_speedup is not None:
        step = totals.plain_step_seconds * 1e3
        line += f"; {totals.measured_speedup:.2f} came out (a plain step takes {step:.1f} ms)"
    return line


def _oddities(totals: Totals) -> list[str]:
    """What should not happen, and did."""
    stats = totals.stats
    found = [
        f"{name}: {layer.failures} questions failed, {layer.junk} answers made no sense"
        for name, layer in stats.layers.items()
        if layer.failures or layer.junk
    ]
    if stats.replayed:
        found.append(
            f"{stats.replayed} tokens were computed again: the model's state cannot be cut between them"
        )
    return found
