"""What a request takes from the store is bounded, as its body is, and not kept while it is answered."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc_openai.app.http.body_memory import BodyMemory
from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.chat.turn import ChatTurn
from suffixsvc_openai.responses.stored import StoredItems, StoredResponse
from support.openai_serving import client_of, running, settings_of

SIZE = 1 << 20


@pytest.fixture(scope="module")
def served(brief: Path) -> Iterator[tuple[OpenAIServer, openai.OpenAI]]:
    with running(settings_of(brief)) as server, client_of(server) as client:
        yield server, client


def keep(server: OpenAIServer, name: str, items: list[dict[str, Any]]) -> None:
    inputs = [{"type": "message", "id": f"in_{name}_{i}", **item} for i, item in enumerate(items)]
    response: dict[str, Any] = {"id": f"resp_{name}", "previous_response_id": None, "output": []}
    server.service.responses.add("local", StoredResponse.of(response, StoredItems.of(inputs)))


def asking(name: str, way: str) -> dict[str, Any]:
    """A short request that takes an item from the store."""
    if way == "previous":
        return {"model": "brief", "input": "hi", "truncation": "auto", "previous_response_id": f"resp_{name}"}
    message = {"role": "user", "content": "hi"}
    items = [{"type": "item_reference", "id": f"in_{name}_0"}, message]
    return {"model": "brief", "input": items, "truncation": "auto"}


@pytest.mark.parametrize("way", ["previous", "reference"])
def test_history_counts_as_a_body_does(
    served: tuple[OpenAIServer, openai.OpenAI], monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    server, client = served
    keep(server, "long", [{"role": "user", "content": "a" * SIZE}])
    memory = BodyMemory(4 * SIZE)
    monkeypatch.setattr(server.service, "bodies", memory)
    held: list[int] = []
    prompt = server.service.chat.prompt

    def watched(turn: ChatTurn) -> Any:
        held.append(memory.held)
        return prompt(turn)

    monkeypatch.setattr(server.service.chat, "prompt", watched)
    assert client.responses.create(**asking("long", way)).output_text == "ok"
    assert min(held) > SIZE
    assert memory.held == 0
    monkeypatch.setattr(server.service, "bodies", BodyMemory(SIZE))
    with pytest.raises(openai.InternalServerError) as caught:
        client.responses.create(**asking("long", way))
    assert (caught.value.status_code, caught.value.code) == (503, "server_overloaded")
    assert server.service.bodies.held == 0


def test_history_and_input_have_a_number_of_items_together(
    served: tuple[OpenAIServer, openai.OpenAI], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, client = served
    monkeypatch.setattr("suffixsvc_openai.app.responses.conversation.MAX_MESSAGES", 3)
    for name, count in (("few", 2), ("many", 3)):
        keep(server, name, [{"role": "user", "content": "a"}] * count)
    assert client.responses.create(**asking("few", "previous")).output_text == "ok"
    with pytest.raises(openai.BadRequestError) as caught:
        client.responses.create(**asking("many", "previous"))
    assert caught.value.param == "input"
    assert "at most 3 items" in str(caught.value)


def test_an_answer_does_not_keep_the_conversation(client: openai.OpenAI) -> None:
    """The cycle answers until the stream is closed."""
    with client.responses.create(model="cycle", input="an ended turn a", stream=True) as events:
        deltas = (event for event in events if event.type == "response.output_text.delta")
        next(deltas)
        gc.collect()
        turns = [each for each in gc.get_objects() if isinstance(each, ChatTurn)]
        assert not [each for each in turns if "an ended turn" in str(each.messages)]
