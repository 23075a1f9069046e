"""A tokenizer that remembers words: the ids of a word are looked up where they were made before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.core.word_memo import FoundWords, WordCut, WordMemo
from suffixsvc.types import TokenArray

__all__ = ["MEMO_BYTES", "RememberingEncoder"]

#: of the words that are remembered, about
MEMO_BYTES: Final = 24 << 20
#: of unknown words that are encoded together
_TOGETHER_BYTES: Final = 1 << 16
_TRIES: Final = 3
#: Between words that are encoded together, so that each stays a word: a call of its own would take llama.cpp
#: twenty times as long. Which of them the word behind decides.
_FILLERS: Final = (b" a", b" a1")
_NO_CUT: Final = int(WordCut.NONE)
_CUT: Final = int(WordCut.HERE)


class RememberingEncoder:
    """Text to token ids. Thread-safe.

    Args:
        encode: the tokenizer.
        cuts: where its texts can be cut, see :func:`suffixsvc_caches.tokenizers.words.cut_table`.
        token_bytes: int64[vocabulary]: bytes that each token stands for.
        memory_bytes: for words, about.
        normalizes: it changes texts before it encodes them, though not those of ASCII: the bytes of tokens
            are not those of the text then.
    """

    def __init__(
        self,
        encode: Callable[[str], TokenArray],
        cuts: npt.NDArray[np.uint8],
        token_bytes: npt.NDArray[np.int64],
        memory_bytes: int = MEMO_BYTES,
        *,
        normalizes: bool = False,
    ) -> None:
        self._encode = encode
        self._token_bytes = token_bytes
        self._normalizes = normalizes
        self._memo = WordMemo(cuts, memory_bytes=memory_bytes)
        whole = np.zeros((256, 256), np.uint8)
        whole[:128, :128] = cuts
        # As bytes: looking into an array a byte at a time takes ten times as long.
        self._behind_filler = [(filler, whole[filler[-1]].tobytes()) for filler in _FILLERS]
        self._before_filler = whole[:, _FILLERS[0][0]].tobytes()

    def encode(self, text: str) -> TokenArray:
        """Token ids, int32[n]: the tokenizer's own."""
        data = text.encode()
        for _ in range(_TRIES):
            found = self._memo.encode(data)
            if not found.unknown:
                return self._fill(found, data)
            self._memo.learn(found.unknown, self._encode_words(found.unknown))
        return self._encode(text)  # others make it forget all the time

    def _fill(self, found: FoundWords, data: bytes) -> TokenArray:
        if not found.holes:
            return found.tokens
        parts: list[TokenArray] = []
        done = 0
        for at, begin, end in found.holes:
            parts += found.tokens[done:at], self._encode(data[begin:end].decode())
            done = at
        return np.concatenate([*parts, found.tokens[done:]])

    def _encode_words(self, words: Sequence[bytes]) -> list[TokenArray]:
        found: dict[int, TokenArray] = {}
        for places, joined in self._joined(words):
            found.update(self._taken_apart(words, places, joined))
        # What could not be joined, or not be taken apart, goes alone.
        return [found[i] if i in found else self._encode(word.decode()) for i, word in enumerate(words)]

    def _joined(self, words: Sequence[bytes]) -> Iterator[tuple[list[tuple[int, int]], bytes]]:
        """Words with fillers between them: (which word, where it begins), and the text."""
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
            if size >= _TOGETHER_BYTES:
                yield places, b"".join(parts)
                places, parts, size = [], [], 0
        if places:
            yield places, b"".join(parts)

    def _filler(self, word: bytes) -> bytes | None:
        """What can stand before a word, if any of them can stand behind it."""
        if self._before_filler[word[-1]] == _NO_CUT or (self._normalizes and not word.isascii()):
            return None
        for filler, cuts in self._behind_filler:
            cut = cuts[word[0]]
            if cut == _CUT or (cut != _NO_CUT and word[1:2].isalpha()):
                return filler
        return None

    def _taken_apart(
        self, words: Sequence[bytes], places: list[tuple[int, int]], joined: bytes
    ) -> Iterator[tuple[int, TokenArray]]:
        ids = self._encode(joined.decode())
        ends = np.concatenate([[0], self._token_bytes[ids].cumsum()])
        begins = np.array([begin for _, begin in places])
        behind = begins + [len(words[i]) for i, _ in places]
        first, last = ends.searchsorted(begins), ends.searchsorted(behind)
        if ends[-1] != len(joined) or not (
            np.array_equal(ends[first], begins) and np.array_equal(ends[last], behind)
        ):
            return
        for (i, _), a, b in zip(places, first.tolist(), last.tolist(), strict=True):
            yield i, ids[a:b]
