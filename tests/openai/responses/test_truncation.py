"""Conversations that fill the context: refused, or without their oldest turns."""

from __future__ import annotations

import random
import string
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


def calls(*ids: str) -> dict[str, Any]:
    """A message of the model with calls, whose text is their ids."""
    called = [{"id": each, "type": "function", "function": {"name": "f", "arguments": "{}"}} for each in ids]
    return {"role": "assistant", "content": "".join(ids), "tool_calls": called}


def result(call: str) -> dict[str, Any]:
    return {"role": "tool", "content": call.upper(), "tool_call_id": call}


def kept(messages: list[dict[str, Any]], context: int, tokens: int | None = None) -> tuple[str, list[int]]:
    """Texts of the messages that are left, a token a character, and the sizes of all prompts made."""
    sizes = []

    def prompt_of(turn: ChatTurn) -> Prompt:
        text = "".join(message["content"] for message in turn.messages)
        sizes.append(len(text))
        return Prompt(tuple(text.encode()))

    found = truncated_prompt(prompt_of, ChatTurn.of(messages), context, tokens)
    return bytes(found.token_ids).decode(), sizes


def test_the_fewest_turns_are_dropped() -> None:
    messages = [SYSTEM, user("aa"), answer("bb"), user("cc"), answer("dd"), user("ee")]
    assert kept(messages, 12, 1) == ("Saabbccddee", [11])
    assert kept(messages, 11, 1)[0] == "Sccddee"
    assert kept(messages, 9)[0] == "Sccddee"  # two are left for the answer
    assert kept(messages, 8, 1)[0] == "Sccddee"
    assert kept(messages, 7, 1)[0] == "See"
    assert kept(messages, 4, 1)[0] == "See"
    assert kept(messages, 2, 1)[0] == "See"  # which is refused
    assert kept([SYSTEM, user("aa")], 2, 1) == ("Saa", [3])


def test_results_stay_with_their_calls() -> None:
    messages = [user("aa"), calls("c"), result("c"), user("bb")]
    assert kept(messages, 6, 1)[0] == "bb"


def test_an_agent_that_runs_long_after_one_message_loses_its_oldest_calls() -> None:
    """Only whole turns of the user were dropped: such a run ended with a 400."""
    run = [message for each in "abcde" for message in (calls(each), result(each))]
    messages = [SYSTEM, user("uu"), *run]
    assert kept(messages, 14, 1)[0] == "SuuaAbBcCdDeE"
    assert kept(messages, 13, 1)[0] == "SuubBcCdDeE"
    assert kept(messages, 8, 1)[0] == "SuudDeE"
    assert kept(messages, 6, 1)[0] == "SuueE"
    assert kept(messages, 3, 1)[0] == "SuueE"  # which is refused


def test_a_turn_of_the_user_loses_calls_before_it_is_dropped() -> None:
    messages = [user("uu"), calls("a"), result("a"), calls("b"), result("b"), user("vv")]
    assert kept(messages, 8, 1)[0] == "uubBvv"
    assert kept(messages, 6, 1)[0] == "vv"


def test_results_that_arrive_late_are_dropped_with_their_calls() -> None:
    """Calls that overlap, an id that is used again, a result before its call."""
    overlap = [calls("a", "b"), result("a"), calls("c"), result("b"), result("c"), calls("d"), result("d")]
    assert kept([user("u"), *overlap], 9, 1)[0] == "udD"
    again = [calls("a"), result("a"), calls("a"), result("a"), calls("a"), result("a")]
    assert kept([user("u"), *again], 6, 1)[0] == "uaAaA"
    early = [
        calls("b"),
        result("b"),
        result("a"),
        calls("c"),
        result("c"),
        calls("a"),
        calls("d"),
        result("d"),
    ]
    assert kept([user("u"), *early], 9, 1)[0] == "udD"


@pytest.mark.parametrize("seed", range(20))
def test_what_is_left_is_whole_and_hardly_more_would_fit(seed: int) -> None:
    rng, messages = random.Random(seed), [SYSTEM]
    names = iter(string.ascii_lowercase)
    while len(messages) < 18:
        match rng.choice(("user", "answer", "call", "calls")):
            case "user":
                messages.append(user("u" * rng.randint(1, 4)))
            case "answer":
                messages.append(answer("t" * rng.randint(1, 4)))
            case kind:
                ids = [next(names) for _ in range(1 if kind == "call" else 2)]
                messages += [calls(*ids), *(result(each) for each in ids)]
    messages.append(user("v"))
    wholes = {text for at in range(len(messages)) if (text := left_by(messages, at))}
    for context in range(4, len(max(wholes, key=len)) + 3):
        text, _ = kept(messages, context, 1)
        assert text in wholes
        fitting = [len(each) for each in wholes if len(each) < context]
        best = max(fitting, default=min(map(len, wholes)))
        assert best - context // 16 <= len(text) <= best


def left_by(messages: list[dict[str, Any]], at: int) -> str:
    """What a cut before a message leaves; "" if that is not a whole conversation."""
    before, after = messages[:at], messages[at:]
    left = [each for each in before if each["role"] == "system"]
    if after[0]["role"] == "assistant":
        left += [each for each in before if each["role"] == "user"][-1:]
    left += after
    called = {call["id"] for each in left for call in each.get("tool_calls", ())}
    whole = called == {each["tool_call_id"] for each in left if each["role"] == "tool"}
    roles = [each["role"] for each in left if each["role"] != "system"]
    begins = roles[0] == "user" or at == 0 or "user" not in [each["role"] for each in before]
    return "".join(each["content"] for each in left) if whole and begins else ""


@pytest.mark.parametrize("turn", [[user("ab")], [calls("a"), result("a")]])
def test_few_short_prompts_are_made(turn: list[dict[str, Any]]) -> None:
    """The whole conversation was rendered first, however long it was."""
    count = 16_384 // len(turn)
    text, sizes = kept([user("q"), *turn * count], 101, 1)
    assert len(text) > 90
    assert len(sizes) <= 8
    assert sum(sizes) < 40 * 101
    text, sizes = kept([user("q"), *turn * count, user("long" * 100)], 101, 1)
    assert text == "long" * 100
    assert len(sizes) <= 30
    assert sum(sizes) < 30 * 900


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


def test_a_long_run_of_an_agent_goes_on_beyond_the_context(small: openai.OpenAI) -> None:
    items: list[Any] = [{"role": "user", "content": "go"}]
    for at in range(60):
        call = {"call_id": f"c{at}", "name": "look", "arguments": '{"at": 1}'}
        items += [{"type": "function_call", **call}]
        items += [{"type": "function_call_output", "call_id": f"c{at}", "output": "found " * 4}]
    response = small.responses.create(model="brief", input=items, truncation="auto")
    assert response.output_text == "ok"
    assert response.usage is not None
    assert 150 < response.usage.input_tokens < 400
    items.append({"type": "function_call", "call_id": "z", "name": "look", "arguments": "{}"})
    items.append({"type": "function_call_output", "call_id": "z", "output": "far too long " * 40})
    with pytest.raises(openai.BadRequestError) as caught:
        small.responses.create(model="brief", input=items, truncation="auto")
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
