"""Word cache: maps words to their token ids, so that repeated words are encoded without the tokenizer.

    cache = WordCache(cuts, memory_bytes=32 << 20)
    found = cache.encode(text)
    if found.missing: cache.insert(found.missing, ...), and encode again

``cuts`` defines words: the positions where a text can be cut without changing its tokens.
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

__all__ = ["MAX_WORD_BYTES", "CachedEncoding", "WordCache", "WordCut"]

#: longer words are not cached
MAX_WORD_BYTES: Final = 256


class WordCut(IntEnum):
    """Rule for a cut between two bytes."""

    NONE = 0
    HERE = 1
    #: if the byte after the second one is an ASCII letter
    BEFORE_LETTER = 2


@dataclass(frozen=True, slots=True)
class CachedEncoding:
    """Result of a lookup of a text.

    Attributes:
        tokens: int32[n], without those of the holes; empty if words are missing.
        holes: (at, begin, end): bytes begin .. end - 1 are a word too long to cache; its tokens belong before
            tokens[at].
        missing: distinct words that are not cached; insert them, then encode the text again.
    """

    tokens: TokenArray
    holes: list[tuple[int, int, int]]
    missing: list[bytes]


class WordCache:
    """Cache of words and their token ids. Thread-safe; releases the GIL.

    Args:
        cuts: uint8[128, 128] of :class:`WordCut`, indexed by an ASCII byte and the next one. There is no cut
            next to other bytes.
        memory_bytes: approximate size limit; beyond it the cache is cleared.

    Raises:
        InvalidInputError: ``cuts`` has another shape or type.
    """

    def __init__(self, cuts: npt.NDArray[np.uint8], *, memory_bytes: int) -> None:
        if cuts.shape != (128, 128) or cuts.dtype != np.uint8:
            raise InvalidInputError("cuts must be uint8[128, 128]", got=f"{cuts.dtype}{list(cuts.shape)}")
        self._native = _ext.WordMemo(cuts.tobytes(), memory_bytes)

    def encode(self, text: bytes) -> CachedEncoding:
        """Look up the words of a text."""
        tokens, holes, missing = self._native.encode(text)
        return CachedEncoding(tokens, list(zip(holes[::3], holes[1::3], holes[2::3], strict=True)), missing)

    def insert(self, words: Sequence[bytes], tokens: Sequence[TokenArray]) -> None:
        """Insert words with their token ids, int32[n] each; cached words are not replaced.

        Raises:
            InvalidInputError: ``words`` and ``tokens`` differ in length.
        """
        if len(words) != len(tokens):
            raise InvalidInputError(
                "tokens must have one entry for each word", expected=len(words), got=len(tokens)
            )
        ends = np.cumsum([len(each) for each in tokens], dtype=np.int64)
        joined = np.concatenate(tokens).astype(np.int32, copy=False) if tokens else np.empty(0, np.int32)
        self._native.learn(list(words), joined, ends)

    @property
    def words(self) -> int:
        """Number of cached words."""
        return self._native.words
