"""Prompts that continue or share a text compute only its new tokens, over real sockets."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import LANES, access_to, client_of, idle, running, settings_of, token_of

TURNS = 20
#: what may be computed, relative to the new tokens of the prompts
BOUND = 1.05


class Conversation:
    """A chat whose turns are sent one after another.

    Attributes:
        new, computed: prompt tokens that no earlier turn had, and those that were computed.
    """

    def __init__(self, client: openai.OpenAI, name: str) -> None:
        self._client, self._name = client, name
        self._messages: list[Any] = [{"role": "system", "content": f"You are {name}, an agent of few words."}]
        self._known = 0
        self.new = self.computed = 0

    def turn(self, number: int) -> None:
        """Send the next message; the model says "ok"."""
        text = f"{self._name} asks question {number} of a long and winding conversation"
        self._messages.append({"role": "user", "content": text})
        answer = self._client.chat.completions.create(model="brief", messages=self._messages, temperature=0)
        assert answer.choices[0].message.content == "ok"
        self._messages.append({"role": "assistant", "content": "ok"})
        usage = answer.usage
        assert usage is not None
        assert usage.prompt_tokens_details is not None
        cached = usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        self.new += usage.prompt_tokens - self._known
        self.computed += usage.prompt_tokens - cached
        self._known = usage.prompt_tokens + usage.completion_tokens


@pytest.fixture
def server(brief: Path) -> Any:
    with running(settings_of(brief, context=8192)) as server:
        yield server


def test_a_conversation_among_other_clients(server: OpenAIServer) -> None:
    """Others use all lanes between its turns."""
    with client_of(server) as client:
        conversation = Conversation(client, "anna")
        for number in range(TURNS):
            conversation.turn(number)
            for other in range(2 * LANES):
                client.chat.completions.create(
                    model="brief", messages=[{"role": "user", "content": f"{number}.{other} is on its own"}]
                )
        assert conversation.new <= conversation.computed <= BOUND * conversation.new
    idle(server)


def test_four_conversations_on_two_lanes(server: OpenAIServer) -> None:
    with client_of(server) as client:
        conversations = [Conversation(client, name) for name in ("anna", "bela", "carl", "dana")]
        for number in range(TURNS):
            threads = [threading.Thread(target=each.turn, args=(number,)) for each in conversations]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert all(each.new > 1000 for each in conversations)
    computed, new = sum(each.computed for each in conversations), sum(each.new for each in conversations)
    assert computed <= BOUND * new


def test_agents_share_their_system_prompt(server: OpenAIServer) -> None:
    system = {"role": "system", "content": "You are one of many agents with the same instructions. " * 20}
    with client_of(server) as client:
        cached = []
        for number in range(6):
            question: Any = {"role": "user", "content": f"{number} " * 100}
            answer: Any = client.chat.completions.create(model="brief", messages=[system, question])  # type: ignore[list-item]
            cached.append(answer.usage.prompt_tokens_details.cached_tokens)
    assert cached[0] == 0
    assert min(cached[1:]) >= len(system["content"])


def test_principals_share_no_kv(brief: Path, tmp_path: Path) -> None:
    first, bob, second = token_of("alice"), token_of("bob"), token_of("alice", 1)
    access = access_to(tmp_path, first, bob, second)
    text = "the same prompt, word for word"
    with running(settings_of(brief, access=access)) as server:
        cached = {}
        for key in (first, bob, second):
            with client_of(server, key) as client:
                answer: Any = client.completions.create(model="brief", prompt=text, max_tokens=2)
                cached[key] = answer.usage.prompt_tokens_details.cached_tokens
    assert cached == {first: 0, bob: 0, second: len(text) - 1}
