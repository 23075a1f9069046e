"""Encoding of long texts in pieces: in parallel, and in memory that does not grow with the text.

A text is cut only where the cut does not change its tokens. Tokenizers split texts into words, so nearly all
positions qualify, but the rules differ (some prepend a space to every text). Each cut is therefore verified:
the text around it is encoded whole and as two parts, and the cut is used only if the tokens are equal. Cuts
depend on the text and the tokenizer alone.

Candidates are line starts with a letter, after a line that ends with a visible character.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from suffixsvc.types import TokenArray
from suffixsvc_caches.tokenizers.base import Tokenizer

#: approximate length of a piece
PIECE_CHARS: Final = 1 << 16
_AROUND: Final = 128  # characters on each side of a cut that are compared
_TRIES: Final = 4
_PLACE: Final = re.compile(r"(?<=\S\n)(?=[A-Za-z])")


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[TokenArray]:
    """Encode each text to token ids, int32[n]; the result is that of ``tokenizer.encode_batch(texts)``."""
    if all(len(text) <= 2 * PIECE_CHARS for text in texts):
        return tokenizer.encode_batch(texts)
    bounds = [[0, *_cuts(tokenizer, text), len(text)] for text in texts]
    pieces = [text[a:b] for text, its in zip(texts, bounds, strict=True) for a, b in pairwise(its)]
    encoded = iter(tokenizer.encode_batch(pieces))
    return [np.concatenate([next(encoded) for _ in its[1:]]) for its in bounds]


def encode_contents(tokenizer: Tokenizer | None, contents: Sequence[str | TokenArray]) -> list[TokenArray]:
    """Return the token ids of texts, or token ids as they are; no ids for texts without a tokenizer."""
    texts = [content for content in contents if isinstance(content, str)]
    encoded = iter(encode_texts(tokenizer, texts) if texts and tokenizer is not None else ())
    none = np.empty(0, np.int32)
    return [next(encoded, none) if isinstance(content, str) else content for content in contents]


def _cuts(tokenizer: Tokenizer, text: str) -> Iterator[int]:
    at = 0
    while len(text) - at > 2 * PIECE_CHARS:
        places = _PLACE.finditer(text, at + PIECE_CHARS, at + 2 * PIECE_CHARS)
        tried = (place.start() for place, _ in zip(places, range(_TRIES), strict=False))
        cut = next((place for place in tried if _is_valid_cut(tokenizer, text, place)), None)
        if cut is not None:
            yield cut
        # Without a valid cut in this range the piece grows and the next range is tried.
        at = cut or at + PIECE_CHARS


def _is_valid_cut(tokenizer: Tokenizer, text: str, place: int) -> bool:
    before, after = text[max(0, place - _AROUND) : place], text[place : place + _AROUND]
    whole, *parts = tokenizer.encode_batch([before + after, before, after])
    return np.array_equal(whole, np.concatenate(parts))
