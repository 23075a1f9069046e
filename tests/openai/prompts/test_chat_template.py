"""Chat templates: the text of llama.cpp for plain chats, tools, and what templates differ in."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suffixsvc.errors import InvalidInputError, ModelError
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_openai.prompts.chat_template import CHATML, ChatTemplate
from suffixsvc_openai.prompts.messages import MessageError
from support.tiny_gguf import TinyWriter, write_tiny_llama

PLAIN = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hé <b>&amp;</b> 'x' \"y\"\n"}],
    [
        {"role": "system", "content": ""},
        {"role": "user", "content": "a\n\nb "},
        {"role": "assistant", "content": " c"},
        {"role": "user", "content": "<|im_end|> 日本 {{ 1 }}"},
    ],
]
CALL = {"id": "call_abc123", "type": "function", "function": {"name": "find", "arguments": '{"q": "é<"}'}}
CHAT = [
    {"role": "user", "content": "question"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_abc123", "content": "one"},
]
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {"type": "object"}}}]


@pytest.mark.model
@pytest.mark.parametrize("messages", PLAIN)
@pytest.mark.parametrize("start", [True, False])
def test_plain_chats_are_the_text_of_llama_cpp(
    real_model: Path, messages: list[dict[str, str]], start: bool
) -> None:
    with LlamaModel(real_model, vocab_only=True) as model, ChatTemplate.of(model) as template:
        assert "SmolLM" in template.text
        assert messages[0]["role"] == "system" or "SmolLM" in template.render(messages)
        # llama.cpp knows this template as ChatML, and omits the default system message
        if messages[0]["role"] == "system":
            ours = template.render(messages, add_generation_prompt=start)
            assert ours == model.chat(messages, add_assistant=start)


def tiny_with(path: Path, **templates: str) -> Path:
    tiny = TinyWriter(path, "llama", 0, 32, 1)
    for name, text in templates.items():
        tiny.gguf.add_string("tokenizer.chat_template" + (f".{name}" if name != "default" else ""), text)
    tiny.gguf.add_feed_forward_length(32)
    tiny.gguf.add_head_count(2)
    tiny.gguf.add_rope_dimension_count(16)
    tiny.normal("token_embd.weight", tiny.size, 32, scale=1.0)
    return tiny.close()


@pytest.mark.parametrize("messages", PLAIN)
def test_a_file_without_a_template_has_chatml_as_llama_cpp_writes_it(
    tmp_path: Path, messages: list[dict[str, str]]
) -> None:
    path = write_tiny_llama(tmp_path / "tiny.gguf")
    with LlamaModel(path, vocab_only=True) as model, ChatTemplate.of(model) as template:
        assert template.text == CHATML
        for start in (True, False):
            ours = template.render(messages, add_generation_prompt=start)
            assert ours == model.chat(messages, add_assistant=start)


def test_the_template_of_a_file_is_found_however_long_with_the_variant_for_tools(tmp_path: Path) -> None:
    plain = "{# " + "long " * 2000 + "#}{{ bos_token }}plain{{ eos_token }}"
    with_tools = "tools: {{ tools | length }} {{ messages[0].content }}"
    path = tiny_with(tmp_path / "tiny.gguf", default=plain, tool_use=with_tools)
    with LlamaModel(path, vocab_only=True) as model, ChatTemplate.of(model) as template:
        assert template.render(PLAIN[0]) == "<|endoftext|>plain<|endoftext|>"
        assert template.render(PLAIN[0], TOOLS) == "tools: 1 Hello"
        assert template.tool_text == with_tools


def test_a_call_in_two_braces_is_mended(tmp_path: Path) -> None:
    """As Qwen2.5-Coder's template asks for it; "{{" elsewhere is left alone."""
    asked = r"\n{{\"name\": <function-name>, \"arguments\": <args-json-object>}}\n"
    path = tiny_with(
        tmp_path / "tiny.gguf", default=f'{{{{- "a {{{{b}}}}{asked}" }}}}{{{{ tools | length }}}}'
    )
    with LlamaModel(path, vocab_only=True) as model, ChatTemplate.of(model) as template:
        text = template.render(PLAIN[0], TOOLS)
    assert text == 'a {{b}}\n{"name": <function-name>, "arguments": <args-json-object>}\n1'


