"""Tools for chat templates that do not know them: described in the system message, calls and results as
text.

The texts are those of the Hermes format, as the template of Qwen 2.5 writes them, which most models have
seen; :func:`suffixsvc_openai.tools.formats.format_of` returns that format for such templates.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

#: describes tools in a system message; {tools}: a definition per line
TOOLS_TEXT: Final = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments \
within <tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def with_tools_as_text(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return messages with roles system, user and assistant, and text contents only.

    Args:
        messages: in the form of templates (:mod:`suffixsvc_openai.prompts.messages`), arguments as mappings.
        tools: definitions; may be empty.
    """
    result: list[dict[str, Any]] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        calls = message.get("tool_calls", [])
        if role == "tool":
            text = f"<tool_response>\n{content}\n</tool_response>"
            if result and result[-1].pop("results", False):
                result[-1]["content"] += f"\n{text}"
                result[-1]["results"] = True
            else:
                result.append({"role": "user", "content": text, "results": True})
        elif calls:
            texts = [content] if content else []
            result.append({"role": role, "content": "\n".join([*texts, *map(_call_text, calls)])})
        else:
            result.append(dict(message))
    for message in result:
        message.pop("results", None)
    return _described(result, tools) if tools else result


def _described(messages: list[dict[str, Any]], tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    about = TOOLS_TEXT.format(tools="\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if messages and messages[0]["role"] in ("system", "developer"):
        first = messages[0]
        return [{**first, "content": f"{first['content']}\n\n{about}"}, *messages[1:]]
    return [{"role": "system", "content": about}, *messages]


def _call_text(call: Mapping[str, Any]) -> str:
    function = call["function"]
    name, arguments = (json.dumps(function[key], ensure_ascii=False) for key in ("name", "arguments"))
    return f'<tool_call>\n{{"name": {name}, "arguments": {arguments}}}\n</tool_call>'
