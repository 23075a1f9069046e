"""Repeated requests: clients send a request again, and one output of it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc import SuffixCache
from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.engine import attempts
from suffixsvc_openai.engine.attempts import RecentRequests
from support.openai_serving import ENDLESS, NO_DRAFTS, client_of, idle, running, send, settings_of
from support.serving import ServeProcess, socket_dir
from support.stored import stored_outputs

PROMPT: dict[str, Any] = {"model": "cycle", "prompt": "ab", "max_tokens": 12, "temperature": 0}
RETRY = {"X-Stainless-Retry-Count": "1"}


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def outputs(data: Path) -> list[tuple[int, bool]]:
    """Tokens of every stored output, and whether it is incomplete."""
    found = []
    with SuffixCache(data, background=False) as cache:
        for path in [record.path for record in cache.namespaces()]:
            stored = stored_outputs(cache, path)
            found += [(len(each.output.token_ids), each.output.incomplete) for each in stored]
    return sorted(found)


def complete(server: OpenAIServer, *, again: bool = False, **fields: Any) -> Any:
    with client_of(server) as client:
        return client.completions.create(**{**PROMPT, **fields}, extra_headers=RETRY if again else {})


def broken_off(server: OpenAIServer, *, again: bool = False, **fields: Any) -> None:
    """A request whose client disconnects after the first tokens."""
    body = {**ENDLESS, **NO_DRAFTS, "stream": True, **fields}
    client = send(server, body, RETRY if again else None)
    client.recv(1)
    client.close()
    idle(server)


def test_a_repetition_after_a_complete_answer_is_not_stored(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data)) as server:
        texts = {complete(server, again=again).choices[0].text for again in (False, True, True)}
        idle(server)
    assert len(texts) == 1
    assert outputs(data) == [(12, False)]


def test_requests_that_are_no_repetitions_are_all_stored(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data)) as server:
        for _ in range(2):
            complete(server)
        with client_of(server) as client:
            client.completions.create(**PROMPT, extra_headers={"X-Stainless-Retry-Count": "0"})
        complete(server, again=True, prompt="bc")  # the first one was lost on its way
        complete(server, again=True, extra_body={"suffixsvc": {"namespace": "other"}})
    assert outputs(data) == [(12, False)] * 5


def test_every_choice_is_stored_once(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data)) as server:
        for again in (False, True):
            complete(server, again=again, n=2)
    assert outputs(data) == [(12, False)] * 2


def test_a_complete_answer_replaces_the_one_that_was_broken_off(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data, context=1 << 14)) as server:
        broken_off(server)
        complete(server, again=True)
        idle(server)
    assert outputs(data) == [(12, False)]


def test_of_two_that_were_broken_off_the_longer_one_stays(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data, context=1 << 14)) as server:
        broken_off(server)
        broken_off(server, again=True)
    [(_, incomplete)] = outputs(data)
    assert incomplete


def test_a_broken_off_repetition_does_not_replace_a_complete_answer(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data, context=1 << 14)) as server:
        complete(server)
        broken_off(server, again=True)
    assert outputs(data) == [(12, False)]


def test_the_first_one_may_still_be_running(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data, context=1 << 14)) as server:
        first = send(server, {**ENDLESS, **NO_DRAFTS, "stream": True})
        first.recv(1)
        complete(server, again=True)
        first.close()
        idle(server)
    assert outputs(data) == [(12, False)]


def test_the_clients_own_repetition(cycle: Path, data: Path) -> None:
    """OpenAI's client sends the request again after its timeout. (On a busy machine none may have begun.)"""
    with running(settings_of(cycle, data=data, context=1 << 14)) as server:
        client = client_of(server).with_options(max_retries=1, timeout=2.0)
        body: dict[str, Any] = {**ENDLESS, "extra_body": NO_DRAFTS}
        with pytest.raises(openai.APITimeoutError):
            client.completions.create(**body)
        client.close()
        idle(server)
    assert [incomplete for _, incomplete in outputs(data)] in ([True], [])


@pytest.fixture
def service() -> Iterator[ServeProcess]:
    with socket_dir() as folder, ServeProcess(folder) as process:
        yield process.start()


def test_outputs_of_a_service_are_replaced_too(cycle: Path, service: ServeProcess, data: Path) -> None:
    with running(settings_of(cycle, service=service.address, context=1 << 14)) as server:
        broken_off(server)
        complete(server, again=True)
        idle(server)
        [stored] = asyncio.run(server.service.engine.stored("local"))
        assert (stored.outputs, stored.tokens) == (1, 12)


def test_the_memory_of_requests_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempts, "MAX_REQUESTS", 2)
    recent = RecentRequests()
    first, second = (recent.attempts("p/n/m", [token], 0, repeated=False) for token in (1, 2))
    assert recent.attempts("p/n/m", [1], 0, repeated=True) is first
    assert recent.attempts("p/n/m", [1], 1, repeated=True) is not first
    assert recent.attempts("p/n/m", [2], 0, repeated=True) is not second  # the third one has displaced it
