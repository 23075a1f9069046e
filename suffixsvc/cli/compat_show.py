"""What ``suffixsvc compat`` shows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text
from suffixsvc_driver.compatibility import Compatibility, ModelFacts
from suffixsvc_driver.models.scanning import ScannedDraft

__all__ = ["pair_as_plain", "print_pair", "print_scan"]


def pair_as_plain(pair: Compatibility) -> dict[str, Any]:
    """For machines."""
    return {
        "target": _facts(pair.target),
        "draft": _facts(pair.draft),
        "fits": pair.fits,
        "rules": [asdict(rule) for rule in pair.rules],
        "cost_ratio": pair.cost_ratio,
        "known": asdict(pair.known) if pair.known else None,
    }


def _facts(facts: ModelFacts) -> dict[str, Any]:
    return {
        "path": str(facts.path),
        "name": facts.header.name,
        "architecture": facts.header.architecture,
        "bytes": facts.size_bytes,
        "weights": facts.header.weights,
        "vocabulary": facts.vocabulary.size,
        "fingerprint": facts.vocabulary.fingerprint,
    }


def print_pair(pair: Compatibility) -> None:
    """For people: a line a rule, then what it means."""
    console = Console()
    table = Table("rule", "target", "draft", "", box=None, pad_edge=False)
    for rule in pair.rules:
        mark = Text("passes", "green") if rule.passed else Text(f"fails: {rule.what}", "bold red")
        table.add_row(rule.rule, Text(rule.target), Text(rule.draft), mark)
    console.print(table)
    console.print()
    if pair.fits:
        console.print("They fit: every id means the same to both.")
    else:
        console.print("They do not fit: drafts would be tokens that mean something else to the target.")
    console.print(
        f"A drafted token costs about {pair.cost_ratio:.2f} of a plain step, by the bytes each model reads;"
        " what verifying it costs comes on top."
    )
    if pair.known:
        console.print(f"Known of pairs like this: {pair.known.outcome}. {pair.known.figures}.", markup=False)


def print_scan(target: str, scanned: Sequence[ScannedDraft]) -> None:
    """For people: what fits, then why the others do not."""
    console = Console()
    fitting = [each for each in scanned if each.fits]
    if fitting:
        table = Table("draft", "cost of a token", "known", box=None, pad_edge=False)
        for each in fitting:
            known = f"{each.known}: {each.figures}" if each.known else ""
            table.add_row(Text(each.name), f"{each.cost_ratio:.2f} of a step", Text(known))
        console.print(f"Can draft for {target}, the cheapest first:", markup=False)
        console.print(table)
    else:
        console.print(f"Nothing here can draft for {target}.", markup=False)
    others = [each for each in scanned if not each.fits]
    if others:
        table = Table("does not fit", "rule", "why", box=None, pad_edge=False)
        for each in others:
            table.add_row(Text(each.name), each.failed_rule, Text(each.reason))
        console.print()
        console.print(table)
