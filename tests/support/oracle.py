"""Brute-force oracle of the index: counts every substring."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence


class BruteForceIndex:
    """A list of texts: (tokens, number of leading ones that are context only, writer)."""

    def __init__(self) -> None:
        self.texts: list[tuple[tuple[int, ...], int, int]] = []
        self._letters: dict[int, str] = {}

    def add(self, tokens: Sequence[int], uncounted: int, writer: int = 1) -> None:
        self.texts.append((tuple(tokens), uncounted, writer))

    def remove(self, tokens: Sequence[int], uncounted: int) -> bool:
        for i, (text, context, _) in enumerate(self.texts):
            if text == tuple(tokens) and context == uncounted:
                del self.texts[i]
                return True
        return False

    def counts(self, longest: int) -> Counter[tuple[int, ...]]:
        """Occurrences of every substring of 1..longest tokens whose last token counts."""
        found: Counter[tuple[int, ...]] = Counter()
        for text, uncounted, _ in self.texts:
            for end in range(uncounted, len(text)):
                for n in range(1, min(longest, end + 1) + 1):
                    found[text[end - n + 1 : end + 1]] += 1
        return found

    def longest_match(self, context: Sequence[int], bound: int) -> int:
        """Length of the longest suffix of ``context``, at most ``bound``, that occurs in a text."""
        texts = [self._spelled(text) for text, _, _ in self.texts]
        end = self._spelled(context)
        for n in range(min(bound, len(end)), 0, -1):
            if any(end[len(end) - n :] in text for text in texts):
                return n
        return 0

    def _spelled(self, tokens: Sequence[int]) -> str:
        """A text with one letter for each token: Python searches strings fast."""
        letters = self._letters
        return "".join([letters.setdefault(token, chr(len(letters))) for token in tokens])
