"""Words and their tokens, remembered: encoding text that repeats without a tokenizer.

    memo = WordMemo(cuts, memory_bytes=32 << 20)
    found = memo.encode(text)
    if found.unknown: memo.learn(found.unknown, ...), and encode again

What a word is ``cuts`` says: where a text may be cut so that the tokens of the pieces, one behind the other,
are those of the text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.core import _ext
from suffixsvc.errors import InvalidInputError
from suffixsvc.types import TokenArray

__all__ = ["MAX_WORD_BYTES", "FoundWords", "WordCut", "WordMemo"]

#: a word longer than this is not remembered
MAX_WORD_BYTES: Final = 256


class WordCut(IntEnum):
    """How a text is cut between two bytes."""

    NONE = 0
    HERE = 1
    #: if the byte behind the second one is an ASCII letter
    BEFORE_LETTER = 2


@dataclass(frozen=True, slots=True)
class FoundWords:
    """What is known of a text.

    Attributes:
        tokens: int32[n], but for the holes; empty while words are unknown.
        holes: (at, begin, end): bytes begin .. end - 1 are a word too long to remember; its tokens belong
            before tokens[at].
        unknown: words to be learnt, each once; encode the text again then.
    """

    tokens: TokenArray
    holes: list[tuple[int, int, int]]
    unknown: list[bytes]


class WordMemo:
    """Thread-safe; releases the GIL.

    Args:
        cuts: uint8[128, 128] of :class:`WordCut`: between an ASCII byte and the next. Other bytes are not
            cut at.
        memory_bytes: about; over it all is forgotten.

    Raises:
        InvalidInputError: a table of another shape or type.
    """

    def __init__(self, cuts: npt.NDArray[np.uint8], *, memory_bytes: int) -> None:
        if cuts.shape != (128, 128) or cuts.dtype != np.uint8:
            raise InvalidInputError(
                "that is no table of cuts", expected="uint8[128, 128]", got=f"{cuts.dtype}{list(cuts.shape)}"
            )
        self._memo = _ext.WordMemo(cuts.tobytes(), memory_bytes)

    def encode(self, text: bytes) -> FoundWords:
        """The tokens of a text, as far as its words are known."""
        tokens, holes, unknown = self._memo.encode(text)
        return FoundWords(tokens, list(zip(holes[::3], holes[1::3], holes[2::3], strict=True)), unknown)

    def learn(self, words: Sequence[bytes], tokens: Sequence[TokenArray]) -> None:
        """Remember the tokens of words, int32[n] each; words that are known stay as they are.

        Raises:
            InvalidInputError: more words or fewer than tokens.
        """
        if len(words) != len(tokens):
            raise InvalidInputError(
                "there are not as many words as tokens of words", expected=len(words), got=len(tokens)
            )
        ends = np.cumsum([len(each) for each in tokens], dtype=np.int64)
        joined = np.concatenate(tokens).astype(np.int32, copy=False) if tokens else np.empty(0, np.int32)
        self._memo.learn(list(words), joined, ends)

    @property
    def words(self) -> int:
        """How many are known."""
        return self._memo.words
