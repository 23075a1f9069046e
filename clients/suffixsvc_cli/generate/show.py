"""Text output of ``suffixsvc generate``: tokens coloured or marked by the layer that drafted them."""

from __future__ import annotations

import enum
import sys
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TextIO

from rich.console import Console

from suffixsvc.types import DraftSource
from suffixsvc_driver.decode.detokenize_stream import Piece


@dataclass(frozen=True, slots=True)
class Origin:
    """Origin of a token, for people.

    Attributes:
        letter: its mark; "" for none.
        sgr: its colour as an SGR parameter.
    """

    name: str
    letter: str
    sgr: str


ORIGINS: Final[Mapping[DraftSource, Origin]] = {
    DraftSource.NONE: Origin("the model itself", "", ""),
    DraftSource.PROMPT_LOOKUP: Origin("prompt lookup", "p", "32"),
    DraftSource.SESSION: Origin("this text, by the suffix layer", "s", "92"),
    DraftSource.NAMESPACE: Origin("other outputs", "n", "36"),
    DraftSource.DRAFT_MODEL: Origin("the draft model", "d", "33"),
    DraftSource.GRAMMAR: Origin("the grammar", "g", "35"),
    DraftSource.PREDICTION: Origin("the prediction", "e", "95"),
}


class Style(enum.Enum):
    """How origins are shown."""

    COLOURS = enum.auto()
    MARKS = enum.auto()
    PLAIN = enum.auto()


def choose_style(*, colour: bool | None, marks: bool) -> Style:
    """The requested style; by default colours if stdout is a terminal that supports them.

    Args:
        colour: None decides by the terminal.
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
        out: the stream; on a terminal, control characters of the text are escaped.
    """

    def __init__(self, style: Style, out: TextIO | None = None) -> None:
        self.style = style
        self._out = sys.stdout if out is None else out
        self._escapes = self._out.isatty()
        self._open: Origin | None = None

    def legend(self) -> str:
        """Colours or marks with their origins; "" if none are shown."""
        if self.style is Style.PLAIN:
            return ""
        return "  ".join(
            origin.name if not origin.letter else self._opening(origin) + origin.name + self._closing()
            for origin in ORIGINS.values()
        )

    def write(self, pieces: Sequence[Piece]) -> None:
        """Write more text and flush."""
        for piece in pieces:
            origin = ORIGINS.get(DraftSource(piece.source), ORIGINS[DraftSource.NONE])
            self._change(origin if origin.letter and self.style is not Style.PLAIN else None)
            self._out.write(_harmless(piece.text) if self._escapes else piece.text)
        if self.style is Style.COLOURS:
            self._change(None)  # other output on this terminal must not be coloured
        self._out.flush()

    def end(self) -> None:
        """End the text with a line feed."""
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
    """Escape control characters: on a terminal they could do anything."""
    return "".join(c if c in "\n\t" or unicodedata.category(c) != "Cc" else repr(c)[1:-1] for c in text)
