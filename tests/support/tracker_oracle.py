"""Oracle of the session tracker, and a recording namespace.

:class:`TrackerOracle` finds the session of a view by comparing lists. :class:`RecordingNamespace` is a real
namespace that records the calls on its sessions and can make them fail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from suffixsvc import SuffixCache
from suffixsvc.types import BackendNamespace, BackendSession, Draft
from support.stored import stored_outputs

#: an output of the tests: ten different tokens
TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]
#: the namespace that the tests write to
NAMESPACE = "tests"


def stored_tokens(cache: SuffixCache) -> list[list[int]]:
    """Return all stored outputs, in the order of their commits."""
    return [stored.output.token_ids.tolist() for stored in stored_outputs(cache, NAMESPACE)]


class RecordingSession:
    """A real session that records its calls. ``failing``: names of the calls that raise instead."""

    def __init__(self, session: BackendSession, prompt: Sequence[int], failing: set[str]) -> None:
        self.session = session
        self.failing = failing
        self.arguments: list[Any] = [prompt]  # the arrays as they were passed: they must not change later
        self.context: list[int] = [int(t) for t in prompt]  # tokens that count as context
        self.text: list[int] = list(self.context)
        self.written: list[int] = []
        self.steps: list[tuple[list[int], Any]] = []  # appended tokens and their feedback
        self.closed: list[bool] = []

    def step(self, new_token_ids: Any, **arguments: Any) -> Draft:
        if "step" in self.failing:
            raise RuntimeError("the session was set to fail")
        self.arguments.append(new_token_ids)
        new = [int(t) for t in new_token_ids]
        assert arguments["at"] == len(self.text), "the tracker sends the position"
        self.text += new
        self.written += new
        verified = arguments.get("verified")
        self.steps.append((new, None if verified is None else (verified.width, verified.accepted)))
        return self.session.step(new_token_ids, **arguments)

    def append_context(self, token_ids: Any) -> None:
        if "append_context" in self.failing:
            raise RuntimeError("the session was set to fail")
        self.arguments.append(token_ids)
        self.text += [int(t) for t in token_ids]
        self.context += [int(t) for t in token_ids]
        self.session.append_context(token_ids)

    def close(self, commit: bool = True) -> int | None:
        self.closed.append(commit)
        return self.session.close(commit)


class RecordingNamespace:
    """A real namespace whose sessions record their calls."""

    def __init__(self, namespace: BackendNamespace) -> None:
        self.namespace = namespace
        self.opened: list[RecordingSession] = []
        self.failing: set[str] = set()

    def open_session(self, prompt_token_ids: Any, **arguments: Any) -> RecordingSession:
        if "open_session" in self.failing:
            raise RuntimeError("the namespace was set to fail")
        session = self.namespace.open_session(prompt_token_ids, **arguments)
        self.opened.append(RecordingSession(session, prompt_token_ids, self.failing))
        return self.opened[-1]


class TrackerOracle:
    """Live sequences as plain lists, the least recently used first."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.live: list[list[int]] = []
        self.owner: list[int] = []  # the number of the session of each
        self.opened = 0

    def query(self, view: list[int]) -> tuple[int, list[int]]:
        """Return the number of the session that this view belongs to, and those that are evicted for it."""
        best = -1
        for i, text in enumerate(self.live):
            if view[: len(text)] == text and (best < 0 or len(text) >= len(self.live[best])):
                best = i
        if best >= 0:
            self.live.append(self.live.pop(best))
            self.owner.append(self.owner.pop(best))
            self.live[-1] = list(view)
            return self.owner[-1], []
        self.live.append(list(view))
        self.owner.append(self.opened)
        self.opened += 1
        evicted = []
        while len(self.live) > self.capacity:
            self.live.pop(0)
            evicted.append(self.owner.pop(0))
        return self.opened - 1, evicted
