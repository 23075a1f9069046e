"""Viewers of the live page without a browser: what ``GET /live`` sends, message by message."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx

from suffixsvc.types import DraftSource
from suffixsvc_openai.app.run import OpenAIServer
from support.serving import PATIENCE_S


class LiveReader:
    """Reads the messages of a viewer.

    Attributes:
        messages: all so far.
        answers: by number: the parts of their messages put together, ``text`` with all pieces.
        numbers: the last ones; ``seconds`` has all.
    """

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self.messages: list[dict[str, Any]] = []
        self.answers: dict[int, dict[str, Any]] = {}
        self.numbers: dict[str, Any] = {}
        self.seconds: dict[int, list[float]] = {}
        self.stored: list[list[Any]] | None = None

    def until(self, good: Callable[[LiveReader], object]) -> LiveReader:
        """Read until a condition holds; the stream must not end before."""
        while not good(self):
            line = next(self._lines, None)
            assert line is not None, f"the stream has ended: {self.messages[-3:]}"
            self.take(line)
        return self

    def rest(self) -> LiveReader:
        """Read until the stream ends."""
        for line in self._lines:
            self.take(line)
        return self

    def take(self, line: str) -> None:
        """Process a line of the stream."""
        if not line or line.startswith(":"):
            return
        assert line.startswith("data: "), line
        message = json.loads(line.removeprefix("data: "))
        self.messages.append(message)
        for change in message.get("answers", ()):
            answer = self.answers.setdefault(change["id"], {"text": [], "skipped": 0})
            text, skipped = change.pop("text", []), change.pop("skipped", 0)
            answer.update(change)
            answer["text"] += text
            answer["skipped"] += skipped
        if "numbers" in message:
            self.numbers = message["numbers"]
            self.seconds.update({row[0]: row[1:] for row in self.numbers["seconds"]})
        self.stored = message.get("stored", self.stored)

    def ends(self) -> int:
        """Number of answers whose end was read."""
        return sum("end" in answer for answer in self.answers.values())

    def ended(self, count: int) -> bool:
        """Whether the end of so many answers was read."""
        return self.ends() >= count

    def lost(self) -> int:
        """Number of answers that were not sent."""
        return sum(message.get("lost", 0) for message in self.messages)


def text_of(answer: dict[str, Any]) -> str:
    """The text of an answer."""
    return "".join(text for _, text in answer["text"])


def sources_of(answer: dict[str, Any]) -> dict[str, int]:
    """Tokens with text by the name of their source."""
    found: dict[str, int] = {}
    for source, _ in answer["text"]:
        name = DraftSource(source).name
        found[name] = found.get(name, 0) + 1
    return found


@contextlib.contextmanager
def watching(server: OpenAIServer, key: str | None = None) -> Iterator[LiveReader]:
    """A viewer whose first message has been read."""
    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    url = f"http://{server.address}/live"
    with httpx.stream("GET", url, headers=headers, timeout=PATIENCE_S) as response:
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        reader = LiveReader(response.iter_lines()).until(lambda reader: reader.messages)
        yield reader  # a name: without a reference to its lines the response would be closed
