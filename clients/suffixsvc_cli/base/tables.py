"""Tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text


def plain_table(
    headings: Sequence[str], rows: Iterable[Sequence[str | Text]], title: str | None = None
) -> Table:
    """A table without lines."""
    table = Table(*headings, box=None, pad_edge=False, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    return table


def number_table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], *, no_wrap: bool = True, **style: Any
) -> Table:
    """A table whose first column is text and whose others are numbers.

    Args:
        no_wrap: keep the headings of numbers on one line.
        style: arguments of rich's Table.
    """
    table = Table(title_justify="left", **style)
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=no_wrap and number > 0)
    for row in rows:
        table.add_row(*row)
    return table
