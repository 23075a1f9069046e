"""Grammars of calls: llguidance permits by them the calls that the parser reads, and no other text."""

from __future__ import annotations

import json
from typing import Any

import llguidance
import pytest

from suffixsvc_openai.tools.definitions import ToolError, ToolSet
from suffixsvc_openai.tools.deltas import assemble
from suffixsvc_openai.tools.formats import ToolFormat
from suffixsvc_openai.tools.grammar import tool_grammar
from suffixsvc_openai.tools.parser import ToolCallParser

WEATHER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"$ref": "#/$defs/city"},
        "days": {"type": "array", "items": {"type": "integer"}},
    },
    "required": ["city"],
    "$defs": {"city": {"enum": ["Rome", 'O\'Brien "x"']}},
}
TOOLS = ToolSet.of(
    [
        {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
        {"type": "function", "function": {"name": "now"}},
        {"type": "function", "function": {"name": "any.thing-else_", "parameters": {"type": "object"}}},
    ]
)
HERMES, LLAMA3, MISTRAL, MISTRAL_V13 = ToolFormat
ROME = '{"city": "Rome", "days": [1, 2]}'


def permits(grammar: str, text: str) -> bool:
    """Whether a text, byte by byte, is all that a grammar permits."""
    matcher = llguidance.LLMatcher(llguidance.LLTokenizer("byte"), grammar, log_level=0)
    assert not matcher.get_error(), matcher.get_error()
    ids = list(text.encode())
    return matcher.try_consume_tokens(ids) == len(ids) and matcher.is_accepting()


ONE = {
    HERMES: f'<tool_call>\n{{"name": "get_weather", "arguments": {ROME}}}\n</tool_call>',
    LLAMA3: f'{{"name": "get_weather", "parameters": {ROME}}}',
    MISTRAL: f'[TOOL_CALLS][{{"name": "get_weather", "arguments": {ROME}}}]',
    MISTRAL_V13: f"[TOOL_CALLS]get_weather[ARGS]{ROME}",
}
TWO = {
    HERMES: ONE[HERMES] + '\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
    LLAMA3: ONE[LLAMA3] + '; {"name": "now", "parameters": {}}',
    MISTRAL: ONE[MISTRAL][:-1] + ', {"name": "now", "arguments": {}}]',
    MISTRAL_V13: ONE[MISTRAL_V13] + "[TOOL_CALLS]now[ARGS]{}",
}


@pytest.mark.parametrize("tool_format", list(ToolFormat))
def test_calls_in_the_models_own_format_are_permitted_and_read(tool_format: ToolFormat) -> None:
    grammar = tool_grammar(tool_format, TOOLS)
    for text, names in ((ONE[tool_format], ["get_weather"]), (TWO[tool_format], ["get_weather", "now"])):
        assert permits(grammar, text)
        parser = ToolCallParser(tool_format, TOOLS, bound=True)
        answer = assemble([*parser.feed(text), *parser.finish()])
        assert [call.name for call in answer.calls] == names
        assert json.loads(answer.calls[0].arguments) == json.loads(ROME)
        assert answer.content == ""


@pytest.mark.parametrize("tool_format", list(ToolFormat))
def test_nothing_else_is_permitted(tool_format: ToolFormat) -> None:
    one = ONE[tool_format]
    grammar = tool_grammar(tool_format, TOOLS)
    for text in (
        "",
        f"Sure. {one}",
        f" {one}",
        f"{one} ",
        one[:-1],
        one.replace("get_weather", "other"),
        one.replace("Rome", "Paris"),
        one.replace('"days"', '"more"'),
        one.replace("[1, 2]", '["a"]'),
        one.replace("[1, 2]", "[1,  2]"),
        one.replace(ROME, "{}"),
        one.replace(ROME, "7"),
    ):
        assert not permits(grammar, text), text


@pytest.mark.parametrize("tool_format", list(ToolFormat))
def test_a_named_choice_and_single_calls(tool_format: ToolFormat) -> None:
    single = tool_grammar(tool_format, TOOLS, parallel=False)
    assert permits(single, ONE[tool_format])
    assert not permits(single, TWO[tool_format])
    now = tool_grammar(tool_format, TOOLS.only("now"))
    assert not permits(now, ONE[tool_format])
    calls = ONE[tool_format].replace("get_weather", "now").replace(ROME, "{}")
    assert permits(now, calls)
    assert not permits(now, calls.replace("{}", '{"x": 1}'))  # it has no parameters


def test_a_schema_that_leaves_arguments_open_permits_any() -> None:
    text = '{"name": "any.thing-else_", "parameters": {"x": {"y": [null, true]}}}'
    assert permits(tool_grammar(LLAMA3, TOOLS), text)
    schema = {"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}}
    tools = ToolSet.of([{"function": {"name": "f", "parameters": schema}}])
    assert permits(tool_grammar(LLAMA3, tools), '{"name": "f", "parameters": {"a": 1, "b": "c"}}')


def test_a_marker_that_is_a_special_token_is_matched_by_its_id() -> None:
    for tool_format in (MISTRAL, MISTRAL_V13):
        grammar = tool_grammar(tool_format, TOOLS, special_ids={"[TOOL_CALLS]": 9})
        assert "<[9]>" in grammar
        assert "TOOL_CALLS" not in grammar
        tokenizer = llguidance.LLTokenizer("byte")
        matcher = llguidance.LLMatcher(tokenizer, grammar, log_level=0)
        assert not matcher.get_error()
        rest = list(ONE[tool_format].removeprefix("[TOOL_CALLS]").encode())
        assert matcher.try_consume_tokens([9, *rest]) == len(rest) + 1
    assert tool_grammar(LLAMA3, TOOLS, special_ids={"[TOOL_CALLS]": 9}) == tool_grammar(LLAMA3, TOOLS)


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "function"}], "tools[0].function"),
        ([7], "tools[0].function"),
        ([{"function": {}}], "tools[0].function.name"),
        ([{"function": {"name": 'a"b'}}], "tools[0].function.name"),
        ([{"function": {"name": "a" * 65}}], "tools[0].function.name"),
        ([{"function": {"name": "a"}}, {"function": {"name": "a"}}], "tools[1].function.name"),
        ([{"function": {"name": "a", "parameters": []}}], "tools[0].function.parameters"),
        ([{"function": {"name": "a", "parameters": {"type": "array"}}}], "tools[0].function.parameters"),
    ],
)
def test_invalid_definitions_are_errors_that_name_their_place(tools: list[Any], param: str) -> None:
    with pytest.raises(ToolError, match="must") as caught:
        ToolSet.of(tools)
    assert caught.value.param == param


def test_a_choice_of_an_unknown_tool_is_an_error() -> None:
    with pytest.raises(ToolError, match=r"tool_choice must be one of: get_weather, now.*'other'"):
        TOOLS.only("other")
