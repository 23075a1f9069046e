"""Endpoints of stored responses, and that no other principal finds them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import access_to, client_of, running, settings_of, token_of

ALICE, BOB = token_of("alice"), token_of("bob")


@pytest.fixture(scope="module")
def keyed(brief: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIServer]:
    """A server of two principals."""
    with running(settings_of(brief, access=access_to(tmp_path_factory.mktemp("keys"), ALICE, BOB))) as server:
        yield server


def ask(client: openai.OpenAI, text: str = "hi", **fields: Any) -> Any:
    return client.responses.create(**{"model": "brief", "input": text, **fields})


def test_a_response_is_retrieved_and_deleted(brief_client: openai.OpenAI) -> None:
    response = ask(brief_client)
    found = brief_client.responses.retrieve(response.id)
    assert found.to_dict() == response.to_dict()
    deleted = brief_client.responses.with_raw_response.delete(response.id)
    assert deleted.http_response.json() == {"id": response.id, "object": "response", "deleted": True}
    for call in (brief_client.responses.retrieve, brief_client.responses.delete):
        with pytest.raises(openai.NotFoundError) as caught:
            call(response.id)
        assert caught.value.body == {
            "message": f"Response with id '{response.id}' not found.",
            "type": "invalid_request_error",
            "param": None,
            "code": None,
        }
    with pytest.raises(openai.NotFoundError):
        brief_client.responses.input_items.list(response.id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(brief_client, previous_response_id=response.id)
    assert refused.value.code == "previous_response_not_found"


def test_a_response_that_is_not_to_be_stored_is_not_found(brief_client: openai.OpenAI) -> None:
    response = ask(brief_client, store=False)
    assert response.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        brief_client.responses.retrieve(response.id)
    with pytest.raises(openai.BadRequestError):
        ask(brief_client, previous_response_id=response.id)
    with pytest.raises(openai.NotFoundError):
        ask(brief_client, input=[{"type": "item_reference", "id": response.output[0].id}])


def test_instructions_are_of_one_response_only(brief_client: openai.OpenAI) -> None:
    first = ask(brief_client, instructions="You are very kind.")
    second = ask(brief_client, "again", previous_response_id=first.id)
    plain = ask(brief_client)
    assert second.instructions is None
    whole = ask(brief_client, "again", previous_response_id=plain.id)
    assert second.usage.input_tokens == whole.usage.input_tokens
    assert first.usage.input_tokens > plain.usage.input_tokens


def test_input_items_are_listed_in_pages(brief_client: openai.OpenAI) -> None:
    items: list[Any] = [
        {"role": "user" if at % 2 else "assistant", "content": f"text {at}"} for at in range(25)
    ]
    response = ask(brief_client, input=items)
    newest = brief_client.responses.input_items.list(response.id)
    assert len(newest.data) == 20
    assert newest.has_more
    pages: Any = brief_client.responses.input_items.list(response.id, limit=7)
    texts = [item.content[0].text for item in pages]
    assert texts == [f"text {at}" for at in reversed(range(25))]
    first: Any = brief_client.responses.input_items.list(response.id, order="asc", limit=2)
    assert [item.content[0].text for item in first.data] == ["text 0", "text 1"]
    second = ask(brief_client, "more", previous_response_id=response.id)
    assert [item.type for item in brief_client.responses.input_items.list(second.id).data] == ["message"]
    for wrong in ({"limit": 0}, {"limit": 101}, {"order": "up"}, {"after": "msg_x"}):
        with pytest.raises(openai.BadRequestError) as caught:
            brief_client.responses.input_items.list(response.id, extra_query=wrong)
        assert caught.value.param == next(iter(wrong))


def test_long_input_items_are_read_in_a_thread(keyed: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop, and so all other answers, once waited for them."""
    loads, in_loop = json.loads, []

    def watched(text: Any, **fields: Any) -> Any:
        if isinstance(text, bytes) and len(text) > 1 << 17:
            in_loop.append(asyncio._get_running_loop() is not None)
        return loads(text, **fields)

    monkeypatch.setattr("suffixsvc_openai.responses.stored.json.loads", watched)
    text = "a" * (1 << 18)
    with client_of(keyed, ALICE) as alice:
        response = ask(
            alice, [{"role": "user", "content": text}, {"role": "user", "content": "hi"}], truncation="auto"
        )
        items: Any = alice.responses.input_items.list(response.id, order="asc").data
    assert items[0].content[0].text == text
    assert in_loop
    assert not any(in_loop)


def test_a_stored_response_is_not_streamed(brief_client: openai.OpenAI) -> None:
    response = ask(brief_client)
    with pytest.raises(openai.BadRequestError) as caught:
        brief_client.responses.retrieve(response.id, stream=True)
    assert caught.value.param == "stream"


def test_no_other_principal_finds_a_response(keyed: OpenAIServer) -> None:
    with client_of(keyed, ALICE) as alice, client_of(keyed, BOB) as bob:
        secret = ask(alice, "the code is 7")
        with pytest.raises(openai.NotFoundError) as missing:
            bob.responses.retrieve(secret.id)
        with pytest.raises(openai.NotFoundError) as unknown:
            bob.responses.retrieve("resp_" + "0" * 48)
        assert str(missing.value).replace(secret.id, "") == str(unknown.value).replace("resp_" + "0" * 48, "")
        with pytest.raises(openai.NotFoundError):
            bob.responses.delete(secret.id)
        with pytest.raises(openai.NotFoundError):
            bob.responses.input_items.list(secret.id)
        with pytest.raises(openai.BadRequestError):
            ask(bob, previous_response_id=secret.id)
        with pytest.raises(openai.NotFoundError):
            ask(bob, input=[{"type": "item_reference", "id": secret.output[0].id}])
        assert alice.responses.retrieve(secret.id).id == secret.id


def test_a_key_is_needed(keyed: OpenAIServer) -> None:
    with client_of(keyed, token_of("stranger")) as stranger:
        for call in (
            stranger.responses.retrieve,
            stranger.responses.delete,
            stranger.responses.input_items.list,
        ):
            with pytest.raises(openai.AuthenticationError):
                call("resp_x")
        with pytest.raises(openai.AuthenticationError):
            ask(stranger)


def test_no_store_applies_to_responses_that_do_not_ask_to_be_stored(brief_client: openai.OpenAI) -> None:
    extra = {"suffixsvc": {"no_store": True}}
    response = ask(brief_client, extra_body=extra)
    assert response.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        brief_client.responses.retrieve(response.id)
    asked_for = ask(brief_client, store=True, extra_body=extra)
    assert asked_for.to_dict()["store"] is True
    assert brief_client.responses.retrieve(asked_for.id).id == asked_for.id
