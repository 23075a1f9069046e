"""Frame of every HTML report: one self-contained page."""

from __future__ import annotations

import html
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.plots import CHART_CSS, COLOURS, Chart, svg

__all__ = ["figure", "write_page"]

#: frame with the style sheet, colours for light and dark
_TEMPLATE: Final = Path(__file__).with_name("page.html")


def write_page(path: Path, title: str, body: str) -> None:
    """Write the page atomically.

    Raises:
        InvalidInputError: the file cannot be written.
    """
    page = _TEMPLATE.read_text(encoding="utf-8")
    for mark, text in (
        ("@TITLE@", html.escape(title)),
        ("@CHART_CSS@", CHART_CSS.read_text(encoding="utf-8")),
        ("@BODY@", body),  # last: marks in the body are not replaced
    ):
        page = page.replace(mark, text)
    draft = path.with_name(f".{path.name}.new")
    try:
        draft.write_text(page, encoding="utf-8")
        draft.replace(path)
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