QWEN = """\
{%- if tools %}{% for tool in tools %}{{ tool | tojson }}
{% endfor %}{% endif %}
{%- for m in messages %}
{{- m.role + ':' }}{% if m.content %}{{ m.content }}{% endif %}
    {%- for c in m.tool_calls %}
        {{- '<tool_call>' + c.function.name + c.function.arguments | tojson }}
    {%- endfor %}
|{% endfor %}"""


@pytest.fixture(scope="module")
def qwen() -> Iterator[ChatTemplate]:
    with ChatTemplate(QWEN) as template:
        yield template


def test_tools_and_calls_are_given_to_a_template_that_knows_them(qwen: ChatTemplate) -> None:
    assert qwen.knows_tools
    text = qwen.render([*CHAT, {"role": "user", "content": "go on"}], TOOLS)
    lines = text.split("\n", 1)
    assert json.loads(lines[0]) == TOOLS[0]
    assert lines[1] == 'user:question|assistant:<tool_call>find{"q": "é<"}|tool:one|user:go on|'


def test_a_template_that_does_not_know_tools_has_them_as_text() -> None:
    with ChatTemplate(CHATML) as template:
        assert not template.knows_tools
        plain = template.render(CHAT)
        assert plain.startswith("<|im_start|>user\nquestion<|im_end|>\n<|im_start|>assistant\n<tool_call>\n{")
        assert '{"name": "find", "arguments": {"q": "é<"}}\n</tool_call><|im_end|>' in plain
        assert "<|im_start|>user\n<tool_response>\none\n</tool_response><|im_end|>" in plain
        two = [*CHAT, {"role": "tool", "tool_call_id": "b", "content": "two"}]
        assert (
            "user\n<tool_response>\none\n</tool_response>\n<tool_response>\ntwo\n</tool_response><|im_end|>"
            in (template.render(two))
        )
        described = template.render([{"role": "developer", "content": "Be brief."}, *CHAT], TOOLS)
        assert described.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
        assert json.dumps(TOOLS[0]) in described


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        # arguments that are concatenated must be text, those of tojson mappings
        ("{{ c.function.name + c.function.arguments }}", '{"q": "é<"}'),
        ("{{ c.function.name }}{{ c.function.arguments | tojson }}", '{"q": "é<"}'),
        ("{{ c.function.name }}{{ c.function.arguments.items() | list }}", "[('q', 'é<')]"),
    ],
)
def test_arguments_have_the_form_that_the_template_takes(expression: str, expected: str) -> None:
    text = (
        "{% for m in messages if m.tool_calls %}{% for c in m.tool_calls %}X%{% endfor %}"
        "{% endfor %}{{ tools }}"
    )
    with ChatTemplate(text.replace("X", expression)) as template:
        assert template.render(CHAT) == f"find{expected}%None"


def test_a_null_content_is_empty_where_the_template_prints_it() -> None:
    loop = (
        "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function }}{% endfor %};"
        "{% endfor %}"
    )
    with ChatTemplate(loop) as template:
        assert template.render(CHAT).startswith("question;{'name': 'find'")
    known = loop.replace("{{ m.content }}", "{{ 'called' if m.content is none else m.content }}")
    with ChatTemplate(known) as template:
        assert "question;called{" in template.render(CHAT)


def test_ids_of_calls_are_short_where_the_template_demands_it() -> None:
    text = (
        "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function }}"
        "{% if c.id|length != 9 %}{{ raise_exception('nine') }}{% endif %}={{ c.id }}{% endfor %}"
        "{{ m.tool_call_id }};{% endfor %}"
    )
    with ChatTemplate(text) as template:
        _, assistant, tool, _ = template.render(CHAT).split(";")
        assert assistant.split("=")[1] == tool
        assert tool.isalnum()
        kept = [CHAT[0], {**CHAT[1], "tool_calls": [{**CALL, "id": "abcDEF123"}]}]
        assert template.render(kept).endswith("=abcDEF123;")


