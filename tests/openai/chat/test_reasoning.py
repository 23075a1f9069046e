"""Reasoning before an answer: how it is split, and as reasoning_content over a socket."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from suffixsvc_openai.chat.reasoning import ReasoningSplit
from support.openai_serving import client_of, running, settings_of
from support.tiny_script import write_tiny_script
from support.tool_requests import ASK, function


@pytest.mark.parametrize(
    ("opened", "text", "reasoning", "answer"),
    [
        (False, "<think>\nHm.\n</think>\n\nYes.", "Hm.", "Yes."),
        (False, "\n<think> a < b, <b>\n\nc </think>d", "a < b, <b>\n\nc", "d"),
        (False, "<think>\n\n</think>\n\nYes.", "", "Yes."),
        (False, "Yes.", "", "Yes."),
        (False, " <thinking> is fine </think>", "", " <thinking> is fine </think>"),
        (False, "<thi", "", "<thi"),
        (False, "  ", "", "  "),
        (False, "", "", ""),
        (False, "<think>cut </thi", "cut </thi", ""),
        (False, "<think>cut \n", "cut", ""),
        (False, "<think>one</think> two <think>three</think>", "one", "two <think>three</think>"),
        (True, "\nHm.</think>Yes.", "Hm.", "Yes."),
        (True, "Hm. <think>", "Hm. <think>", ""),
        (True, "</think>\n", "", ""),
    ],
)
def test_a_text_is_split_however_it_arrives(opened: bool, text: str, reasoning: str, answer: str) -> None:
    generator = random.Random(7)
    for size in (len(text) + 1, 1, 2, 3, 0):
        split, found, at = ReasoningSplit(opened=opened), ["", ""], 0
        while at < len(text):
            end = at + (size or generator.randint(1, 9))
            for place, part in enumerate(split.feed(text[at:end])):
                found[place] += part
            at = end
        for place, part in enumerate(split.finish()):
            found[place] += part
        assert found == [reasoning, answer]


def test_reasoning_is_a_field_of_the_message(tmp_path: Path) -> None:
    call = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    thought = f"I could write {call}."
    answers = {
        "Q": ("<think>", thought, "\n</think>\n", "It is noon."),
        "\n": ("Call it.", "</think>", call),
    }
    template = (
        "{# </think> #}{{ messages[-1].content }}{% if enable_thinking %}<think>\n{% else %}Q{% endif %}"
    )
    path = write_tiny_script(tmp_path / "script.gguf", answers, template=template)
    with running(settings_of(path)) as server, client_of(server) as client:
        given: dict[str, Any] = {
            "model": "script",
            "messages": ASK,
            "temperature": 0,
            "tools": [function("now")],
        }

        def ask(thinking: bool, **fields: Any) -> tuple[Any, str]:
            more = {"extra_body": {"chat_template_kwargs": {"enable_thinking": thinking}}, **fields}
            [choice] = client.chat.completions.create(**given, **more).choices
            reasoning, content = "", None
            for chunk in client.chat.completions.create(**given, **more, stream=True):
                delta = chunk.choices[0].delta
                reasoning += (delta.model_extra or {}).get("reasoning_content", "")
                content = content if delta.content is None else (content or "") + delta.content
            assert content == choice.message.content
            assert reasoning == choice.message.reasoning_content
            return choice, reasoning

        choice, reasoning = ask(thinking=False)
        assert (choice.message.content, reasoning) == ("It is noon.", thought)
        assert choice.message.tool_calls is None, "a call in the reasoning is none"
        choice, reasoning = ask(thinking=True)
        assert (choice.message.content, reasoning, choice.finish_reason) == (None, "Call it.", "tool_calls")
        choice, reasoning = ask(thinking=True, tool_choice="none")
        assert (choice.message.content, reasoning) == (call, "Call it.")
