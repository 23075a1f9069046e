"""Output of a response: deltas of the answer to items, and to the events of a stream.

A whole response and a stream are made by the same object, so that they agree.

    response.output_item.added
        response.content_part.added            of a message
        response.output_text.delta ..
        response.output_text.done
        response.content_part.done
        response.function_call_arguments.delta ..    of a call
        response.function_call_arguments.done
    response.output_item.done
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from suffixsvc_openai.responses.items import new_id
from suffixsvc_openai.tools.deltas import ArgumentsDelta, CallStart, ContentDelta, Delta

StreamEvent = dict[str, Any]


class Output:
    """Items of one response.

    Attributes:
        items: the items that are complete.
    """

    def __init__(self) -> None:
        self.items: list[dict[str, Any]] = []
        self._item: dict[str, Any] | None = None  # in progress
        self._texts: list[str] = []  # of that item

    def add(self, deltas: Iterable[Delta]) -> list[StreamEvent]:
        """Add parts of the answer; return the events."""
        events: list[StreamEvent] = []
        for delta in deltas:
            match delta:
                case ContentDelta(text):
                    if self._item is None or self._item["type"] != "message":
                        events += [*self._end("completed"), *self._begin_message()]
                    events.append(self._delta("response.output_text.delta", text, **_PART, logprobs=[]))
                case CallStart(_, call_id, name):
                    events += [*self._end("completed"), *self._begin_call(call_id, name)]
                case ArgumentsDelta(_, text):
                    events.append(self._delta("response.function_call_arguments.delta", text))
        return events

    def end(self, status: str) -> list[StreamEvent]:
        """End the output; an answer without text has one empty message.

        Args:
            status: of the last item: "completed" or "incomplete".
        """
        events = [] if self._item is not None or self.items else self._begin_message()
        return events + self._end(status)

    def _begin_message(self) -> list[StreamEvent]:
        item = {"type": "message", "id": new_id("msg"), "status": "in_progress", "role": "assistant"}
        return [
            self._begin({**item, "content": []}),
            self._event("response.content_part.added", **_PART, part=_part("")),
        ]

    def _begin_call(self, call_id: str, name: str) -> list[StreamEvent]:
        item = {"type": "function_call", "id": new_id("fc"), "status": "in_progress", "call_id": call_id}
        return [self._begin({**item, "name": name, "arguments": ""})]

    def _begin(self, item: dict[str, Any]) -> StreamEvent:
        self._item, self._texts = item, []
        return {"type": "response.output_item.added", "output_index": len(self.items), "item": item}

    def _delta(self, kind: str, text: str, **fields: Any) -> StreamEvent:
        self._texts.append(text)
        return self._event(kind, **fields, delta=text)

    def _end(self, status: str) -> list[StreamEvent]:
        if self._item is None:
            return []
        text = "".join(self._texts)
        if self._item["type"] == "message":
            events = [
                self._event("response.output_text.done", **_PART, text=text, logprobs=[]),
                self._event("response.content_part.done", **_PART, part=_part(text)),
            ]
            done = {**self._item, "status": status, "content": [_part(text)]}
        else:
            events = [self._event("response.function_call_arguments.done", arguments=text)]
            done = {**self._item, "status": status, "arguments": text}
        index = len(self.items)
        self._item = None
        self.items.append(done)
        return [*events, {"type": "response.output_item.done", "output_index": index, "item": done}]

    def _event(self, kind: str, **fields: Any) -> StreamEvent:
        assert self._item is not None  # noqa: S101  # begun before
        return {"type": kind, "item_id": self._item["id"], "output_index": len(self.items), **fields}


#: a message has one part
_PART: Mapping[str, Any] = {"content_index": 0}


def _part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
