"""Statistics at the end of ``suffixsvc generate``."""

from __future__ import annotations

from functools import partial

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffixsvc_cli.base.tables import number_table
from suffixsvc_cli.generate.show import ORIGINS, Style
from suffixsvc_cli.generate.turn import Totals, expected_speedup
from suffixsvc_driver.speculation.accounting import HitCounts


def one_line(totals: Totals) -> str:
    """Summary in one line."""
    stats = totals.stats
    return (
        f"{stats.tokens} tokens, {_per_second(stats.tokens, totals.decode_seconds)}, "
        f"{stats.mat:.2f} per step; {stats.accepted} of {stats.drafted} drafted tokens accepted"
    )


def print_statistics(console: Console, totals: Totals, style: Style) -> None:
    """Print all statistics."""
    stats = totals.stats
    turns = f" in {totals.turns} turns" if totals.turns > 1 else ""
    reused = f"; {totals.reused} reused from the KV cache" if totals.reused else ""
    lines = [
        f"{stats.tokens} tokens{turns}, {_per_second(stats.tokens, totals.decode_seconds)} of decoding, in "
        f"{stats.steps} steps: {stats.mat:.2f} per step (MAT)",
        f"prompt: {totals.prefilled} tokens read in {totals.prefill_seconds:.2f} s{reused}",
        f"end of text: {totals.why_it_ended}",
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
    """Origins of the tokens, which repeats the legend."""
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
    rows = [
        (
            name,
            str(layer.asked),
            str(layer.offered),
            *_hits(layer.sent),
            f"{totals.stats.layer_hit_rates(name)[2]:.0%}",
            f"{layer.seconds * 1e3:.1f} ms",
        )
        for name, layer in totals.stats.layers.items()
    ]
    return _table(("layer", "queries", "drafted", "sent", "accepted", "of text", "query time"), rows)


def _evidence(totals: Totals) -> Table:
    rows = [
        (kind, *_hits(counts), f"{totals.stats.hit_rates(kind)[2]:.0%}")
        for kind, counts in totals.of_kinds().items()
    ]
    return _table(("kind of evidence", "sent", "accepted", "of text"), rows)


_table = partial(number_table, box=box.SIMPLE_HEAD, pad_edge=False)


def _hits(counts: HitCounts) -> tuple[str, str]:
    rate = f" ({counts.acceptance_rate:.0%})" if counts.drafted else ""
    return str(counts.drafted), f"{counts.accepted}{rate}"


def _speedup(totals: Totals) -> str:
    estimate = "" if totals.measured else ", which is an estimate"
    line = f"speedup: {expected_speedup(totals.stats):.2f} expected by the cost curve{estimate}"
    if totals.measured_speedup is not None:
        step = totals.plain_step_seconds * 1e3
        line += f"; {totals.measured_speedup:.2f} measured (a plain step takes {step:.1f} ms)"
    return line


def _oddities(totals: Totals) -> list[str]:
    """Failures and recomputations that the user should know of."""
    stats = totals.stats
    found = [
        f"{name}: {layer.failures} queries failed, {layer.junk} answers were invalid"
        for name, layer in stats.layers.items()
        if layer.failures or layer.junk
    ]
    if stats.replayed:
        found.append(
            f"{stats.replayed} tokens were computed again: the model's state cannot be truncated between them"
        )
    return found
