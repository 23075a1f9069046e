"""Stored outputs of answers, by namespace, principal and label; later answers draft from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import openai
from suffixsvc import SuffixCache
from suffixsvc_driver.targets.llama.model import file_digest
from support.openai_serving import (
    ENDLESS,
    NO_DRAFTS,
    access_to,
    client_of,
    idle,
    namespaces,
    running,
    send,
    settings_of,
    token_of,
)
from support.serving import ServeProcess, eventually, socket_dir
from support.stored import stored_outputs


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    body = {"model": "cycle", "messages": [{"role": "user", "content": "x"}], "max_tokens": 12}
    return client.chat.completions.create(**{**body, "temperature": 0, **fields})  # type: ignore[call-overload]


def test_outputs_are_stored_by_the_name_that_the_client_gives(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data)) as server, client_of(server) as client:
        chat(client)
        chat(client, extra_body={"suffixsvc": {"namespace": "team/sql"}})
        chat(client, extra_headers={"X-Suffixsvc-Namespace": "header"})
        chat(client, metadata={"namespace": "meta"})
        chat(client, extra_body={"suffixsvc": {"no_store": True, "namespace": "nothing"}})
        chat(client, user="u1", extra_body={"suffixsvc": {"speculation": False, "namespace": "plain"}})
    model = file_digest(cycle)
    names = ["default", "team/sql", "header", "meta", "plain"]
    assert namespaces(data) == {f"local/{name}/{model}": 1 for name in names}


def test_labels_name_the_agent_and_the_conversation(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data)) as server, client_of(server) as client:
        chat(client, user="u1", metadata={"agent": "planner"}, prompt_cache_key="c1")
        system = {"role": "system", "content": "You are a planner."}
        first = [system, {"role": "user", "content": "1"}]
        answer = {"role": "assistant", "content": "one"}
        for messages in (first, [*first, answer, {"role": "user", "content": "2"}], [system, answer]):
            chat(client, messages=messages)
    with SuffixCache(data, background=False) as cache:
        [path] = [record.path for record in cache.namespaces()]
        stored = [output.output.labels for output in stored_outputs(cache, path)]
    [named] = [each for each in stored if each["agent"] == "planner"]
    assert named.items() >= {"principal": "local", "user": "u1", "prompt_cache_key": "c1"}.items()
    others = [each for each in stored if each is not named]
    assert len({each["agent"] for each in others}) == 1
    assert others[0]["agent"].startswith("agent-")
    turns = [each["conversation"] for each in others]
    assert sorted(map(turns.count, turns)) == [1, 2, 2], "the second request continues the first"
    assert all(each.startswith("conversation-") for each in turns)


def suffix_tokens(answer: Any) -> int:
    """How many tokens were drafted from outputs; more than none depends on the measured cost of a step."""
    found: int = answer.metrics["speculative_decoding"]["tokens_by_source"]["suffix"]
    return found


def sampled(client: openai.OpenAI, **fields: Any) -> Any:
    """An answer with tokens in an order that no prompt has, the same each time."""
    bias = {str(token): 60 for token in range(97, 123)}
    return client.completions.create(
        model="cycle", prompt="ab", max_tokens=60, temperature=2, seed=5, logit_bias=bias, **fields
    )


def test_a_second_answer_is_drafted_from_the_first(cycle: Path) -> None:
    with running(settings_of(cycle)) as server, client_of(server) as client:
        first, second = sampled(client), sampled(client)
        idle(server)  # what is not stored yet makes other drafts
        other = sampled(client, extra_body={"suffixsvc": {"namespace": "other"}})
        reading = sampled(client, extra_body={"suffixsvc": {"namespace": "third", "reads": ["default"]}})
        without = sampled(client, extra_body={"suffixsvc": {"speculation": False}})
    texts = {answer.choices[0].text for answer in (first, second, other, reading, without)}
    assert len(texts) == 1
    assert suffix_tokens(first) == 0
    assert suffix_tokens(second) > 0
    assert suffix_tokens(other) == 0
    assert suffix_tokens(reading) > 0
    speculative = without.metrics["speculative_decoding"]
    assert speculative["num_draft_tokens"] == 0
    assert speculative["tokens_by_source"]["target"] == 60


def test_metrics_of_an_answer_agree_with_each_other(cycle: Path) -> None:
    with running(settings_of(cycle)) as server, client_of(server) as client:
        sampled(client)
        found = sampled(client).metrics["speculative_decoding"]
        text = httpx.get(f"http://{server.address}/metrics").text
    histogram = found["acceptance_histogram"]
    accepted = sum(length * count for length, count in enumerate(histogram))
    assert found["num_spec_steps"] == sum(histogram) > 0
    assert found["num_accepted_draft_tokens"] == accepted > 0
    assert found["mean_acceptance_length"] == pytest.approx(1 + accepted / sum(histogram))
    assert found["draft_acceptance_rate"] == pytest.approx(accepted / found["num_draft_tokens"])
    assert sum(found["tokens_by_source"].values()) == 60
    for name in (
        "spec_decode_num_drafts_total",
        "spec_decode_num_draft_tokens_total",
        "spec_decode_num_accepted_tokens_total",
        'spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="cycle",position="0"}',
        "num_requests_running",
        'request_success_total{engine="0",finished_reason="length",model_name="cycle"}',
    ):
        assert f"suffixsvc:{name}" in text, name


def test_principals_do_not_share(cycle: Path, tmp_path: Path) -> None:
    first, bob, second = token_of("alice"), token_of("bob"), token_of("alice", 1)
    access = access_to(tmp_path, first, bob, second)
    with running(settings_of(cycle, access=access)) as server:
        answers = {}
        for key in (first, bob, second):
            with client_of(server, key) as client:
                answers[key] = sampled(client)
            idle(server)
        assert suffix_tokens(answers[first]) == 0
        assert suffix_tokens(answers[bob]) == 0
        assert suffix_tokens(answers[second]) > 0


def test_a_cancelled_answer_is_stored_as_incomplete(cycle: Path, data: Path) -> None:
    with running(settings_of(cycle, data=data, context=1 << 14)) as server:
        client = send(server, {**ENDLESS, **NO_DRAFTS, "stream": True})
        client.recv(1)
        client.close()
        idle(server)
    [(path, outputs)] = namespaces(data).items()
    assert outputs == 1
    with SuffixCache(data, background=False) as cache:
        [stored] = stored_outputs(cache, path)
    assert stored.output.incomplete


@pytest.fixture
def service() -> Iterator[ServeProcess]:
    with socket_dir() as folder, ServeProcess(folder) as process:
        yield process.start()


def test_a_service_stores_outputs_of_several_servers(cycle: Path, service: ServeProcess) -> None:
    settings = settings_of(cycle, service=service.address)
    with running(settings) as server, client_of(server) as client:
        assert suffix_tokens(sampled(client)) == 0
    with running(settings) as server, client_of(server) as client:
        # no draft of one answer may be in time; what is not stored is no source of the next one
        private = {"suffixsvc": {"no_store": True}}
        eventually(lambda: suffix_tokens(sampled(client, extra_body=private)) > 0, "a draft is in time")


def test_answers_survive_the_death_of_the_service(cycle: Path, service: ServeProcess) -> None:
    with running(settings_of(cycle, service=service.address)) as server, client_of(server) as client:
        first = sampled(client).choices[0].text
        service.kill()
        assert sampled(client).choices[0].text == first
        idle(server)


def test_a_namespace_that_does_not_exist_yet_can_be_read(cycle: Path) -> None:
    """Agents that read each other's outputs begin before there are any."""
    with running(settings_of(cycle)) as server, client_of(server) as client:
        other = {"suffixsvc": {"namespace": "third", "reads": ["second", "default"]}}
        alone = sampled(client, extra_body=other)
        sampled(client, extra_body={"suffixsvc": {"namespace": "default"}})
        idle(server)
        reading = sampled(
            client, extra_body={"suffixsvc": {"namespace": "fourth", "reads": ["second", "default"]}}
        )
    assert suffix_tokens(alone) == 0
    assert suffix_tokens(reading) > 0


@pytest.mark.parametrize("part", ["metrics", "live page", "layers"])
def test_an_answer_is_stored_whatever_else_its_end_meets(
    cycle: Path, data: Path, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """An error of metrics or live page left the session open, and the output was lost."""

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with running(settings_of(cycle, data=data)) as server, client_of(server) as client:
        engine = server.service.engine
        match part:
            case "metrics":
                monkeypatch.setattr(engine, "_on_end", fail)
            case "live page":
                monkeypatch.setattr(engine._observer, "ended", fail)
            case _:
                monkeypatch.setattr("suffixsvc_openai.engine.engine.close_layers", fail)
        assert chat(client).choices[0].message.content
        idle(server)
    assert list(namespaces(data).values()) == [1]
