"""Prompts: messages as one text.

ChatML as Qwen's template writes it, results of tools included; what a template adds by itself (a default
system message, the descriptions of the tools) is not in a log and is left out.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.messages import content_text, written_text
from suffixsvc_caches.logs.options import ChatTemplate, ReadOptions

__all__ = ["PromptText", "render_messages"]


def render_messages(messages: list[Any], options: ReadOptions) -> str:
    """The prompt that these messages make.

    Raises:
        InvalidInputError: a message is not of a form known here.
    """
    prompt = PromptText(options)
    for message in messages:
        prompt.add(message)
    return prompt.text()


class PromptText:
    """A prompt that grows message by message; each one is rendered once."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._template = options.chat_template if options.want_prompt else ChatTemplate.NONE
        self._parts: list[str] = []
        self._in_tools = False  # the turn of tool results is not closed yet

    def add(self, message: Any) -> None:
        """Append a message. InvalidInputError where it is none."""
        if not isinstance(message, dict):
            raise InvalidInputError("a message is no object", got=type(message).__name__)
        if self._template is not ChatTemplate.NONE:
            self._parts += self._render(message)

    def text(self) -> str:
        """All messages so far, and the beginning of the assistant's next one."""
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
            # what was thought in earlier turns is not shown again: templates leave it out
            text = written_text(message, self._options.tool_format, reasoning=False)
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
