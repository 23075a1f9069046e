"""Rendering of messages to prompt texts.

ChatML follows Qwen's template, tool results included. Text that a template adds by itself (a default system
message, tool descriptions) is not in a log and is omitted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.base.options import ChatTemplate, ReadOptions
from suffixsvc_caches.logs.calls.messages import completion_text, content_text


class PromptText:
    """Incremental prompt; each message is rendered once.

    Raises:
        InvalidInputError: the format of a message is not known.
    """

    def __init__(self, options: ReadOptions, messages: Iterable[Any] = ()) -> None:
        self._options = options
        self._template = options.chat_template if options.want_prompt else ChatTemplate.NONE
        self._parts: list[str] = []
        self._in_tools = False  # inside a turn of tool results
        for message in messages:
            self.add(message)

    def add(self, message: Any) -> None:
        """Append a message. InvalidInputError: it is not an object."""
        if not isinstance(message, dict):
            raise InvalidInputError("a message must be an object", got=type(message).__name__)
        if self._template is not ChatTemplate.NONE:
            self._parts += self._render(message)

    def text(self) -> str:
        """Return the prompt: all messages so far, and the header of the assistant's next one."""
        match self._template:
            case ChatTemplate.NONE:
                return ""
            case ChatTemplate.PLAIN:
                return "\n".join(self._parts)
        end = "<|im_end|>\n" if self._in_tools else ""
        return "".join(self._parts) + end + "<|im_start|>assistant\n"

    def _render(self, message: dict[str, Any]) -> Iterator[str]:
        role = message.get("role")
        if not isinstance(role, str):
            role = "user" if role is None else str(role)
        if role in ("assistant", "model", "ai"):
            # templates omit the reasoning of earlier turns
            text = completion_text(message, self._options.tool_format, reasoning=False)
        else:
            text = content_text(message.get("content"))
        if self._template is ChatTemplate.PLAIN:
            if text:
                yield text
            return
        if role in ("tool", "function"):
            opening = "" if self._in_tools else "<|im_start|>user"
            self._in_tools = True
            yield f"{opening}\n<tool_response>\n{text}\n</tool_response>"
            return
        if self._in_tools:
            self._in_tools = False
            yield "<|im_end|>\n"
        yield f"<|im_start|>{role}\n{text}<|im_end|>\n"
