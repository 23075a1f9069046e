"""The demo's report: every answer with each token coloured by its origin, in one self-contained HTML file."""

from __future__ import annotations

import codecs
import html
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc_bench.demo.agent_runner import Answer
from suffixsvc_bench.report.html_page import facts_table, write_page
from suffixsvc_driver.speculation.accounting import EVIDENCE

#: frame of the page: explanations, colours for light and dark
TEMPLATE: Final = Path(__file__).with_name("page.html")


#: origins of tokens, by kind of evidence: name and explanation
KINDS: Final = {
    "target": ("target", "chosen by the large model without a draft, one step for each such token"),
    "prompt": ("prompt lookup", "copied from the call's own prompt or output, at almost no cost"),
    "suffix": ("suffix", "drafted from the stored output of another call"),
    "live": ("live text", "drafted from what another process was writing: its answer was not stored yet"),
    "draft-model": ("draft model", "drafted by a small model, which takes time to compute"),
}


@dataclass(frozen=True, slots=True)
class Section:
    """A stage of the demo: its answers under one heading.

    Attributes:
        explained: what happens in it.
        facts: (name, value) lines.
    """

    title: str
    explained: str
    answers: Sequence[Answer]
    facts: Sequence[tuple[str, str]] = ()


def token_texts(token_ids: Iterable[int], token_bytes: Callable[[int], bytes]) -> list[str]:
    """Text that each token adds. A character spelled by several tokens belongs to the last of them."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    texts = [decoder.decode(token_bytes(token)) for token in token_ids]
    if texts:
        texts[-1] += decoder.decode(b"", final=True)
    return texts


def render(
    path: Path,
    *,
    title: str,
    facts: Sequence[tuple[str, str]],
    sections: Sequence[Section],
    token_bytes: Callable[[int], bytes],
) -> None:
    """Write the report.

    Args:
        path: the file; it is replaced atomically.
        title: of the page.
        facts: (name, value) lines of the summary at the top.
        sections: stages of the demo, in order.
        token_bytes: bytes that a token spells.
    """
    body = [_legend(sections), facts_table(facts)]
    for section in sections:
        body.append(f"<h2>{html.escape(section.title)}</h2><p>{html.escape(section.explained)}</p>")
        if section.facts:
            body.append(facts_table(section.facts))
        body.append(_bar(section.answers))
        by_question: dict[str, list[Answer]] = {}
        for answer in section.answers:
            by_question.setdefault(answer.call.question.text, []).append(answer)
        for question, answers in by_question.items():
            body.append(f"<details open><summary>{html.escape(question)}</summary>")
            body.extend(_answer(answer, token_bytes) for answer in answers)
            body.append("</details>")
    write_page(path, title, "\n".join(body), TEMPLATE)


def _count(answers: Iterable[Answer]) -> dict[str, int]:
    counts = Counter(kind for answer in answers for kind in _kinds(answer))
    return {kind: counts[kind] for kind in KINDS}


def _kinds(answer: Answer) -> list[str]:
    """Kind of each token. In turns with another process, all text of others is its live text."""
    kinds = [EVIDENCE[source] for source in answer.result.sources]
    return ["live" if answer.process and kind == "suffix" else kind for kind in kinds]


def _class(kind: str) -> str:
    """Class of a kind in the style sheet."""
    return kind.removeprefix("draft-")


def _legend(sections: Sequence[Section]) -> str:
    counts = _count(answer for section in sections for answer in section.answers)
    total = sum(counts.values()) or 1
    rows = "".join(
        f'<tr><td><span class="{_class(kind)}">&nbsp;{name}&nbsp;</span></td>'
        f"<td class=n>{counts[kind]}</td><td class=n>{counts[kind] / total:.1%}</td><td>{explained}</td></tr>"
        for kind, (name, explained) in KINDS.items()
    )
    return f"<table><tr><th>colour</th><th>tokens</th><th>share</th><th>meaning</th></tr>{rows}</table>"


def _bar(answers: Sequence[Answer]) -> str:
    counts = _count(answers)
    total = sum(counts.values())
    if not total:
        return "<p>No tokens.</p>"
    parts = "".join(
        f'<span class="{_class(key)}" style="width:{100 * count / total:.2f}%" title="{count} tokens"></span>'
        for key, count in counts.items()
        if count
    )
    words = ", ".join(f"{KINDS[key][0]} {count / total:.0%}" for key, count in counts.items() if count)
    return f'<div class="bar">{parts}</div><p class=small>{total} tokens: {words}</p>'


def _answer(answer: Answer, token_bytes: Callable[[int], bytes]) -> str:
    result = answer.result
    texts = token_texts(result.token_ids, token_bytes)
    turns = {at: f'<sup title="turn {number}">{number}</sup>' for number, at in answer.turns}
    spans = "".join(
        turns.get(at, "")
        + (
            f'<span class="{_class(kind)}" title="{KINDS[kind][0]}">{html.escape(text)}</span>'
            if text
            else ""
        )
        for at, (text, kind) in enumerate(zip(texts, _kinds(answer), strict=True))
    )
    stats = result.stats
    return (
        f"<h3>{html.escape(answer.process or answer.call.agent.name)}</h3>"
        f"<p class=small>{stats.tokens} tokens in {stats.steps} steps of the model: "
        f"MAT {stats.mat:.2f}; {stats.accepted} of {stats.drafted} drafted tokens accepted</p>"
        f"<pre>{spans}</pre>"
    )
