"""``POST /v1/responses`` as a pydantic model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from suffixsvc_openai.protocol.errors import invalid, unsupported
from suffixsvc_openai.protocol.generation_request import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Body,
    GenerationRequest,
    Items,
)

#: fields of chat completions, and what they are called here
_RENAMED: Final = {
    "messages": "input",
    "max_tokens": "max_output_tokens",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "functions": "tools",
    "function_call": "tool_choice",
}
#: what ``include`` may name; all but the log probabilities are of tools and models that this server lacks
_LOGPROBS: Final = "message.output_text.logprobs"
_INCLUDABLE: Final = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
    _LOGPROBS,
)
#: tools that run on OpenAI's servers, or that need a model trained for them
_FUNCTIONS_ONLY: Final = "This server has tools of type function only."


def _as_items(value: Any) -> Any:
    return [{"type": "message", "role": "user", "content": value}] if isinstance(value, str) else value


class Text(Body):
    """``text``: the form of the answer's text."""

    format: dict[str, Any] | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Body):
    """``reasoning``, which has no effect: whether a model reasons is a matter of its chat template."""

    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponsesRequest(GenerationRequest):
    """``POST /v1/responses``. ``input`` is a list of items; a text is one message of the user.

    Sampling has the fields of the other endpoints too (``stop``, ``seed``, ``top_k``, ..).
    """

    input: Annotated[Items[dict[str, Any]], BeforeValidator(_as_items)] = Field(
        min_length=1, max_length=MAX_MESSAGES
    )
    instructions: str | None = None
    previous_response_id: str | None = None
    store: bool | None = None
    max_output_tokens: int | None = Field(None, ge=1)
    tools: Items[dict[str, Any]] | None = Field(None, max_length=MAX_TOOLS)
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    max_tool_calls: int | None = Field(None, ge=1)  # of hosted tools
    text: Text | None = None
    reasoning: Reasoning | None = None
    include: Items[str] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    top_logprobs: int | None = Field(None, ge=0, le=20)
    background: bool | None = None
    conversation: Any = None
    context_management: list[Any] | None = None
    moderation: dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    service_tier: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    def check(self) -> None:
        """Refuse what is not supported. Raises ApiError."""
        for name, renamed in _RENAMED.items():
            if (self.model_extra or {}).get(name, getattr(self, name, None)) is not None:
                raise unsupported(name, f"In the Responses API it is {renamed}.")
        if self.n is not None and self.n != 1:
            raise invalid("n", "be 1: a response has one answer", got=self.n)
        for name in ("background", "conversation", "context_management", "moderation", "prompt"):
            if getattr(self, name):
                raise unsupported(name)
        for i, name in enumerate(self.include or ()):
            if name not in _INCLUDABLE:
                raise invalid(f"include[{i}]", f"be one of {', '.join(_INCLUDABLE)}", got=repr(name)[:80])
            if name == _LOGPROBS:
                raise unsupported(f"include[{i}]")
        if self.top_logprobs:
            raise unsupported("top_logprobs")
        self._check_tools()

    def _check_tools(self) -> None:
        for i, tool in enumerate(self.tools or ()):
            kind = tool.get("type")
            if kind != "function":
                param = f"tools[{i}].type"
                raise invalid(param, 'be "function"', got=repr(kind)[:80], remedy=_FUNCTIONS_ONLY)
            strict = tool.get("strict")
            if strict is not None and not isinstance(strict, bool):
                raise invalid(f"tools[{i}].strict", "be a boolean", got=repr(strict)[:80])
            description = tool.get("description")
            if description is not None and not isinstance(description, str):
                raise invalid(f"tools[{i}].description", "be a string", got=repr(description)[:80])

    @property
    def stored(self) -> bool:
        """Whether the response can be retrieved later; by default it can, except with ``no_store``."""
        return not self.suffixsvc.no_store if self.store is None else self.store

    @property
    def parallel(self) -> bool:
        """Whether the answer may have several calls; a required call is one unless more are allowed."""
        if self.parallel_tool_calls is not None:
            return self.parallel_tool_calls
        choice = self.tool_choice
        if isinstance(choice, dict):  # a function has no mode
            return bool(choice.get("mode") == "auto")
        return bool(choice != "required")

    @property
    def format(self) -> Mapping[str, Any]:
        """``text.format``; its type is "text" by default."""
        given = None if self.text is None else self.text.format
        return {"type": "text"} if given is None else given

    @property
    def chat_fields(self) -> dict[str, Any]:
        """Arguments of ChatTurn.of besides the messages: fields of the same meaning in chat completions."""
        return {
            "tools": [_chat_tool(tool) for tool in self.tools or ()],
            "tool_choice": _chat_choice(self.tool_choice),
            "parallel_tool_calls": self.parallel_tool_calls,
            "response_format": _nested(self.format, "json_schema"),
            "variables": self.chat_template_kwargs,
        }


def _nested(flat: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """Return an object of a type as chat completions have it: ``{"type": kind, kind: {..}}``."""
    if flat.get("type") != kind:
        return dict(flat)
    return {"type": kind, kind: {name: value for name, value in flat.items() if name != "type"}}


def _chat_tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a definition whose fields have the order that models have seen; null is left out."""
    names = ("name", "description", "parameters", "strict")
    return {
        "type": "function",
        "function": {name: tool[name] for name in names if tool.get(name) is not None},
    }


def _chat_choice(choice: Any) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") != "allowed_tools":
        return _nested(choice, "function")
    nested = _nested(choice, "allowed_tools")
    tools = choice.get("tools")
    if isinstance(tools, list):
        nested["allowed_tools"]["tools"] = [
            _nested(tool, "function") if isinstance(tool, dict) else tool for tool in tools
        ]
    return nested


_FIELDS: Final = (
    ("tool_choice.allowed_tools", "tool_choice"),
    (".function.", "."),
    (".function", ""),
    ("response_format.json_schema", "text.format"),
    ("response_format", "text.format"),
)


def own_field(param: str) -> str:
    """Return the field of this request that has the meaning of a field of chat completions."""
    if param.startswith("messages"):
        return "input"
    for theirs, ours in _FIELDS:
        param = param.replace(theirs, ours)
    return param
