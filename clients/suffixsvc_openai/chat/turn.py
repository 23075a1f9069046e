"""Turn of a chat: what a request asks the model for, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from suffixsvc.errors import GrammarError
from suffixsvc_driver.sampling.structured import JsonSchema
from suffixsvc_openai.chat.response_format import Format, format_value, unusable
from suffixsvc_openai.chat.tool_choice import ToolChoice, ToolMode
from suffixsvc_openai.protocol.errors import invalid
from suffixsvc_openai.tools.definitions import ToolSet

#: variables of templates that requests do not set
_OWN: Final = frozenset({"messages", "tools", "documents", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(frozen=True, slots=True)
class ChatTurn:
    """A turn. Both APIs make it with :meth:`of`.

    Attributes:
        messages: as in chat completions; contents are strings or None.
        tools: definitions, as in chat completions.
        choice: which of them the model calls.
        parallel: an answer may have several calls.
        format: what text must be; None for any.
        variables: further variables of the chat template.
    """

    messages: Sequence[Mapping[str, Any]]
    tools: Sequence[Mapping[str, Any]]
    choice: ToolChoice
    parallel: bool = True
    format: Format | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        tool_choice: Any = None,
        parallel_tool_calls: bool | None = None,
        response_format: Mapping[str, Any] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> Self:
        """Check the fields of a request, which have the form of chat completions.

        A choice that binds the answer to calls means one call, unless ``parallel_tool_calls`` is true: small
        models that may go on repeat a call for as long as the grammar lets them.

        Raises:
            ApiError, ToolError: a field is invalid; ``param`` names it as in chat completions.
        """
        choice = ToolChoice.of(tool_choice, ToolSet.of(tools or ()))
        answer = format_value(response_format)
        if choice.binds or (answer is not None and choice.mode is not ToolMode.NONE):  # a grammar has them
            for name, schema in choice.tools.schemas.items():
                try:
                    JsonSchema(schema)  # its limits
                except GrammarError as error:
                    raise unusable(error, parameters_of(tools or (), name)) from None
        for name in variables or ():
            if name in _OWN or not name.isidentifier():
                raise invalid("chat_template_kwargs", "name variables that the server does not set", got=name)
        return cls(
            messages,
            tools or (),
            choice,
            not choice.named and (not choice.binds if parallel_tool_calls is None else parallel_tool_calls),
            answer,
            variables or {},
        )

    @property
    def binds(self) -> bool:
        """Whether a grammar binds the answer."""
        return self.choice.binds or self.format is not None


def parameters_of(tools: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the field of a request that has the schema of a tool."""
    index = next(i for i, tool in enumerate(tools) if tool["function"]["name"] == name)
    return f"tools[{index}].function.parameters"
