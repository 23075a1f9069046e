"""``POST /v1/chat/completions`` as a pydantic model."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from suffixsvc_openai.protocol.content import joined_text
from suffixsvc_openai.protocol.errors import invalid, unsupported
from suffixsvc_openai.protocol.generation_request import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Body,
    GenerationRequest,
    Items,
)

#: OpenAI's limit of top_logprobs
MAX_TOP: Final = 20
#: fields that are refused, and what to use instead
_UNSUPPORTED: Final = {
    "functions": "Use tools.",
    "function_call": "Use tool_choice.",
    "audio": None,
    "web_search_options": None,
}
_TEXT_PARTS: Final = ("text", "refusal")


def _text_of(content: Any) -> Any:
    """Join the text parts of a message's content; other kinds of parts are refused."""
    if not isinstance(content, list):
        return content
    if not content:
        raise ValueError("have at least one part")
    return joined_text(content, _TEXT_PARTS)


class Message(Body):
    """A message of a chat; ``content`` is its text, parts joined."""

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[str | None, BeforeValidator(_text_of)] = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: Items[dict[str, Any]] | None = None
    tool_call_id: str | None = None


class Prediction(Body):
    """``prediction``: a text that the answer may resemble; ``content`` is the text, parts joined."""

    type: Literal["content"]
    content: Annotated[str, BeforeValidator(_text_of)]


class ChatRequest(GenerationRequest):
    """``POST /v1/chat/completions``."""

    messages: Items[Message] = Field(min_length=1, max_length=MAX_MESSAGES)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(None, ge=0, le=MAX_TOP)
    response_format: dict[str, Any] | None = None
    tools: Items[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    functions: list[Any] | None = None
    function_call: Any = None
    modalities: Items[str] | None = None
    audio: dict[str, Any] | None = None
    web_search_options: dict[str, Any] | None = None
    prediction: Prediction | None = None
    reasoning_effort: str | None = None
    verbosity: str | None = None
    service_tier: str | None = None
    store: bool | None = None

    def check(self) -> None:
        """Refuse what is not supported, and messages without content. Raises ApiError."""
        self.check_stream()
        if self.top_logprobs is not None and not self.logprobs:
            raise invalid("logprobs", "be true with top_logprobs", got=self.logprobs)
        for name, instead in _UNSUPPORTED.items():
            if getattr(self, name) is not None:
                raise unsupported(name, instead)
        if self.modalities is not None and self.modalities != ["text"]:
            raise invalid("modalities", 'be ["text"]', got=self.modalities)
        for at, message in enumerate(self.messages):
            other = message.role == "assistant" and (message.tool_calls or message.refusal)
            if message.content is None and not other:
                raise invalid(f"messages[{at}].content", "be a text, or parts of type text", got=None)

    @property
    def top_count(self) -> int | None:
        """See the base class."""
        return (self.top_logprobs or 0) if self.logprobs else None

    @property
    def limit(self) -> int | None:
        """Largest number of tokens to generate; None for as many as the context holds."""
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
