"""What the tracker knows of one sequence that an engine is writing."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, NamedTuple

import numpy as np

from suffixsvc.types import BackendSession, Draft, TokenArray

__all__ = ["LiveSequence", "View", "longest_path", "tokens_that_came_true"]

_FIRST_ROOM: Final = 256


class View(NamedTuple):
    """What an engine showed of a sequence: int32[n], the tokens from the absolute position ``start`` on."""

    token_ids: TokenArray
    start: int

    @property
    def end(self) -> int:
        """Where the next token will stand."""
        return self.start + len(self.token_ids)

    def behind(self, position: int) -> TokenArray:
        """A copy of the tokens from there on: engines write into their buffers again."""
        return np.array(self.token_ids[position - self.start :], np.int32)


class LiveSequence:
    """One sequence: its tokens so far, its session, the draft that the engine holds.

    Tokens are kept whole, 4 bytes each, and compared whole: a hash could take one sequence for another.
    Not thread-safe; it belongs to whoever has claimed it.

    Attributes:
        session: None before it is opened, after it failed, after the sequence was dropped.
        origin: absolute position of the session's first token; 0 unless the engine shows only tails.
        handed_out: the last draft, as the engine got it.
        hints: names the engine has for it.
        busy: somebody has claimed it.
        used_at: seconds on the table's clock.
        skip: questions that are not worth opening a session for: the last attempt failed.
    """

    __slots__ = ("_room", "_size", "busy", "handed_out", "hints", "origin", "session", "skip", "used_at")

    def __init__(self, view: View) -> None:
        self.session: BackendSession | None = None
        self.origin = view.start
        self.handed_out = Draft.empty()
        self.hints: set[Hashable] = set()
        self.busy = True
        self.used_at = 0.0
        self.skip = 0
        self._room = np.empty(max(_FIRST_ROOM, 2 * len(view.token_ids)), np.int32)
        self._size = 0
        self.append(view.token_ids)

    @property
    def end(self) -> int:
        """Absolute position of the next token."""
        return self.origin + self._size

    @property
    def token_ids(self) -> TokenArray:
        """int32[n], the tokens from ``origin`` on; valid until the next append."""
        return self._room[: self._size]

    def append(self, token_ids: TokenArray) -> None:
        end = self._size + len(token_ids)
        if end > len(self._room):
            room = np.empty(2 * end, np.int32)
            room[: self._size] = self.token_ids
            self._room = room
        self._room[self._size : end] = token_ids
        self._size = end

    def is_continued_by(self, view: View) -> bool:
        """Whether ``view`` shows this sequence, as far as it is known or further.

        A tail that begins behind the sequence's own beginning has to share at least one token with it.
        """
        first = max(self.origin, view.start)
        if not first < self.end <= view.end:
            return False
        mine = self.token_ids[first - self.origin :]
        shown = view.token_ids[first - view.start : self.end - view.start]
        return bool(mine[-1] == shown[-1]) and np.array_equal(mine, shown)


def longest_path(draft: Draft) -> int:
    """Tokens of a draft that can be accepted together."""
    depth: list[int] = []
    for parent in draft.parents.tolist():
        depth.append(1 if parent < 0 else depth[parent] + 1)
    return max(depth, default=0)


def tokens_that_came_true(draft: Draft, written: TokenArray) -> int:
    """How many of ``written`` are a path of the draft: what the target accepted of it."""
    at, accepted = -1, 0
    truth = written.tolist()
    for i, (token, parent) in enumerate(zip(draft.token_ids.tolist(), draft.parents.tolist(), strict=True)):
        # topological order: a child stands behind its parent
        if accepted < len(truth) and parent == at and token == truth[accepted]:
            at = i
            accepted += 1
    return accepted