def test_the_developer_is_the_system_where_the_template_does_not_know_it(qwen: ChatTemplate) -> None:
    messages = [{"role": "developer", "content": "d"}, {"role": "user", "content": "u"}]
    assert qwen.render(messages) == "system:d|user:u|"
    with ChatTemplate("{% for m in messages %}{{ m.role }}{# developer #}{% endfor %}") as template:
        assert template.render(messages) == "developeruser"


def test_what_has_no_utf8_is_replaced(qwen: ChatTemplate) -> None:
    assert qwen.render([{"role": "user", "content": "a\0b\ud800c"}]) == "user:a\ufffdb\ufffdc|"
    tool = {"type": "function", "function": {"name": "f\0", "description": "\udfff"}}
    assert qwen.render([], [tool]).count("\ufffd") == 2


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([CHAT[0], {"role": "user", "content": ["a"]}], "messages[1].content"),
        ([{"role": "user", "content": 7}], "messages[0].content"),
        ([{"role": None, "content": ""}], "messages[0].role"),
        (["text"], "messages[0].role"),
        ([{"role": "assistant", "tool_calls": {}}], "messages[0].tool_calls"),
        ([{"role": "assistant", "tool_calls": [{}]}], "messages[0].tool_calls[0].function.name"),
        *(
            (
                [
                    {
                        "role": "assistant",
                        "tool_calls": [{**CALL, "function": {"name": "f", "arguments": given}}],
                    }
                ],
                "messages[0].tool_calls[0].function.arguments",
            )
            for given in ("{", "[]", "7", "[" * 100_000, 7)
        ),
    ],
)
def test_an_invalid_message_is_an_error_that_names_its_place(
    qwen: ChatTemplate, messages: list[Any], param: str
) -> None:
    with pytest.raises(MessageError, match="must") as caught:
        qwen.render(messages)
    assert caught.value.param == param
    assert str(caught.value).startswith(param)


def test_messages_nested_too_deep_or_not_json_are_errors(qwen: ChatTemplate) -> None:
    deep: Any = "x"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidInputError, match="nested"):
        qwen.render([{"role": "user", "content": "", "extra": deep}])
    with pytest.raises(InvalidInputError, match="nested"):
        qwen.render(CHAT, [{"type": "function", "function": deep}])
    with pytest.raises(InvalidInputError, match="JSON"):
        qwen.render(CHAT, enable_thinking=object())


def test_what_the_template_refuses_is_an_error_with_its_words() -> None:
    text = "{% if messages[0].role != 'user' %}{{ raise_exception('the user must be first') }}{% endif %}ok"
    with ChatTemplate(text) as template:
        assert template.render(CHAT) == "ok"
        with pytest.raises(InvalidInputError, match="the user must be first"):
            template.render(CHAT[1:])


def test_the_environment_is_that_of_transformers() -> None:
    text = """\
{% for m in messages %}
    {% if loop.index0 == 1 %}{% break %}{% endif %}
    {% generation %}{{ {'a': '<é>', 'b': [1, none]} | tojson }}{% endgeneration %}
{% endfor %}
{{ {'b': 1, 'a': 2} | tojson(indent=1, sort_keys=true) }}{{ strftime_now('%%') }}{{ thinking }}"""
    with ChatTemplate(text) as template:
        expected = '{"a": "<é>", "b": [1, null]}{\n "a": 2,\n "b": 1\n}%False'
        assert template.render(CHAT, thinking=False) == expected


def test_a_template_that_was_closed_is_an_error() -> None:
    template = ChatTemplate("x")
    template.close()
    template.close()
    with pytest.raises(ModelError, match="closed"):
        template.render(CHAT)
