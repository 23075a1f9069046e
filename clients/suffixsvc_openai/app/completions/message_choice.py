"""An element of ``choices`` of a chat completion: a message, whole or in chunks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from suffixsvc_openai.app.answers.answer import Addition
from suffixsvc_openai.chat.reader import AnswerReader
from suffixsvc_openai.protocol.logprobs import ScoredToken, chat_logprobs
from suffixsvc_openai.tools.deltas import (
    ArgumentsDelta,
    CallStart,
    ContentDelta,
    Delta,
    ReasoningDelta,
    assemble,
)


class MessageChoice:
    """See :class:`suffixsvc_openai.app.completions.choices_writer.Choice`.

    Log probabilities are those of all tokens of the message, of calls too. In a stream they are sent with the
    first chunk that is made of their text.

    The first chunk has the role, and null as content if the message begins with a call. Where that is not
    known yet, it is sent with the first part of the message.

    Args:
        index: of the choice.
        reader: of its text.
    """

    def __init__(self, index: int, reader: AnswerReader) -> None:
        self.index = index
        self._reader = reader
        self._begun = False
        self._tokens: list[ScoredToken] | None = None  # of text that was not sent yet

    def begin(self) -> list[dict[str, Any]]:
        """See the protocol."""
        if self._reader.may_call and not self._reader.bound:
            return []
        return self._begin(called=self._reader.bound)

    def add(self, new: Addition) -> list[dict[str, Any]]:
        """See the protocol."""
        if new.tokens:
            self._tokens = self._tokens or []
            self._tokens += new.tokens
        return self._chunks(self._reader.feed(new.text))

    def end(self, reason: str) -> list[dict[str, Any]]:
        """See the protocol."""
        chunks = self._chunks(self._reader.finish())
        return [*chunks, *self._begin(called=False), self._scored({}, self._reader.reason(reason))]

    def whole(self, answer: Addition, reason: str) -> dict[str, Any]:
        """See the protocol."""
        logprobs = chat_logprobs(answer.tokens)
        parts = assemble([*self._reader.feed(answer.text), *self._reader.finish()])
        message: dict[str, Any] = {
            "role": "assistant",
            "content": parts.content or (None if parts.calls else ""),
            "refusal": None,
            "annotations": [],
        }
        if parts.reasoning:
            message["reasoning_content"] = parts.reasoning
        if parts.calls:
            message["tool_calls"] = [_call(c.id, c.name, c.arguments) for c in parts.calls]
        reason = self._reader.reason(reason)
        return {"index": self.index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def _begin(self, *, called: bool) -> list[dict[str, Any]]:
        """Return the chunk of the role, once."""
        if self._begun:
            return []
        self._begun = True
        content = None if called else ""
        return [self._chunk({"role": "assistant", "content": content, "refusal": None})]

    def _chunks(self, deltas: Iterable[Delta]) -> list[dict[str, Any]]:
        chunks = []
        for delta in deltas:
            chunks += self._begin(called=not isinstance(delta, ContentDelta))
            chunks.append(self._scored(_fields(delta)))
        return chunks

    def _scored(self, delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
        """Return a chunk with the log probabilities that wait for one."""
        tokens, self._tokens = self._tokens, None
        return self._chunk(delta, reason, chat_logprobs(tokens))

    def _chunk(
        self, delta: dict[str, Any], reason: str | None = None, logprobs: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        return {"index": self.index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}


def _call(call_id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _fields(delta: Delta) -> dict[str, Any]:
    """Return the fields of a chunk's ``delta``."""
    match delta:
        case ContentDelta(text):
            return {"content": text}
        case ReasoningDelta(text):
            return {"reasoning_content": text}
        case CallStart(index, call_id, name):
            return {"tool_calls": [{"index": index, **_call(call_id, name, "")}]}
        case ArgumentsDelta(index, text):
            return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
