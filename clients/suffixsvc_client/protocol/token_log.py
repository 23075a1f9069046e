"""Token log of a session at the client, from which a lost session is opened again.

position  0        5          12      15         20
          |  prompt |  output  | tool  |  output  |
                    └ first run         └ runs alternate between context and output
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from suffixsvc.errors import AppendConflict, AppendGap
from suffixsvc.types import TokenArray
from suffixsvc.values import as_int

#: most tokens of one message: far below any usual message size limit
CHUNK_TOKENS = 1 << 18


class Piece(NamedTuple):
    """Tokens of one kind (context or output), int32[n]; the first one is at position ``at``."""

    output: bool
    at: int
    tokens: TokenArray


class TokenLog:
    """Append-only sequence of tokens with their kinds. Not thread-safe."""

    def __init__(self, prompt: TokenArray) -> None:
        self._tokens = np.array(prompt, np.int32)
        self._length = self._prompt_length = len(prompt)
        #: (start, is output) of every run; adjacent runs differ in kind, but the prompt is a run by itself
        self._runs: list[tuple[int, bool]] = [(0, False)]

    def __len__(self) -> int:
        return self._length

    @property
    def prompt(self) -> TokenArray:
        """The prompt, int32[n]."""
        return self._tokens[: self._prompt_length]

    @property
    def has_output(self) -> bool:
        """Whether there are tokens of output."""
        return any(output for _, output in self._runs)

    def new_part(self, tokens: TokenArray, at: int | None) -> TokenArray:
        """The part of an append at position ``at`` that is new.

        Raises:
            AppendGap, AppendConflict, InvalidInputError: as the engine does.
        """
        if at is None:
            return tokens
        at = as_int("at", at, 0)  # also because sums of small numpy integers overflow
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
        """Append tokens of one kind."""
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

    def output_from(self, start: int) -> TokenArray | None:
        """The tokens from ``start`` on if they are one piece of output, as at most steps; else None."""
        run_start, output = self._runs[-1]
        if output and run_start <= start < self._length <= start + CHUNK_TOKENS:
            return self._tokens[start : self._length]
        return None

    def pieces(self, start: int, end: int) -> list[Piece]:
        """The tokens of ``start .. end`` in pieces of one kind that fit a message.

        The pieces are views: tokens that are in the log do not change.
        """
        bounds = [*(run_start for run_start, _ in self._runs[1:]), self._length]
        return [
            Piece(output, at, self._tokens[at : min(end, run_end, at + CHUNK_TOKENS)])
            for (run_start, output), run_end in zip(self._runs, bounds, strict=True)
            for at in range(max(start, run_start), min(end, run_end), CHUNK_TOKENS)
        ]
