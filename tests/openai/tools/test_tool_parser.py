"""The parser of calls: the formats, what is content, and that neither splits nor hostile texts matter."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from suffixsvc_caches.logs.base.options import ToolFormat as LogFormat
from suffixsvc_caches.logs.calls.messages import completion_text
from suffixsvc_openai.tools.definitions import ToolSet
from suffixsvc_openai.tools.deltas import ArgumentsDelta, CallStart, ContentDelta, Delta, assemble
from suffixsvc_openai.tools.formats import ToolFormat, format_of
from suffixsvc_openai.tools.parser import ToolCallParser
from support.long_form import rounds

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOLS = ToolSet.of(
    [
        {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}},
        {"type": "function", "function": {"name": "now"}},
    ]
)
HERMES, LLAMA3, MISTRAL, MISTRAL_V13 = ToolFormat
ROME = '{"city": "Rome"}'


def parser_of(tool_format: ToolFormat, *, bound: bool = False) -> ToolCallParser:
    numbers = itertools.count()
    return ToolCallParser(tool_format, TOOLS, bound=bound, new_id=lambda: f"id{next(numbers)}")


def deltas_of(parser: ToolCallParser, pieces: list[str]) -> list[Delta]:
    deltas = [*(delta for piece in pieces for delta in parser.feed(piece)), *parser.finish()]
    assert all(delta.text for delta in deltas if not isinstance(delta, CallStart))
    return deltas


def parse(tool_format: ToolFormat, text: str, *, bound: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """Content and calls, the same for the whole text and for its characters."""
    whole = assemble(deltas_of(parser_of(tool_format, bound=bound), [text]))
    assert assemble(deltas_of(parser_of(tool_format, bound=bound), list(text))) == whole
    return whole.content, [(call.name, call.arguments) for call in whole.calls]


CALL = f'{{"name": "get_weather", "arguments": {ROME}}}'
NOW = '{"name": "now", "arguments": {}}'
WANTED = [("get_weather", ROME)]
BOTH = [*WANTED, ("now", "{}")]


@pytest.mark.parametrize(
    ("tool_format", "after"),
    [
        (HERMES, f"</tool_call>\n{NOW}"),
        (HERMES, f"</tool_call>\n```json\n{NOW}\n```"),
        (MISTRAL, f"]\n[{NOW}]"),
    ],
)
def test_without_bare_calls_only_marked_text_is_a_call(tool_format: ToolFormat, after: str) -> None:
    """A value that response_format asks for was taken for a call if it followed one."""
    begin = "[TOOL_CALLS][" if tool_format is MISTRAL else "<tool_call>"
    for more, calls in (("", WANTED), (f", {NOW}", BOTH)):
        parser = ToolCallParser(tool_format, TOOLS, bare=False)
        found = assemble(deltas_of(parser, [*begin, *CALL, *more, *after]))
        assert [(call.name, call.arguments) for call in found.calls] == calls
        assert NOW in found.content


@pytest.mark.parametrize(
    ("tool_format", "text", "content", "calls"),
    [
        (HERMES, f"<tool_call>\n{CALL}\n</tool_call>", "", WANTED),
        (HERMES, f"\n\n<tool_call>{CALL}</tool_call>\n", "", WANTED),
        (HERMES, f"I look.\n<tool_call>\n{CALL}\n</tool_call>", "I look.", WANTED),
        (HERMES, f"I look.\n\n<tool_call>\n{CALL}\n</tool_call>", "I look.\n", WANTED),
        (HERMES, f"a<tool_call>\n{CALL}\n</tool_call>\n<tool_call>{NOW}</tool_call>b", "ab", BOTH),
        (HERMES, f"<tool_call>{CALL}</tool_call>\n text \n", "\n text \n", WANTED),
        (HERMES, f"<tool_call>{CALL}\n{NOW}</tool_call>", "", BOTH),
        (HERMES, f"<tool_call>[{CALL}, {NOW}]</tool_call>", "", BOTH),
        (HERMES, f"<tool_call>\n{{{CALL}}}\n</tool_call>", "", WANTED),
        (HERMES, f"<tool_call>\n{CALL}", "", WANTED),  # its end is not needed
        (HERMES, f"<tool_call>\n{CALL}\n</tool_", "", WANTED),
        (HERMES, '<tool_call>{"name": "now"}</tool_call>', "", [("now", "{}")]),
        # the arguments are the model's own text, whatever the schema says
        (
            HERMES,
            '<tool_call>{"arguments" :{ "x":[1 ,{"y" : "}\\""}]},"name":"now"}',
            "",
            [("now", '{ "x":[1 ,{"y" : "}\\""}]}')],
        ),
        (
            HERMES,
            json.dumps({"name": "get_weather", "arguments": ROME}).join(["<tool_call>", "</tool_call>"]),
            "",
            WANTED,
        ),
        (LLAMA3, CALL.replace("arguments", "parameters"), "", WANTED),
        (LLAMA3, f"<|python_tag|>{CALL}; {NOW}", "", BOTH),
        (LLAMA3, f"{CALL}; {NOW}", "", BOTH),
        (
            LLAMA3,
            '{"type": "function", "name": "get_weather", "parameters": {"city": "Rome"}}',
            "",
            WANTED,
        ),
        (MISTRAL, f"[TOOL_CALLS] [{CALL}, {NOW}]", "", BOTH),
        (MISTRAL, f"text[TOOL_CALLS][{CALL}]", "text", WANTED),
        (MISTRAL, f'[TOOL_CALLS][{CALL[:-1]}, "id": "abcDEF123"}}]', "", WANTED),
        (MISTRAL, f"[TOOL_CALLS] {CALL}", "", WANTED),
        (MISTRAL_V13, f"text[TOOL_CALLS]get_weather[ARGS]{ROME}", "text", WANTED),
        (MISTRAL_V13, f"[TOOL_CALLS]get_weather[ARGS]{ROME}[TOOL_CALLS]now[ARGS]{{}}", "", BOTH),
        (MISTRAL_V13, f"[TOOL_CALLS]get_weather[CALL_ID]abcDEF123[ARGS]{ROME}", "", WANTED),
        (MISTRAL_V13, f"[TOOL_CALLS] [{CALL}]", "", WANTED),
    ],
)
def test_calls_of_the_models_own_format(
    tool_format: ToolFormat, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert parse(tool_format, text) == (content, calls)


@pytest.mark.parametrize("tool_format", list(ToolFormat))
@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (CALL, "", WANTED),
        # doubled braces, as templates of Qwen 2.5 show them
        (f"{{{CALL}}}", "", WANTED),
        (f"{{{CALL}", "", WANTED),
        (f"{{{CALL}}}\n{{{NOW} text", " text", BOTH),
        (f"```json\n{{{CALL}}}\n```", "", WANTED),
        (f"{{{CALL}}}}}", "}", WANTED),
        (f"{CALL}}}", "}", WANTED),
        (f"{{{{{CALL}}}}}", f"{{{{{CALL}}}}}", []),
        (f"  {CALL}\n", "", WANTED),
        (f"[{CALL},\n {NOW}]", "", BOTH),
        (f"Sure:\n```json\n{CALL}\n```\n", "Sure:", WANTED),
        (f"```\n{CALL}\n{NOW}\n```done", "done", BOTH),
        (f"{CALL}\n{NOW}", "", BOTH),
        # what is no call of a known tool, or does not fit, or stands inside of something
        ('{"name": "get_weather", "arguments": {"city": 7}}', None, []),
        ('{"name": "get_weather", "arguments": {"city": "Rome", "more": 1}}', None, []),
        ('{"name": "get_weather", "arguments": {}}', None, []),
        ('{"name": "get_weather"}', None, []),
        ('{"name": "now", "arguments": [1]}', None, []),
        ('{"name": "other", "arguments": {}}', None, []),
        ('{"name": "now", "name": "now", "arguments": {}}', None, []),
        ('{"name": "now", "arguments": {}, "parameters": {}}', None, []),
        ('{"name": "now", "arguments": {}, "more": {}}', None, []),
        ('{"name": ["now"], "arguments": {}}', None, []),
        ('{"name": "now", "arguments": {"x": tru}}', None, []),
        ('{"name": "now", "arguments": {"x": NaN}}', None, []),
        (f"Call {CALL} now", None, []),
        (f"[1, {CALL}]", None, []),
        (f'{{\n  "tools": [\n    {CALL}\n  ]\n}}', None, []),
        ("```json\n{}\n```", None, []),
        (f"```json\n{CALL}", "", WANTED),
        ("[1](http://x)\n[ ] task\n{ int x; }\n", None, []),
    ],
)
def test_calls_without_a_marker(
    tool_format: ToolFormat, text: str, content: str | None, calls: list[tuple[str, str]]
) -> None:
    found = parse(tool_format, text)
    if tool_format in (MISTRAL, MISTRAL_V13) and content == "Sure:":
        content = "Sure:\n"  # its calls follow the text directly
    assert found == (text if content is None else content, calls)


def test_a_call_that_is_no_call_is_content_but_a_later_one_is_found() -> None:
    unknown = '<tool_call>{"name": "other", "arguments": {}}</tool_call>'
    assert parse(HERMES, f"{unknown}\n<tool_call>{NOW}</tool_call>") == (unknown, [("now", "{}")])
    assert parse(HERMES, f"<tool_call> no <tool_call>{NOW}") == ("<tool_call> no ", [("now", "{}")])
    assert parse(HERMES, f'<tool_call>{{"name": "now", <tool_call>{NOW}') == (
        '<tool_call>{"name": "now", ',
        [("now", "{}")],
    )
    assert parse(HERMES, f"<<tool_<tool_call>{NOW}") == ("<<tool_", [("now", "{}")])
    assert parse(LLAMA3, f"{CALL}, {CALL} and") == (" and", [*WANTED, *WANTED])
    assert parse(LLAMA3, f"{CALL}; more") == ("; more", WANTED)
    assert parse(MISTRAL, f"[TOOL_CALLS][{CALL}, 7]") == (", 7]", WANTED)


def test_deltas_come_as_soon_as_they_are_known() -> None:
    parser = parser_of(HERMES)
    assert parser.feed("Hello ") == [ContentDelta("Hello")]  # a call may drop white space
    assert parser.feed("you <b") == [ContentDelta(" you <b")]
    assert parser.feed(" <to") == []
    assert parser.feed("p") == [ContentDelta(" <top")]
    assert parser.feed("\n<tool_call>" + CALL[:-1]) == []
    assert parser.feed("}") == [CallStart(0, "id0", "get_weather"), ArgumentsDelta(0, ROME)]
    assert parser.feed("</tool_call>\n") == []
    assert parser.finish() == []


BOUND = [
    (HERMES, f"<tool_call>\n{CALL}\n</tool_call>\n<tool_call>\n{NOW}\n</tool_call>"),
    (LLAMA3, f"{CALL}; {NOW}".replace("arguments", "parameters")),
    (MISTRAL, f"[TOOL_CALLS] [{CALL}, {NOW}]"),
    (MISTRAL_V13, f"[TOOL_CALLS]get_weather[ARGS]{ROME}[TOOL_CALLS]now[ARGS]{{}}"),
]


@pytest.mark.parametrize(("tool_format", "text"), BOUND)
def test_text_that_a_grammar_binds_is_passed_on_at_once(tool_format: ToolFormat, text: str) -> None:
    assert parse(tool_format, text, bound=True) == ("", BOTH)
    parser = parser_of(tool_format, bound=True)
    cut = text.index("Rome") + 2
    assert parser.feed(text[:cut]) == [CallStart(0, "id0", "get_weather"), ArgumentsDelta(0, '{"city": "Ro')]
    assert parser.feed(text[cut : cut + 1]) == [ArgumentsDelta(0, "m")]
    assert parser.finish() == []  # the answer was cut: so are the arguments


@pytest.mark.parametrize(("tool_format", "text"), BOUND)
def test_text_that_a_grammar_binds_has_no_content_wherever_it_is_cut(
    tool_format: ToolFormat, text: str
) -> None:
    for cut in range(len(text)):
        content, calls = parse(tool_format, text[:cut], bound=True)
        assert content == "", cut
        for (name, arguments), (whole_name, whole) in zip(calls, BOTH, strict=False):
            assert name == whole_name
            assert whole.startswith(arguments)


@pytest.mark.parametrize("tool_format", [HERMES, LLAMA3])
def test_a_call_is_cut_until_its_last_brace(tool_format: ToolFormat) -> None:
    """And not until the text that follows it."""
    name, end = len('<tool_call>\n{"name": "get_weather", "arguments": {'), len(f"<tool_call>\n{CALL}")
    text = f"<tool_call>\n{CALL}\n</tool_call>"
    for cut in range(name, len(text) + 1):
        shift = 0 if tool_format is HERMES else len("<tool_call>\n")
        parser = parser_of(tool_format, bound=True)
        deltas_of(parser, [text[shift:cut]] if tool_format is HERMES else [text[shift : min(cut, end)]])
        assert parser.calls == 1
        assert parser.cut == (cut < end), cut


def test_ids_are_unique() -> None:
    parser = ToolCallParser(HERMES, TOOLS)
    starts = [delta for delta in parser.feed(f"{CALL}\n{NOW}") if isinstance(delta, CallStart)]
    assert len({start.id for start in starts}) == 2
    assert all(start.id.startswith("call_") for start in starts)
    assert [start.index for start in starts] == [0, 1]


@pytest.mark.parametrize(
    ("ours", "written"),
    [
        (HERMES, LogFormat.HERMES),
        (HERMES, LogFormat.JSON),
        (LLAMA3, LogFormat.LLAMA3),
        (MISTRAL, LogFormat.MISTRAL),
        (MISTRAL, LogFormat.MISTRAL_TEKKEN),
        (MISTRAL_V13, LogFormat.MISTRAL_V13),
    ],
)
@pytest.mark.parametrize("content", ["", "I look.", "a\n\n"])
def test_what_the_caches_write_is_read(ours: ToolFormat, written: LogFormat, content: str) -> None:
    calls = [{"function": {"name": name, "arguments": text}} for name, text in BOTH]
    message = {"content": content, "tool_calls": calls}
    text = completion_text(message, written, reasoning=False)
    # Mistral's models write no newline before the marker, so one that is there is content
    kept = "\n" if content and written is LogFormat.MISTRAL else ""
    assert parse(ours, text) == (content + kept, BOTH)


PIECES = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "```json\n", "```", "[ARGS]", "now",
    "get_weather", CALL, NOW, ROME, "{", "}", "[", "]", '"', "\\", ",", ";", ":", "\n", " ", "<", "a", "é",
    '{"name": "now", ', '"arguments": ', '"parameters": {', "true", "{}",
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(PIECES) | st.text(max_size=3), max_size=14).map("".join)


@settings(max_examples=rounds(60, full=200))
@given(st.sampled_from(ToolFormat), st.booleans(), TEXTS, st.data())
def test_the_result_does_not_depend_on_the_split(
    tool_format: ToolFormat, bound: bool, text: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[a:b] for a, b in itertools.pairwise([0, *cuts, len(text)])]
    whole = assemble(deltas_of(parser_of(tool_format, bound=bound), [text]))
    assert assemble(deltas_of(parser_of(tool_format, bound=bound), pieces)) == whole
    assert assemble(deltas_of(parser_of(tool_format, bound=bound), list(text))) == whole


@settings(max_examples=rounds(60, full=200))
@given(st.sampled_from(ToolFormat), TEXTS)
@example(HERMES, "<tool_call>\n{")
def test_nothing_is_lost_and_without_calls_nothing_changes(tool_format: ToolFormat, text: str) -> None:
    answer = assemble(deltas_of(parser_of(tool_format), [text]))
    for call in answer.calls:
        assert call.name in TOOLS
        assert isinstance(json.loads(call.arguments), dict)
        assert call.arguments in text or json.dumps(call.arguments) in text
    if not answer.calls:
        assert answer.content == text
    else:  # the content is the text without some parts
        rest = iter(text)
        assert all(char in rest for char in answer.content)


#: more than Python's recursion limit
SIZE = 1_200


@pytest.mark.parametrize("tool_format", list(ToolFormat))
@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.parametrize(
    "text",
    [
        "{" * SIZE,
        "[" * SIZE,
        '{"name": ' * SIZE,
        '{"name": "now", "arguments": {"x": ' * SIZE,
        '{"name": "now", "arguments": ' + "[" * SIZE,
        '{"name": "now", "arguments": {"x": "' + "y" * SIZE,
        '{"name": "now", "arguments": {"x": "' + "\\\\" * SIZE,
        "<tool_call>{" + ",".join(f'"{i}": {i}' for i in range(SIZE)) + "}",
        "<tool_call>" * SIZE,
        "[TOOL_CALLS]" * SIZE,
        "[TOOL_CALLS]" + "a" * SIZE,
        "<|python_tag|>" * SIZE,
        "<tool_call>" + "\n" * SIZE + "x",
        " " * SIZE + "x",
        "\n{" * SIZE,
        "```" * SIZE,
        "```json\n" * SIZE,
        f"{NOW}" + ";" * SIZE + "x",
        f"{NOW}\n" * (SIZE // 10),
        "<" * SIZE,
        '{"name": "' + "n" * SIZE + '"}',
        '{"name": "now", "arguments": {"x": ' + "9" * SIZE + "}}",
    ],
    ids=lambda text: text[:24],
)
def test_hostile_texts_take_linear_work_and_raise_nothing(
    tool_format: ToolFormat, bound: bool, text: str
) -> None:
    for pieces in ([text], list(text)):
        parser = parser_of(tool_format, bound=bound)
        deltas_of(parser, pieces)
        assert parser.work <= 4 * len(text) + 100


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{{ '<tool_call>' }}", HERMES),
        ('{{ \'{"name": "f", "parameters": \' }} <|python_tag|>', LLAMA3),
        ("[AVAILABLE_TOOLS] [TOOL_CALLS]", MISTRAL),
        ("[TOOL_CALLS] [ARGS]", MISTRAL_V13),
        ("<|im_start|>", HERMES),
    ],
)
def test_the_format_is_that_of_the_template(template: str, expected: ToolFormat) -> None:
    assert format_of(template) is expected


def test_every_format_has_the_name_that_suffixsvc_build_gives_it() -> None:
    assert {one.value for one in ToolFormat} <= {one.value for one in LogFormat}
