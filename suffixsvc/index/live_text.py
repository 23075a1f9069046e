"""Output of a live session in pieces, for readers that index it as it is written.

    text     prompt ............ output | tool result ............ output
    pieces             [context output]             [context output]

A piece is a part of one run of output and the context before it, at most 64 tokens. Context further back is
left out: an index does not distinguish longer contexts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.types import TokenArray

#: tokens of output of a piece
PIECE_TOKENS: Final = 1 << 16


@dataclass(frozen=True, slots=True, eq=False)
class TextPiece:
    """Consecutive tokens of a session: context, then output.

    Attributes:
        at: position of the first token in the text.
    """

    at: int
    context: TokenArray
    output: TokenArray

    @property
    def end(self) -> int:
        """Position after the last token."""
        return self.at + len(self.context) + len(self.output)


def pieces_of(native: core.Session, known: int, end: int, *, first: int = 0) -> list[TextPiece]:
    """The output of a session between two positions. It takes the session's native lock only.

    Args:
        known: end of the last piece that the reader has; 0: it has none.
        end: no token from here on is read.
        first: no output before this position is read; it may be context.
    """
    pieces = []
    for run_first, run_last in native.output_runs():
        at, last = max(run_first, known, first), min(run_last, end)
        while at < last:
            context = max(known, at - PROMPT_TAIL_TOKENS)
            until = min(last, at + PIECE_TOKENS)
            pieces.append(TextPiece(context, native.text(context, at), native.text(at, until)))
            at = known = until
    return pieces
