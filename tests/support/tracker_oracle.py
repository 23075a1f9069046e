"""The stupid one: which session a view belongs to, by comparing lists with lists; and a real namespace that
writes down what was done to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from suffixsvc.types import BackendNamespace, BackendSession, Draft


class WatchedSession:
    """A real session and everything it was told. ``failing``: the calls, by name, that raise instead."""

    def __init__(self, session: BackendSession, prompt: Sequence[int], failing: set[str]) -> None:
        self.session = session
        self.failing = failing
        self.given: list[Any] = [prompt]  # as it was handed over: it may not change afterwards
        self.context: list[int] = [int(t) for t in prompt]  # tokens that nobody calls the model's own
        self.text: list[int] = list(self.context)
        self.written: list[int] = []
        self.steps: list[tuple[list[int], Any]] = []  # what was appended, and the feedback that came along
        self.closed: list[bool] = []

    def step(self, new_token_ids: Any, **arguments: Any) -> Draft:
        if "step" in self.failing:
            raise RuntimeError("the session was told to fail")
        self.given.append(new_token_ids)
        new = [int(t) for t in new_token_ids]
        assert arguments["at"] == len(self.text), "the tracker keeps the position"
        self.text += new
        self.written += new
        verified = arguments.get("verified")
        self.steps.append((new, None if verified is None else (verified.width, verified.accepted)))
        return self.session.step(new_token_ids, **arguments)

    def append_context(self, token_ids: Any) -> None:
        if "append_context" in self.failing:
            raise RuntimeError("the session was told to fail")
        self.given.append(token_ids)
        self.text += [int(t) for t in token_ids]
        self.context += [int(t) for t in token_ids]
        self.session.append_context(token_ids)

    def close(self, commit: bool = True) -> int | None:
        self.closed.append(commit)
        return self.session.close(commit)


class WatchedNamespace:
    """A real namespace whose sessions are watched."""

    def __init__(self, namespace: BackendNamespace) -> None:
        self.namespace = namespace
        self.opened: list[WatchedSession] = []
        self.failing: set[str] = set()

    def open_session(self, prompt_token_ids: Any, **arguments: Any) -> WatchedSession:
        if "open_session" in self.failing:
            raise RuntimeError("the namespace was told to fail")
        session = self.namespace.open_session(prompt_token_ids, **arguments)
        self.opened.append(WatchedSession(session, prompt_token_ids, self.failing))
        return self.opened[-1]


class TrackerOracle:
    """Live texts as plain lists, the least recently used first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.live: list[list[int]] = []
        self.owner: list[int] = []  # the number of the session of each
        self.opened = 0

    def ask(self, view: list[int]) -> tuple[int, list[int]]:
        """The number of the session that has to get this view, and those that are closed for it."""
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
        closed = []
        while len(self.live) > self.most:
            self.live.pop(0)
            closed.append(self.owner.pop(0))
        return self.opened - 1, closed
