"""How ``suffixsvc generate`` shows text: tokens in the colour or with the letter of who drafted them."""

from __future__ import annotations

import enum
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from rich.console import Console
from suffixsvc_driver.written_text import Piece

from suffixsvc.types import DraftSource

__all__ = ["ORIGINS", "Origin", "Style", "TextView", "choose_style"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where tokens come from, as people are told.

    Attributes:
        letter: its mark; "" for none.
        sgr: its colour, as terminals are told.
    """

    name: str
    letter: str
    sgr: str


ORIGINS: Final[Mapping[DraftSource, Origin]] = {
    DraftSource.NONE: Origin("the model itself", "", ""),
    DraftSource.PROMPT_LOOKUP: Origin("prompt lookup", "p", "32"),
    DraftSource.SESSION: Origin("this text, remembered", "s", "92"),
    DraftSource.NAMESPACE: Origin("other outputs", "n", "36"),
    DraftSource.DRAFT_MODEL: Origin("the draft model", "d", "33"),
}


class Style(enum.Enum):
    """How origins are shown."""

    COLOURS = enum.auto()
    MARKS = enum.auto()
    PLAIN = enum.auto()


def choose_style(*, colour: bool | None, marks: bool) -> Style:
    """What was asked for; colours where stdout is a terminal that has them.

    Args:
        colour: None leaves it to the terminal.
    """
    if marks:
        return Style.MARKS
    if colour is None:
        console = Console()
        colour = console.is_terminal and not console.no_color and console.color_system is not None
    return Style.COLOURS if colour else Style.PLAIN


class TextView:
    """Writes text to a stream, piece by piece.

    Args:
        out: where it goes; a terminal gets no control characters of the model's.
    """

    def __init__(self, style: Style, out: TextIO | None = None) -> None:
        self.style = style
        self._out = sys.stdout if out is None else out
        self._guarded = self._out.isatty()
        self._open: Origin | None = None

    def legend(self) -> str:
        """Which colour or mark is whose; "" where nothing is shown of it."""
        if self.style is Style.PLAIN:
            return ""
        return "  ".join(
            origin.name if not origin.letter else self._opening(origin) + origin.name + self._closing()
            for origin in ORIGINS.values()
        )

    def write(self, pieces: Sequence[Piece]) -> None:
        """Show more text, at once."""
        for piece in pieces:
            origin = ORIGINS.get(DraftSource(piece.source), ORIGINS[DraftSource.NONE])
            self._change(origin if origin.letter and self.style is not Style.PLAIN else None)
            self._out.write(_harmless(piece.text) if self._guarded else piece.text)
        if self.style is Style.COLOURS:
            self._change(None)  # whatever comes next on this terminal has its own colour
        self._out.flush()

    def end(self) -> None:
        """The text is complete: what follows stands on a line of its own."""
        self._change(None)
        self._out.write("\n")
        self._out.flush()

    def _change(self, origin: Origin | None) -> None:
        if origin is self._open:
            return
        if self._open is not None:
            self._out.write(self._closing())
        if origin is not None:
            self._out.write(self._opening(origin))
        self._open = origin

    def _opening(self, origin: Origin) -> str:
        return f"\x1b[{origin.sgr}m" if self.style is Style.COLOURS else f"«{origin.letter}:"

    def _closing(self) -> str:
        return "\x1b[0m" if self.style is Style.COLOURS else "»"


def _harmless(text: str) -> str:
    """Control characters spelled out: on a terminal a model's could do anything."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else repr(c)[1:-1] for c in text)
