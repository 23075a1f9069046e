"""Tables of results, and their rendering on a terminal, in HTML and in Markdown."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table


@dataclass(slots=True)
class Grid:
    """A table before rendering. Rows have one cell per heading; the first column is text, the
    others numbers."""

    headings: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    summaries: list[list[str]] = field(default_factory=list)  #: below a line


def print_grid(console: Console, grid: Grid) -> None:
    """Print a table; one that is too wide for the console is split, with the first column repeated.

    Headings wrap between words; words and numbers are not broken.
    """
    rows = [*grid.rows, *grid.summaries]
    longest = [max((len(row[i]) for row in rows), default=0) for i in range(len(grid.headings))]
    least = [
        max(cell, *map(len, heading.split() or [""]))
        for heading, cell in zip(grid.headings, longest, strict=True)
    ]
    for columns in _split(least, console.width):
        table = Table()
        whole = [max(len(grid.headings[i]), longest[i]) for i in columns]
        widths = whole if _table_width(whole) <= console.width else [least[i] for i in columns]
        for i, width in zip(columns, widths, strict=True):
            table.add_column(grid.headings[i], justify="right" if i else "left", overflow="fold", width=width)
        for row in grid.rows:
            table.add_row(*(row[i] for i in columns))
        table.add_section()
        for row in grid.summaries:
            table.add_row(*(row[i] for i in columns))
        console.print(table)


def _split(widths: Sequence[int], most: int) -> list[list[int]]:
    """Column numbers of the tables that a grid is printed as, the first column in each."""
    parts = [[0]]
    for number in range(1, len(widths)):
        if len(parts[-1]) > 1 and _table_width([widths[i] for i in (*parts[-1], number)]) > most:
            parts.append([0])
        parts[-1].append(number)
    return parts


def _table_width(widths: Sequence[int]) -> int:
    """Characters of a line of a table: each cell has a border and padding on both sides."""
    return 1 + sum(width + 3 for width in widths)


def markdown_grid(grid: Grid) -> str:
    """A pipe table without padding, so that a diff shows changed rows only."""

    def row(cells: Sequence[str], strong: bool = False) -> str:
        escaped = [cell.replace("|", "\\|") for cell in cells]
        return "| " + " | ".join(f"**{cell}**" if strong and cell else cell for cell in escaped) + " |"

    rule = "|---|" + "---:|" * (len(grid.headings) - 1)
    lines = [row(grid.headings), rule, *map(row, grid.rows)]
    return "\n".join([*lines, *(row(cells, strong=True) for cells in grid.summaries)])


def html_grid(grid: Grid) -> str:
    """A table for :func:`suffixsvc_bench.report.html_page.write_page`."""

    def row(cells: Sequence[str], tag: str) -> str:
        inner = (
            f"<{tag}{' class=n' if i else ''}>{html.escape(cell)}</{tag}>" for i, cell in enumerate(cells)
        )
        return f"<tr>{''.join(inner)}</tr>"

    body = "".join(row(cells, "td") for cells in grid.rows)
    body += "".join(row(cells, "th") for cells in grid.summaries)
    return f"<div class=wide><table>{row(grid.headings, 'th')}{body}</table></div>"
