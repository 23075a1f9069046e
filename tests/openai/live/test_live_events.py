"""Events of the live page: answers token by token with their sources, and numbers that agree with metrics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc.types import DraftSource
from suffixsvc_driver.speculation.accounting import EVIDENCE
from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.live.answers import KEPT_TOKENS
from suffixsvc_openai.live.feed import KEPT_ANSWERS
from support.live_events import sources_of, text_of, watching
from support.openai_serving import (
    CONTEXT,
    ENDLESS,
    LANES,
    QUEUE,
    access_to,
    client_of,
    cycle_text,
    running,
    send,
    settings_of,
    token_of,
)
from support.serving import eventually


@pytest.fixture
def fresh(cycle: Path) -> Iterator[OpenAIServer]:
    """A server without earlier answers."""
    with running(settings_of(cycle)) as server:
        yield server


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(
        **{"model": "cycle", "prompt": "ab", "max_tokens": 40, "temperature": 0, **fields}
    )


def by_evidence(sources: dict[str, int]) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, count in sources.items():
        kind = EVIDENCE[DraftSource[name]]
        found[kind] = found.get(kind, 0) + count
    return found


def nonzero(counts: dict[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def test_the_first_message_describes_the_server(fresh: OpenAIServer) -> None:
    with watching(fresh) as viewer:
        server = viewer.messages[0]["server"]
    assert (server["model"], server["principal"], server["context"]) == ("cycle", "local", CONTEXT)
    assert (server["lanes"], server["queue"]) == (LANES, QUEUE)


def test_an_answer_is_shown_token_by_token_with_its_sources(fresh: OpenAIServer) -> None:
    with watching(fresh) as viewer, client_of(fresh) as client:
        metrics = complete(client, extra_body={"metadata": {"agent": "planner"}}).metrics[
            "speculative_decoding"
        ]
        viewer.until(lambda reader: reader.ended(1))
    [answer] = viewer.answers.values()
    assert text_of(answer) == cycle_text("b", 40)
    assert len(answer["text"]) == 40  # a piece for each token
    assert answer["text"][0] == [DraftSource.NONE, "c"]
    assert nonzero(metrics["tokens_by_source"]) == by_evidence(sources_of(answer))
    assert set(sources_of(answer)) > {"NONE"}
    assert (answer["namespace"], answer["agent"], answer["prompt"]) == ("default", "planner", "ab")
    end = answer["end"]
    assert (answer["state"], end["reason"], end["tokens"]) == ("length", "length", 40)
    assert (end["drafted"], end["accepted"]) == (
        metrics["num_draft_tokens"],
        metrics["num_accepted_draft_tokens"],
    )
    assert end["sources"] == sources_of(answer)


def test_numbers_agree_with_the_metrics_of_the_answers(fresh: OpenAIServer) -> None:
    with watching(fresh) as viewer, client_of(fresh) as client:
        found = [complete(client, prompt=prompt).metrics["speculative_decoding"] for prompt in ("ab", "cd")]
        viewer.until(lambda reader: reader.numbers.get("completed") == 2)
        viewer.until(lambda reader: sum(row[0] for row in reader.seconds.values()) == 80)
        viewer.until(lambda reader: reader.stored)
    numbers = viewer.numbers
    drafted = sum(metrics["num_draft_tokens"] for metrics in found)
    accepted = sum(metrics["num_accepted_draft_tokens"] for metrics in found)
    assert (numbers["tokens"], numbers["drafted"], numbers["accepted"]) == (80, drafted, accepted)
    positions = numbers["positions"]
    assert [sum(each[i] for each in positions) for i in (0, 1)] == [drafted, accepted]
    assert positions[0][0] == sum(metrics["num_spec_steps"] for metrics in found)
    assert all(low <= high for high, low in positions)
    assert [sum(layer[i] for layer in numbers["layers"].values()) for i in (0, 1)] == [drafted, accepted]
    assert sum(numbers["sources"].values()) == 80
    assert (numbers["running"], numbers["waiting"], numbers["failed"]) == (0, 0, 0)
    used, fits = numbers["kv"]
    # of the newer answer; the older one is in main memory
    assert (fits, 40 < used <= 45) == (LANES * CONTEXT, True)
    assert all(seconds > 0 and plain > 0 for _, seconds, plain in viewer.seconds.values())
    assert viewer.stored is not None
    [[name, outputs, tokens, held]] = viewer.stored
    assert (name, outputs, tokens) == ("default", 2, 80)
    assert held > 0


def test_a_new_viewer_sees_the_last_answers(fresh: OpenAIServer) -> None:
    with client_of(fresh) as client:
        for _ in range(KEPT_ANSWERS + 2):
            complete(client, max_tokens=5)
    eventually(lambda: fresh.service.feed.numbers()[1] == KEPT_ANSWERS + 2, "all have ended")
    with watching(fresh) as viewer:
        viewer.until(lambda reader: reader.ended(KEPT_ANSWERS))
    assert list(viewer.answers) == list(range(3, KEPT_ANSWERS + 3))
    assert {text_of(answer) for answer in viewer.answers.values()} == {cycle_text("b", 5)}
    assert viewer.lost() == 0


def test_text_that_a_stop_string_cuts_is_cut_here_too(fresh: OpenAIServer) -> None:
    with watching(fresh) as viewer, client_of(fresh) as client:
        text = complete(client, stop=["fg"]).choices[0].text
        viewer.until(lambda reader: reader.ended(1))
    [answer] = viewer.answers.values()
    assert text_of(answer) == text == "cde"


def test_a_request_that_forbids_to_store_is_shown_without_its_text(fresh: OpenAIServer) -> None:
    with watching(fresh) as viewer, client_of(fresh) as client:
        complete(client, prompt="abcd", extra_body={"suffixsvc": {"no_store": True}})
        viewer.until(lambda reader: reader.ended(1))
    [answer] = viewer.answers.values()
    assert (answer["has_text"], answer["text"], answer["end"]["tokens"]) == (False, [], 40)
    assert "abc" not in repr(viewer.messages)
    with watching(fresh) as later:
        later.until(lambda reader: reader.ended(1))
    assert "abc" not in repr(later.messages)


def test_the_end_of_a_long_text_is_shown(cycle: Path) -> None:
    with running(settings_of(cycle, context=1 << 15)) as server:
        client = send(server, {**ENDLESS, "stream": True})

        def progress() -> int:
            running, _, _ = server.service.feed.of("local")
            return running[0].tokens if running else 0

        eventually(lambda: progress() > KEPT_TOKENS + 500, "it has written more than is kept")
        with watching(server) as viewer:
            viewer.until(lambda reader: any(answer["text"] for answer in reader.answers.values()))
            [answer] = viewer.answers.values()
            first = len(answer["text"])
            assert answer["state"] == "writing"
            client.close()  # cancels it
            viewer.until(lambda reader: reader.ended(1))
    assert first == KEPT_TOKENS
    assert answer["skipped"] >= 500
    assert answer["end"]["reason"] == "cancelled"
    assert answer["skipped"] + len(answer["text"]) == answer["end"]["tokens"]


def test_principals_see_their_own_requests_and_an_administrator_the_numbers_of_all(
    cycle: Path, tmp_path: Path
) -> None:
    tokens = token_of("alice"), token_of("bob"), token_of("ops")
    access = access_to(tmp_path, *tokens, admins=["ops"])
    with running(settings_of(cycle, access=access)) as server:
        with client_of(server, tokens[0]) as client:
            names = {"namespace": "secret", "agent": "spy"}
            complete(client, prompt="hgfedcba", user="alice's", extra_body={"metadata": names})
        with client_of(server, tokens[1]) as client:
            complete(client, max_tokens=6, extra_body={"metadata": {"namespace": "open"}})
        eventually(lambda: server.service.feed.numbers()[1] == 2, "both have ended")
        seen = {}
        for token in tokens[:2]:
            with watching(server, token) as viewer:
                seen[token] = viewer.until(lambda reader: reader.ended(1) and reader.stored)
        with watching(server, tokens[2]) as viewer:
            ops = viewer.until(lambda reader: reader.numbers)
    alice, bob = seen.values()
    assert [answer["namespace"] for answer in alice.answers.values()] == ["secret"]
    assert [answer["namespace"] for answer in bob.answers.values()] == ["open"]
    assert [row[:2] for row in bob.stored or ()] == [["open", 1]]
    for hidden in ("secret", "spy", "hgfe", "alice", cycle_text("a", 10)):
        assert hidden not in repr(bob.messages)
    assert not any("numbers" in message for message in (*alice.messages, *bob.messages))
    assert (ops.answers, ops.numbers["tokens"]) == ({}, 46)


def test_a_long_text_that_no_viewer_saw_is_cut_at_its_beginning(cycle: Path) -> None:
    tokens = KEPT_TOKENS + 100
    with running(settings_of(cycle, context=1 << 13)) as server:
        with client_of(server) as client:
            complete(client, max_tokens=tokens)
        eventually(lambda: server.service.feed.numbers()[1] == 1, "it has ended")
        with watching(server) as viewer:
            viewer.until(lambda reader: reader.ended(1))
    [answer] = viewer.answers.values()
    assert text_of(answer) == cycle_text("b", tokens)[-KEPT_TOKENS:]
    assert answer["skipped"] == 100
