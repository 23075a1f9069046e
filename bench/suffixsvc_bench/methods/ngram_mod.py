"""llama.cpp's ngram-mod: one hash table of 16 MiB for all calls, from the last 24 tokens to the next one.

The rules are those of ``--spec-type ngram-mod`` with its defaults. A slot contains the token that followed
last; the slot is chosen by a hash of the last 24 tokens, without a check of the tokens themselves. A draft
follows the table token by token, up to 64, and is dropped if the table ends before 48. A prompt enters the
table when its call begins; the output enters in chunks, once 32 tokens are new since the last indexed
position. The table is cleared when a call begins with more than a quarter of it occupied (prompt included)
and after five consecutive drafts with less than a quarter accepted.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.types import Draft, TokenArray
from suffixsvc_bench.methods.base import Method, MethodSpec, Settings, guess

SLOTS: Final = 4 * 1024 * 1024
MATCH: Final = 24
SHORTEST: Final = 48
CHUNK: Final = 32
FULL: Final = 0.25
LOW: Final = 0.25
LOW_IN_A_ROW: Final = 5
_EMPTY: Final = -1
_MULTIPLIER: Final = 6364136223846793005
_MASK: Final = 2**64 - 1


class NgramMod(Method):
    """The rules above. K below 48 also lowers the shortest draft; otherwise no draft would be long enough."""

    def __init__(
        self, settings: Settings, *, match: int = MATCH, shortest: int = SHORTEST, slots: int = SLOTS
    ) -> None:
        self._k = settings.max_draft_tokens
        self._shortest = min(shortest, self._k)
        self._match = match
        self._table: npt.NDArray[np.int32] = np.full(slots, _EMPTY, np.int32)
        self._text = np.empty(0, np.int32)
        self._length = 0
        self._indexed = 0
        self._low = 0
        self._drafted = 0

    def begin(self, prompt: TokenArray, agent: str) -> None:
        """See :class:`Method`."""
        self._length = len(prompt)
        self._text = np.concatenate([prompt, np.empty(256, np.int32)])
        self._indexed = self._drafted = 0
        if len(prompt) < self._match:
            return
        self._add(0, len(prompt) - self._match)
        self._indexed = len(prompt) - self._match
        if np.count_nonzero(self._table != _EMPTY) > FULL * len(self._table):
            self._table.fill(_EMPTY)

    def draft(self) -> Draft:
        """See :class:`Method`."""
        self._drafted = 0
        known = self._length - 1  # the newest token is not indexed yet
        if known < self._match:
            return Draft.empty()
        if self._indexed + CHUNK < known:
            self._add(self._indexed, known - self._match)
            self._indexed = known - self._match
        window = self._text[self._length - self._match : self._length].tolist()
        slots = len(self._table)
        drafted: list[int] = []
        while len(drafted) < self._k:
            hashed = 0
            for token in window:
                hashed = (hashed * _MULTIPLIER + token) & _MASK
            token = int(self._table[hashed % slots])
            if token == _EMPTY:
                break
            drafted.append(token)
            window = [*window[1:], token]
        if len(drafted) < self._shortest:
            return Draft.empty()
        self._drafted = len(drafted)
        return guess(drafted)

    def _add(self, first: int, last: int) -> None:
        """Index the n-grams that start at first .. last - 1; the last one wins a shared slot."""
        if last <= first:
            return
        text = self._text[first : last + self._match].astype(np.uint64)
        hashed = np.zeros(last - first, np.uint64)
        with np.errstate(over="ignore"):
            for i in range(self._match):
                hashed = hashed * np.uint64(_MULTIPLIER) + text[i : i + last - first]
        slots = (hashed % np.uint64(len(self._table))).astype(np.int64)
        self._table[slots] = self._text[first + self._match : last + self._match]

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        """See :class:`Method`."""
        end = self._length + len(token_ids)
        if end > len(self._text):
            self._text = np.concatenate([self._text[: self._length], np.empty(end, np.int32)])
        self._text[self._length : end] = token_ids
        self._length = end
        if not self._drafted:
            return
        self._low = self._low + 1 if accepted < LOW * self._drafted else 0
        if self._low >= LOW_IN_A_ROW:
            self._table.fill(_EMPTY)
            self._low = 0

    def end(self) -> None:
        """Nothing more enters: text that was not indexed before the end is lost, as in llama.cpp."""

    def memory_bytes(self) -> int:
        """See :class:`Method`."""
        return self._table.nbytes


SPECS = (
    MethodSpec(
        "ngram-mod",
        "llama.cpp ngram-mod",
        "one hash table for all calls: the last 24 tokens to the next one; drafts of 48 to 64 tokens",
        64,
        NgramMod,
        memory="its table of constant size",
    ),
)
