"""Long texts in pieces: encoded side by side, in memory that does not grow with the text.

A text is cut where its tokens are the same with and without the cut. Tokenizers work on words, so that is
nearly everywhere, but whether two words are two is each tokenizer's own affair (some put a space before every
text they are given). So none is assumed to: the text around a cut is encoded whole and in two, and where the
tokens differ there is no cut. Cuts depend on the text and the tokenizer alone.

Tried at: the beginning of a line, a letter, behind a line that ends in something visible.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from suffixsvc.types import TokenArray
from suffixsvc_caches.tokenizers.base import Tokenizer

__all__ = ["PIECE_CHARS", "encode_texts"]

#: of a piece, about
PIECE_CHARS: Final = 1 << 16
_AROUND: Final = 128  # characters on each side of a cut that are looked at
_TRIES: Final = 4
_PLACE: Final = re.compile(r"(?<=\S\n)(?=[A-Za-z])")


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[TokenArray]:
    """Token ids of each text, int32[n], the same as ``tokenizer.encode_batch(texts)`` has."""
    if all(len(text) <= 2 * PIECE_CHARS for text in texts):
        return tokenizer.encode_batch(texts)
    bounds = [[0, *_cuts(tokenizer, text), len(text)] for text in texts]
    pieces = [text[a:b] for text, its in zip(texts, bounds, strict=True) for a, b in pairwise(its)]
    encoded = iter(tokenizer.encode_batch(pieces))
    return [np.concatenate([next(encoded) for _ in its[1:]]) for its in bounds]


def _cuts(tokenizer: Tokenizer, text: str) -> Iterator[int]:
    at = 0
    while len(text) - at > 2 * PIECE_CHARS:
        places = _PLACE.finditer(text, at + PIECE_CHARS, at + 2 * PIECE_CHARS)
        tried = (place.start() for place, _ in zip(places, range(_TRIES), strict=False))
        cut = next((place for place in tried if _holds(tokenizer, text, place)), None)
        if cut is not None:
            yield cut
        # Where nothing held the next stretch may: the piece is a longer one.
        at = cut or at + PIECE_CHARS


def _holds(tokenizer: Tokenizer, text: str, place: int) -> bool:
    before, behind = text[max(0, place - _AROUND) : place], text[place : place + _AROUND]
    whole, *parts = tokenizer.encode_batch([before + behind, before, behind])
    return np.array_equal(whole, np.concatenate(parts))
