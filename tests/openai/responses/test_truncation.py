"""Conversations that fill the context: refused, or without their oldest turns."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc_openai.app.responses.truncation import truncated_prompt
from suffixsvc_openai.chat.turn import ChatTurn
from suffixsvc_openai.engine.plans import Prompt
from support.openai_serving import client_of, running, settings_of

SYSTEM: dict[str, Any] = {"role": "system", "content": "S"}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def kept(messages: list[dict[str, Any]], context: int, tokens: int | None = None) -> tuple[str, int]:
    """Texts of the messages that are left, a token a character, and the number of prompts that were made."""
    texts = []

    def prompt_of(turn: ChatTurn) -> Prompt:
        texts.append("".join(message["content"] for message in turn.messages))
        return Prompt(tuple(texts[-1].encode()))

    found = truncated_prompt(prompt_of, ChatTurn.of(messages), context, tokens)
    return bytes(found.token_ids).decode(), len(texts)


def test_the_fewest_turns_are_dropped() -> None:
    messages = [SYSTEM, user("aa"), answer("bb"), user("cc"), answer("dd"), user("ee")]
    assert kept(messages, 12, 1) == ("Saabbccddee", 1)
    assert kept(messages, 11, 1)[0] == "Sccddee"
    assert kept(messages, 9)[0] == "Sccddee"  # two are left for the answer
    assert kept(messages, 8, 1)[0] == "Sccddee"
    assert kept(messages, 7, 1)[0] == "See"
    assert kept(messages, 4, 1)[0] == "See"
    assert kept(messages, 2, 1)[0] == "See"  # which is refused
    assert kept([SYSTEM, user("aa")], 2, 1) == ("Saa", 1)


def test_results_stay_with_their_calls() -> None:
    messages = [user("aa"), answer("CC"), {"role": "tool", "content": "RR", "tool_call_id": "c"}, user("bb")]
    assert kept(messages, 8, 1)[0] == "bb"


def test_few_prompts_are_made() -> None:
    messages = [user("ab") for _ in range(1000)]
    text, prompts = kept(messages, 20, 1)
    assert text == "ab" * 9
    assert prompts < 15


@pytest.fixture(scope="module")
def small(brief: Path) -> Iterator[openai.OpenAI]:
    """A client of a server with a small context."""
    with running(settings_of(brief, context=400)) as server, client_of(server) as client:
        yield client


def test_a_conversation_goes_on_beyond_the_context(small: openai.OpenAI) -> None:
    previous, inputs = None, []
    for at in range(12):
        response = small.responses.create(
            model="brief",
            input=f"{at:03d} " * 12,
            instructions="Be kind.",
            previous_response_id=previous,
            truncation="auto",
        )
        assert (response.output_text, response.truncation) == ("ok", "auto")
        assert response.usage is not None
        inputs.append(response.usage.input_tokens)
        previous = response.id
    assert max(inputs) < 400
    assert inputs[-1] > 150
    with pytest.raises(openai.BadRequestError) as caught:
        small.responses.create(model="brief", input="more", previous_response_id=previous)
    assert caught.value.code == "context_length_exceeded"
