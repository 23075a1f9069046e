"""Encoder with a word cache: words that were encoded before are looked up, others go to the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.core import _ext
from suffixsvc.types import TokenArray
from suffixsvc_caches.tokenizers.words import WordCut

#: default size limit of the word cache
WORD_CACHE_BYTES: Final = 24 << 20
#: size of the texts that missing words are joined to
_JOINED_BYTES: Final = 1 << 16
_TRIES: Final = 3
#: Separators between joined words, which keep them words; one call for each word takes llama.cpp twenty times
#: as long. The first byte of the next word decides which one fits.
_FILLERS: Final = (b" a", b" a1")
_NO_CUT: Final = int(WordCut.NONE)
_CUT: Final = int(WordCut.HERE)


class CachingEncoder:
    """Encodes text to token ids. Thread-safe.

    Args:
        encode: the tokenizer.
        cuts: where its texts can be cut, see :func:`suffixsvc_caches.tokenizers.words.cut_table`.
        token_bytes: int64[vocabulary], length of each token in bytes.
        memory_bytes: approximate size limit of the word cache.
        normalizes: the tokenizer normalizes text that is not ASCII, so that the bytes of tokens can differ
            from those of the text.
    """

    def __init__(
        self,
        encode: Callable[[str], TokenArray],
        cuts: npt.NDArray[np.uint8],
        token_bytes: npt.NDArray[np.int64],
        memory_bytes: int = WORD_CACHE_BYTES,
        *,
        normalizes: bool = False,
    ) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self._normalizes = normalizes
        #: the cached words
        self.memo = _ext.WordMemo(cuts.tobytes(), memory_bytes)
        whole = np.zeros((256, 256), np.uint8)
        whole[:128, :128] = cuts
        # bytes, because indexing an array for single elements takes ten times as long
        self._after_filler = [(filler, whole[filler[-1]].tobytes()) for filler in _FILLERS]
        self._before_filler = whole[:, _FILLERS[0][0]].tobytes()

    def encode(self, text: str) -> TokenArray:
        """Encode a text to token ids, int32[n], equal to the tokenizer's."""
        data = text.encode()
        for _ in range(_TRIES):
            tokens, holes, missing = self.memo.encode(data)
            if not missing:
                return self._fill_holes(tokens, holes, data) if holes else tokens
            found = self._encode_words(missing)
            ends = np.cumsum([len(each) for each in found], dtype=np.int64)
            self.memo.learn(missing, np.concatenate(found).astype(np.int32, copy=False), ends)
        return self._encode(text)  # other threads cleared the cache each time

    def _fill_holes(
        self, tokens: TokenArray, holes: Sequence[tuple[int, int, int]], data: bytes
    ) -> TokenArray:
        """Insert the tokens of words too long to cache, each (index in ``tokens``, first byte, end)."""
        parts: list[TokenArray] = []
        done = 0
        for at, begin, end in holes:
            parts += tokens[done:at], self._encode(data[begin:end].decode())
            done = at
        return np.concatenate([*parts, tokens[done:]])

    def _encode_words(self, words: Sequence[bytes]) -> list[TokenArray]:
        found: dict[int, TokenArray] = {}
        for places, joined in self._join(words):
            found.update(self._encode_joined(words, places, joined))
        # Words that cannot be joined, or not be separated again, are encoded one by one.
        return [found[i] if i in found else self._encode(word.decode()) for i, word in enumerate(words)]

    def _join(self, words: Sequence[bytes]) -> Iterator[tuple[list[tuple[int, int]], bytes]]:
        """Join words with fillers: [(index of the word, offset in the text), ..], text."""
        places: list[tuple[int, int]] = []
        parts: list[bytes] = []
        size = 0
        for i, word in enumerate(words):
            filler = self._filler(word)
            if filler is None:
                continue
            size += len(filler)
            places.append((i, size))
            parts += filler, word
            size += len(word)
            if size >= _JOINED_BYTES:
                yield places, b"".join(parts)
                places, parts, size = [], [], 0
        if places:
            yield places, b"".join(parts)

    def _filler(self, word: bytes) -> bytes | None:
        """Filler that can precede a word; None if no filler fits before or after it."""
        if self._before_filler[word[-1]] == _NO_CUT or (self._normalizes and not word.isascii()):
            return None
        for filler, cuts in self._after_filler:
            cut = cuts[word[0]]
            if cut == _CUT or (cut != _NO_CUT and word[1:2].isalpha()):
                return filler
        return None

    def _encode_joined(
        self, words: Sequence[bytes], places: list[tuple[int, int]], joined: bytes
    ) -> Iterator[tuple[int, TokenArray]]:
        """Encode a joined text; yield (index, tokens) of its words if all of them start and end at tokens."""
        ids = self._encode(joined.decode())
        ends = np.concatenate([[0], self._token_bytes[ids].cumsum()])
        begins = np.array([begin for _, begin in places])
        word_ends = begins + [len(words[i]) for i, _ in places]
        first, last = ends.searchsorted(begins), ends.searchsorted(word_ends)
        if ends[-1] != len(joined) or not (
            np.array_equal(ends[first], begins) and np.array_equal(ends[last], word_ends)
        ):
            return
        for (i, _), a, b in zip(places, first.tolist(), last.tolist(), strict=True):
            yield i, ids[a:b]
