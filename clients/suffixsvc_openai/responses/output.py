"""Output of a response: deltas of the answer to items, and to the events of a stream.

A whole response and a stream are made by the same object, so that they agree.

    response.output_item.added
        response.content_part.added                  of a message, and of reasoning (reasoning_text)
        response.output_text.delta ..
        response.output_text.done
        response.content_part.done
        response.function_call_arguments.delta ..    of a call
        response.function_call_arguments.done
    response.output_item.done
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc_openai.responses.items import new_id
from suffixsvc_openai.tools.deltas import ArgumentsDelta, CallStart, ContentDelta, Delta, ReasoningDelta

StreamEvent = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _TextPart:
    """The one part of an item of text.

    Attributes:
        type: of the part, and in the names of its events.
        prefix: of the item's id.
        item: further fields of the item.
        more: further fields of the part.
        fields: of the part's events.
    """

    type: str
    prefix: str
    item: Mapping[str, Any]
    more: Mapping[str, Any]
    fields: Mapping[str, Any]

    def of(self, text: str) -> dict[str, Any]:
        """Return the part."""
        return {"type": self.type, "text": text, **self.more}


_PARTS: Final = {
    "message": _TextPart(
        "output_text",
        "msg",
        {"role": "assistant"},
        {"annotations": [], "logprobs": []},
        {"content_index": 0, "logprobs": []},
    ),
    "reasoning": _TextPart("reasoning_text", "rs", {"summary": []}, {}, {"content_index": 0}),
}


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
                    events += self._text("message", text)
                case ReasoningDelta(text):
                    events += self._text("reasoning", text)
                case CallStart(_, call_id, name):
                    events += [*self._end("completed"), *self._begin_call(call_id, name)]
                case ArgumentsDelta(_, text):
                    events.append(self._delta("response.function_call_arguments.delta", text))
        return events

    def end(self, status: str, *, cut: bool = True) -> list[StreamEvent]:
        """End the output; an answer without text has one empty message.

        Args:
            status: of the last item: "completed" or "incomplete".
            cut: a call that is the last item lacks its end. One that does not is completed, although the text
                after it, such as a closing marker, may be cut.
        """
        if not cut and self._item is not None and self._item["type"] == "function_call":
            return self._end("completed")
        items = [*self.items, *([] if self._item is None else [self._item])]
        answered = any(item["type"] != "reasoning" for item in items)
        if answered or (items and status != "completed"):  # the latter: reasoning that was cut
            return self._end(status)
        return [*self._begin_text("message"), *self._end(status)]

    def _text(self, item_type: str, text: str) -> list[StreamEvent]:
        """Add text to an item of a type, which is begun if another one is in progress."""
        events: list[StreamEvent] = []
        if self._item is None or self._item["type"] != item_type:
            events += self._begin_text(item_type)
        part = _PARTS[item_type]
        return [*events, self._delta(f"response.{part.type}.delta", text, **part.fields)]

    def _begin_text(self, item_type: str) -> list[StreamEvent]:
        part = _PARTS[item_type]
        item = {"type": item_type, "id": new_id(part.prefix), "status": "in_progress"}
        return [  # in this order
            *self._end("completed"),
            self._begin({**item, **part.item, "content": []}),
            self._event("response.content_part.added", content_index=0, part=part.of("")),
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
        part = _PARTS.get(self._item["type"])
        if part is not None:
            events = [
                self._event(f"response.{part.type}.done", text=text, **part.fields),
                self._event("response.content_part.done", content_index=0, part=part.of(text)),
            ]
            done = {**self._item, "status": status, "content": [part.of(text)]}
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
