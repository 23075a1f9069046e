"""Formats of the tool calls that models write, and the format of a chat template.

The names are those of ``suffixsvc build --tool-format`` (:mod:`suffixsvc_caches.logs.calls.messages`, which
writes these formats).

Markers of some formats are special tokens, whose text the caller must put into the text that it parses
(:meth:`LlamaModel.detokenize` with ``special``, or :meth:`LlamaModel.token_bytes`).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Final


class ToolFormat(enum.StrEnum):
    """Format of the tool calls that a model writes."""

    #: <tool_call>\n{"name": .., "arguments": ..}\n</tool_call> (Qwen, Hermes)
    HERMES = "hermes"
    #: {"name": .., "parameters": ..}, with "; " between calls; may begin with <|python_tag|> (Llama 3)
    LLAMA3 = "llama3"
    #: [TOOL_CALLS] [{"name": .., "arguments": ..}]
    MISTRAL = "mistral"
    #: [TOOL_CALLS]name[ARGS]{..}
    MISTRAL_V13 = "mistral-v13"


@dataclass(frozen=True, slots=True)
class Syntax:
    """How a format is written.

    Attributes:
        marker: text before a call, or before all of them; "" if there is none that is always written.
        openers: texts that begin a call, wherever they stand.
        closers: texts after a call that belong to it.
        separators: characters between calls, besides white space.
        arguments_key: key of the arguments of a call.
        named: the name stands before the arguments: ``name[ARGS]{..}``.
        newline: a newline between content and calls belongs to the format.
    """

    marker: str
    openers: tuple[str, ...]
    closers: tuple[str, ...] = ()
    separators: str = ",;"
    arguments_key: str = "arguments"
    named: bool = False
    newline: bool = True


SYNTAX: Final = {
    ToolFormat.HERMES: Syntax("<tool_call>", ("<tool_call>",), ("</tool_call>",)),
    ToolFormat.LLAMA3: Syntax("", ("<|python_tag|>",), arguments_key="parameters"),
    ToolFormat.MISTRAL: Syntax("[TOOL_CALLS]", ("[TOOL_CALLS]",), newline=False),
    ToolFormat.MISTRAL_V13: Syntax("[TOOL_CALLS]", ("[TOOL_CALLS]",), named=True, newline=False),
}


def format_of(template: str) -> ToolFormat:
    """Return the format of a chat template's text: the first whose marker it has, else Hermes, in which tools
    are described to models whose template does not know them.
    """
    if "[TOOL_CALLS]" in template:
        return ToolFormat.MISTRAL_V13 if "[ARGS]" in template else ToolFormat.MISTRAL
    if "<tool_call>" not in template and ("<|python_tag|>" in template or '"parameters": ' in template):
        return ToolFormat.LLAMA3
    return ToolFormat.HERMES
