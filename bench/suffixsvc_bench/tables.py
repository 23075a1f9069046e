"""A table before it is drawn, and how it is drawn on a terminal, in a page and in Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

__all__ = ["Grid", "html_grid", "markdown_grid", "print_grid"]


@dataclass(slots=True)
class Grid:
    """A table before it is drawn. Rows have a cell a heading; the first column is text, the rest figures."""

    headings: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    summaries: list[list[str]] = field(default_factory=list)  #: below a line


def print_grid(console: Console, grid: Grid) -> None:
    table = Table()
    for number, heading in enumerate(grid.headings):
        # a cut name or figure would be worse than an ugly line
        table.add_column(heading, justify="right" if number else "left", overflow="fold", no_wrap=not number)
    for row in grid.rows:
        table.add_row(*row)
    table.add_section()
    for row in grid.summaries:
        table.add_row(*row)
    console.print(table)


def markdown_grid(grid: Grid) -> str:
    """A pipe table; nothing is padded, so that only the lines that changed differ from the last page."""

    def row(cells: Sequence[str], strong: bool = False) -> str:
        escaped = [cell.replace("|", "\\|") for cell in cells]
        return "| " + " | ".join(f"**{cell}**" if strong and cell else cell for cell in escaped) + " |"

    rule = "|---|" + "---:|" * (len(grid.headings) - 1)
    lines = [row(grid.headings), rule, *map(row, grid.rows)]
    return "\n".join([*lines, *(row(cells, strong=True) for cells in grid.summaries)])


def html_grid(grid: Grid) -> str:
    def row(cells: Sequence[str], tag: str) -> str:
        inner = (
            f"<{tag}{' class=n' if i else ''}>{html.escape(cell)}</{tag}>" for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(row(cells, "td") for cells in grid.rows)
    body += "".join(row(cells, "th") for cells in grid.summaries)
    return f"<div class=wide><table>{row(grid.headings, 'th')}{body}</table></div>"
