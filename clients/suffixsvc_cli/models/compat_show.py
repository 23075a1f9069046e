"""Output of ``suffixsvc compat``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from suffixsvc_cli.base.tables import plain_table
from suffixsvc_driver.profile.pair_compatibility import Compatibility, ModelFacts
from suffixsvc_driver.profile.pair_cost import PairCost
from suffixsvc_driver.retokenizing import TextFit
from suffixsvc_models.scanning import ScannedDraft


def pair_to_dict(pair: Compatibility, cost: PairCost | None) -> dict[str, Any]:
    """Result as JSON-able data."""
    text = pair.through_text
    return {
        "target": _facts(pair.target),
        "draft": _facts(pair.draft),
        "fits": pair.fits,
        "rules": [asdict(rule) for rule in pair.rules],
        "cost_ratio": pair.cost_ratio,
        "through_text": asdict(text) | {"works": text.works} if text else None,
        "measured": asdict(cost) if cost else None,
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


def print_pair(pair: Compatibility, cost: PairCost | None) -> None:
    """Print a line per rule, then the conclusion."""
    console = Console()
    rows = [
        (
            rule.rule,
            Text(rule.target),
            Text(rule.draft),
            Text("passes", "green") if rule.passed else Text(f"fails: {rule.what}", "bold red"),
        )
        for rule in pair.rules
    ]
    console.print(plain_table(("rule", "target", "draft", ""), rows))
    console.print()
    if pair.fits:
        console.print("Compatible: every token id has the same meaning in both models.")
    else:
        console.print("Not compatible: token ids have different meanings in the two models.")
    if pair.through_text is not None:
        console.print(_through_text(pair.through_text), markup=False)
    console.print(
        f"A drafted token costs about {pair.cost_ratio * pair.token_ratio:.2f} of a plain step, by the bytes"
        " that each model reads, plus the cost of its verification."
    )
    if cost is not None:
        console.print(_measured(cost), markup=False)
    if pair.known:
        console.print(
            f"Known results of similar pairs: {pair.known.outcome}. {pair.known.figures}.", markup=False
        )


def _through_text(fit: TextFit) -> str:
    if not fit.works:
        return (
            f"It cannot draft through text either: {fit.whole:.0%} of {fit.texts} sample texts can be "
            f"encoded in both vocabularies, and {fit.kept_tokens:.0%} of the drafted tokens are as the "
            "target writes them."
        )
    return (
        f"It can draft through text: {fit.kept_texts:.0%} of {fit.texts} sample texts keep all token "
        f"boundaries in drafts, and {fit.kept_tokens:.1%} of the drafted tokens are as the target writes "
        f"them. One token of the target takes {fit.token_ratio:.2f} tokens of the draft model."
    )


def _measured(cost: PairCost) -> str:
    measured = (
        f"Measured on {cost.threads} threads: a token of the draft model takes {_ms(cost.draft_seconds)}, a"
        f" plain step {_ms(cost.step_seconds)}: {cost.cost_ratio:.2f} of a step for a token of the target. "
    )
    if cost.pays_from is None:
        return f"{measured}It does not pay at any acceptance."
    return (
        f"{measured}It pays from an acceptance of {cost.pays_from:.0%}; with every token accepted, the "
        f"speedup is {cost.best:.2f}."
    )


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


def print_scan(target: str, scanned: Sequence[ScannedDraft]) -> None:
    """Print compatible models, those that can draft through text, and why the others are incompatible."""
    console = Console()
    fitting = [each for each in scanned if each.fits]
    if fitting:
        console.print(f"Compatible with {target}, the cheapest first:", markup=False)
        console.print(_costs("draft", fitting))
    else:
        console.print(f"No model here is compatible with {target}.", markup=False)
    through_text = [each for each in scanned if each.through_text]
    if through_text:
        console.print()
        console.print(_costs("through text", through_text, text=True))
    others = [each for each in scanned if not each.fits and not each.through_text]
    if others:
        rows = [(Text(each.name), each.failed_rule, Text(each.reason)) for each in others]
        console.print()
        console.print(plain_table(("not compatible", "rule", "reason"), rows))


def _costs(title: str, drafts: Sequence[ScannedDraft], *, text: bool = False) -> Table:
    measured = any(each.measured_ratio is not None for each in drafts)
    heads = [title, "cost of a token, by size", *(["measured", "pays from"] if measured else [])]
    heads += ["tokens kept", "tokens per token"] if text else []
    rows = []
    for each in drafts:
        row = [each.name, f"{each.cost_ratio * each.token_ratio:.2f} of a step"]
        if measured:
            ratio, pays = each.measured_ratio, each.pays_from
            row.append("" if ratio is None else f"{ratio:.2f} of a step")
            row.append("" if ratio is None else "never" if pays is None else f"{pays:.0%} accepted")
        row += [f"{each.kept_tokens:.1%}", f"{each.token_ratio:.2f}"] if text else []
        rows.append([Text(cell) for cell in (*row, f"{each.known}: {each.figures}" if each.known else "")])
    return plain_table([*heads, "known"], rows)
