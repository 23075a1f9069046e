"""Frame of every HTML report: one self-contained page."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.plots import CHART_CSS, COLOURS, Chart, svg
from suffixsvc.runtime.atomic_file import write_atomically

#: frame with the style sheet, colours for light and dark
_TEMPLATE: Final = Path(__file__).with_name("page.html")


def write_page(path: Path, title: str, body: str, template: Path = _TEMPLATE) -> None:
    """Write the page atomically.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    page = template.read_text(encoding="utf-8")
    for mark, text in (
        ("@TITLE@", html.escape(title)),
        ("@CHART_CSS@", CHART_CSS.read_text(encoding="utf-8")),
        ("@BODY@", body),  # last: marks in the body are not replaced
    ):
        page = page.replace(mark, text)
    try:
        write_atomically(path, page)
    except OSError as error:
        raise InvalidInputError("--report must be writable", got=str(error)) from None


def figure(chart: Chart) -> str:
    """A chart with heading, legend and caption."""
    names = "".join(
        f'<span class="key c{s.colour % COLOURS}{" dashed" if s.dashed else ""}">{html.escape(s.name)}</span>'
        for s in chart.series
        if s.points
    )
    return (
        f"<figure><h3>{html.escape(chart.title)}</h3>{svg(chart)}"
        f"<p class=legend>{names}</p><figcaption>{html.escape(chart.caption)}</figcaption></figure>"
    )


def facts_table(facts: Sequence[tuple[str, str]]) -> str:
    """A table of (name, value) lines."""
    rows = "".join(f"<tr><td>{html.escape(n)}</td><td>{html.escape(v)}</td></tr>" for n, v in facts)
    return f"<table>{rows}</table>"
