"""State of one sequence that an engine generates: its tokens, its session, its last draft."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np

from suffixsvc.types import BackendSession, Draft, TokenArray

_MIN_CAPACITY: Final = 256


class View(NamedTuple):
    """The part of a sequence that an engine passes: int32[n], the tokens from absolute position ``start``."""

    token_ids: TokenArray
    start: int

    @property
    def end(self) -> int:
        """Absolute position of the next token."""
        return self.start + len(self.token_ids)

    def tokens_from(self, position: int) -> TokenArray:
        """Copy the tokens from ``position`` on (engines reuse their buffers)."""
        return np.array(self.token_ids[position - self.start :], np.int32)


class LiveSequence:
    """One sequence: its tokens so far, its session, and the draft that the engine holds.

    All tokens are stored, 4 bytes each, and compared: a hash could mistake one sequence for another.
    Not thread-safe; the caller that claimed the sequence owns it.

    Attributes:
        session: None before it is opened, after it failed, and after the sequence was removed.
        origin: absolute position of the session's first token; 0 unless the engine passes only tails.
        last_draft: the last draft, as the engine got it.
        hints: names that the engine has for the sequence.
        busy: a caller has claimed the sequence.
        used_at: time of the last use, in seconds on the table's clock.
        skip: queries to skip before a session is opened again, after a failure.
    """

    __slots__ = ("_buffer", "_size", "busy", "hints", "last_draft", "origin", "session", "skip", "used_at")

    def __init__(self, view: View) -> None:
        self.session: BackendSession | None = None
        self.origin = view.start
        self.last_draft = Draft.empty()
        self.hints: set[Hashable] = set()
        self.busy = True
        self.used_at = 0.0
        self.skip = 0
        self._buffer = np.empty(max(_MIN_CAPACITY, 2 * len(view.token_ids)), np.int32)
        self._size = 0
        self.append(view.token_ids)

    @property
    def end(self) -> int:
        """Absolute position of the next token."""
        return self.origin + self._size

    @property
    def token_ids(self) -> TokenArray:
        """int32[n], the tokens from ``origin`` on; valid until the next append."""
        return self._buffer[: self._size]

    def append(self, token_ids: TokenArray) -> None:
        """Append tokens; the buffer grows geometrically."""
        end = self._size + len(token_ids)
        if end > len(self._buffer):
            buffer = np.empty(2 * end, np.int32)
            buffer[: self._size] = self.token_ids
            self._buffer = buffer
        self._buffer[self._size : end] = token_ids
        self._size = end

    def is_continued_by(self, view: View) -> bool:
        """Return whether ``view`` agrees with all known tokens of this sequence that it covers.

        A tail that begins after the sequence's own beginning has to share at least one token with it.
        """
        first = max(self.origin, view.start)
        if not first < self.end <= view.end:
            return False
        known = self.token_ids[first - self.origin :]
        shown = view.token_ids[first - view.start : self.end - view.start]
        # the last token differs most often, and comparing it alone is cheap
        return bool(known[-1] == shown[-1]) and np.array_equal(known, shown)
