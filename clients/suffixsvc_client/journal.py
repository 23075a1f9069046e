"""Everything a session holds, kept by the client: what the service forgets can be told again.

position  0        5          12      15         20
          |  prompt |  output  | tool  |  output  |
                    └ first run         └ runs alternate between context and output
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from suffixsvc import wire
from suffixsvc.errors import AppendConflict, AppendGap, InvalidInputError
from suffixsvc.types import TokenArray

__all__ = ["Journal", "Piece"]

#: tokens of one message at most: far below any sensible limit of a message
CHUNK_TOKENS = 1 << 18


@dataclass(frozen=True, slots=True)
class Piece:
    """Tokens of one kind, int32[n], the first one at position ``at``."""

    output: bool
    at: int
    tokens: TokenArray

    @property
    def end(self) -> int:
        return self.at + len(self.tokens)


class Journal:
    """Append-only tokens with their kinds. Not thread-safe."""

    def __init__(self, prompt: TokenArray) -> None:
        self._tokens = np.array(prompt, np.int32)
        self._length = self._prompt_length = len(prompt)
        #: (start, is output) of every run; neighbours differ in kind, but for the prompt, which stays alone
        self._runs: list[tuple[int, bool]] = [(0, False)]

    def __len__(self) -> int:
        return self._length

    @property
    def prompt(self) -> TokenArray:
        return self._tokens[: self._prompt_length]

    @property
    def has_output(self) -> bool:
        return any(output for _, output in self._runs)

    def new_part(self, tokens: TokenArray, at: int | None) -> TokenArray:
        """What of an append at ``at`` is new. AppendGap, AppendConflict as the engine raises them."""
        if at is None:
            return tokens
        if isinstance(at, bool) or not isinstance(at, (int, np.integer)) or at < 0:
            raise InvalidInputError("at is no position", expected="an int >= 0", got=repr(at)[:80])
        at = int(at)  # sums of a small numpy integer overflow
        if at > self._length:
            raise AppendGap(expected=self._length, got=at)
        if at == self._length:
            return tokens
        known = min(self._length - at, len(tokens))
        differs = np.flatnonzero(self._tokens[at : at + known] != tokens[:known])
        if len(differs):
            first = int(differs[0])
            have, got = int(self._tokens[at + first]), int(tokens[first])
            raise AppendConflict(at + first, expected=f"token {have}", got=f"token {got}")
        return tokens[known:]

    def append(self, tokens: TokenArray, *, output: bool) -> None:
        if not len(tokens):
            return
        if self._runs[-1][1] != output or len(self._runs) == 1:
            self._runs.append((self._length, output))
        end = self._length + len(tokens)
        if end > len(self._tokens):
            grown = np.empty(max(end, 2 * len(self._tokens), 64), np.int32)
            grown[: self._length] = self._tokens[: self._length]
            self._tokens = grown
        self._tokens[self._length : end] = tokens
        self._length = end

    def last_output(self, start: int) -> bytes | None:
        """The tokens from ``start`` to the end, packed for the wire, where they are output of one run and fit
        one message: what almost every decode step sends. None where :meth:`pieces` has to tell."""
        run_start, output = self._runs[-1]
        if output and run_start <= start and self._length - start <= CHUNK_TOKENS:
            return wire.pack_tokens(self._tokens[start : self._length])
        return None

    def pieces(self, start: int, end: int) -> Iterator[Piece]:
        """The tokens of ``start .. end`` by kind, in pieces that fit a message."""
        run_start, output = self._runs[-1]
        end = min(end, self._length)
        if start >= run_start and 0 < end - start <= CHUNK_TOKENS:  # what every decode step asks for
            yield Piece(output, start, self._tokens[start:end].copy())
            return
        bounds = [*(run_start for run_start, _ in self._runs[1:]), self._length]
        for (run_start, output), run_end in zip(self._runs, bounds, strict=True):
            low, high = max(start, run_start), min(end, run_end)
            for at in range(low, high, CHUNK_TOKENS):
                yield Piece(output, at, self._tokens[at : min(high, at + CHUNK_TOKENS)].copy())
