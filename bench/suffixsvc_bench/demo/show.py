"""Terminal output of the demo: headings, a summary per question, and tables."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from suffixsvc_bench.demo.agent_runner import Answer
from suffixsvc_bench.demo.agents import AGENTS
from suffixsvc_bench.demo.pipeline import Outcome
from suffixsvc_bench.speculation.paired import Outcome as Timing
from suffixsvc_bench.speculation.paired import Pair, median_ratio
from suffixsvc_driver.speculation.accounting import Stats


def total(answers: Sequence[Answer]) -> Stats:
    """Statistics of several answers, added up."""
    stats = Stats()
    for answer in answers:
        stats.add(answer.result.stats)
    return stats


def suffix_share(answers: Sequence[Answer]) -> float:
    """Share of the written tokens that were drafted from other sessions' outputs."""
    return total(answers).hit_rates("suffix")[2]


def heading(console: Console, text: str) -> None:
    """Print a heading."""
    console.print(f"\n[bold]{escape(text)}[/bold]")


def progress(console: Console) -> Progress:
    """A progress bar that disappears when it is done."""
    columns = (TextColumn("  {task.description}"), BarColumn(), TimeElapsedColumn())
    return Progress(*columns, console=console, transient=True)


def print_outcome(console: Console, outcome: Outcome, answers: Sequence[Answer]) -> None:
    """Print the agents' results on a question, and the origins of the tokens."""
    stats = total(answers)
    result = outcome.result
    made = f"{result.total_rows} rows" if result.ok else f"SQL failed ({result.error[:40]})"
    marks = ", ".join(
        f"{name} {'ok' if good else 'unusable'}"
        for name, good in (
            ("plan", outcome.plan is not None),
            ("report", outcome.report is not None),
            ("Python", outcome.python is not None),
        )
    )
    repaired = ", repaired once" if outcome.repaired and result.ok else ""
    shares = ", ".join(
        f"{kind} {stats.hit_rates(kind)[2]:.0%}"
        for kind in ("prompt", "suffix", "draft-model", "target")
        if kind in stats.evidence
    )
    # markup=False: an error can quote square brackets of the model
    console.print(
        f"{outcome.question.text}\n"
        f"    {made}{repaired}; {marks}\n"
        f"    {stats.tokens} tokens, {stats.mat:.2f} per step (MAT); from: {shares}",
        markup=False,
    )


def agent_table(pairs: Sequence[Pair], answers: Sequence[Answer]) -> Table:
    """Per agent: calls, tokens, and speed with drafts and without."""
    figures = ("calls", "tokens", "MAT", "accepted", "acceptance", "tok/s", "plain", "median speed-up")
    table = _table("Per agent, second pass", "agent", *figures)
    for agent in (*(agent.name for agent in AGENTS), "all"):
        own = [a for a in answers if agent in ("all", a.call.agent.name)]
        its_pairs = [pair for pair in pairs if agent in ("all", pair.agent)]
        stats, ratio = total(own), median_ratio(its_pairs)
        drafted = Timing.sum([pair.outcome for pair in its_pairs]).speed
        plain = Timing.sum([pair.reference for pair in its_pairs]).speed
        table.add_row(
            agent,
            str(len(own)),
            str(stats.tokens),
            f"{stats.mat:.2f}",
            f"{stats.accepted}/{stats.drafted}",
            f"{stats.acceptance_rate:.0%}",
            *(f"{speed:.1f}" if its_pairs else "-" for speed in (drafted, plain)),
            f"{ratio.median:.2f}x" if ratio else "-",
            style="bold" if agent == "all" else None,
        )
    return table


def layer_table(title: str, answers: Sequence[Answer]) -> Table:
    """Per layer: queries, drafts sent to verification, tokens accepted."""
    figures = ("queries", "had a draft", "drafted", "accepted", "acceptance", "of all tokens")
    table = _table(title, "layer", *figures)
    stats = total(answers)
    for name, layer in stats.layers.items():
        had, _, share = stats.layer_hit_rates(name)
        sent = layer.sent
        table.add_row(
            name,
            str(layer.asked),
            f"{had:.0%} of steps",
            str(sent.drafted),
            str(sent.accepted),
            f"{sent.acceptance_rate:.0%}",
            f"{share:.0%}",
        )
    table.add_row("target", "", "", "", "", "", f"{stats.hit_rates('target')[2]:.0%}")
    return table


def _table(title: str, first: str, *figures: str) -> Table:
    table = Table(first, title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in figures:
        table.add_column(name, justify="right")
    return table
