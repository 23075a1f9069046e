"""Shares of principals and of their namespaces: places in the queue, namespaces; calls with many answers."""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from suffixsvc import SuffixCache
from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.engine.memory import Memory, MemorySession, NotStored
from suffixsvc_openai.engine.plans import Caller
from support.openai_serving import (
    ENDLESS,
    LANES,
    QUEUE,
    access_to,
    idle,
    namespaces,
    running,
    send,
    settings_of,
    token_of,
)
from support.serving import PATIENCE_S, eventually

TOKENS = token_of("alice"), token_of("bob")
ALICE, BOB = ({"Authorization": f"Bearer {token}"} for token in TOKENS)


def ask(server: OpenAIServer, headers: dict[str, str] | None = None, **fields: Any) -> httpx.Response:
    body = {"model": "cycle", "prompt": "ab", "max_tokens": 30_000, "temperature": 0, **fields}
    address = f"http://{server.address}/v1/completions"
    return httpx.post(address, json=body, headers=headers, timeout=PATIENCE_S)


def occupy(server: OpenAIServer, lanes: int, headers: dict[str, str] | None = None) -> list[socket.socket]:
    """Run endless answers on lanes."""
    found = [send(server, {**ENDLESS, "stream": True}, headers) for _ in range(lanes)]
    eventually(lambda: server.service.engine.load == (lanes, 0), "they are on lanes")
    return found


def test_a_call_that_can_never_fit_is_no_429(cycle: Path) -> None:
    """It was, on an idle server, each time it was sent again."""
    most = LANES + QUEUE // 2
    with running(settings_of(cycle)) as server:
        found = ask(server, n=most + 1)
        assert found.status_code == 400, found.text
        assert found.json()["error"]["param"] == "n"
        assert f"at most {most} answers" in found.json()["error"]["message"]
        assert ask(server, n=2, prompt=["ab"] * most).json()["error"]["param"] == "n"
        answer = ask(server, n=most, max_tokens=3)
        assert len(answer.json()["choices"]) == most, answer.text
        idle(server)


def test_nothing_of_a_refused_call_is_generated(
    cycle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its first answer got the free lane, and was stored as an incomplete output."""
    data = tmp_path / "data"
    with running(settings_of(cycle, data=data, context=1 << 14)) as server:
        engine = server.service.engine
        clients = occupy(server, LANES - 1)
        opened, ran = engine._memory.open, []

        def slow(caller: Caller, prompt_ids: Sequence[int]) -> MemorySession | NotStored:
            if caller.name == "refused":
                time.sleep(0.1)  # in which an answer that was submitted before would run
                ran.append(engine.load)
            return opened(caller, prompt_ids)

        monkeypatch.setattr(engine._memory, "open", slow)
        found = ask(server, n=LANES + QUEUE // 2, suffixsvc={"namespace": "refused"})
        assert (found.status_code, "Retry-After" in found.headers) == (429, True), found.text
        assert set(ran) == {(LANES - 1, 0)}
        for each in clients:
            each.close()
        idle(server)
    assert [path.split("/")[1] for path in namespaces(data)] == ["default"]


def test_a_principal_does_not_fill_the_queue_under_new_names(cycle: Path, tmp_path: Path) -> None:
    """Each name had a right to a place: one client took all of them."""
    access = access_to(tmp_path, *TOKENS)
    with running(settings_of(cycle, access=access, context=1 << 14)) as server:
        clients = occupy(server, LANES, ALICE)

        def queue_up(headers: dict[str, str], count: int) -> None:
            for k in range(count):
                waiting = server.service.engine.load.waiting
                named = {**ENDLESS, "stream": True, "suffixsvc": {"namespace": f"n{k}"}}
                clients.append(send(server, named, headers))
                eventually(lambda before=waiting: server.service.engine.load.waiting > before, "it waits")

        queue_up(ALICE, QUEUE // 2)
        refused = ask(server, ALICE, suffixsvc={"namespace": "new"})
        assert refused.status_code == 429
        assert "'alice/new' fills its part of the queue" in refused.text
        queue_up(BOB, QUEUE // 4)
        for each in clients:
            each.close()
        idle(server)


def test_a_principal_does_not_take_all_namespaces() -> None:
    """Ten thousand names of one principal left none to the others. An answer without one is not stored."""
    with Memory(SuffixCache(), "model", "tokenizer", most_namespaces=lambda: 2) as memory:

        def opened(principal: str, name: str) -> MemorySession | NotStored:
            session = memory.open(Caller(principal, name), [1, 2, 3])
            if not isinstance(session, NotStored):
                assert memory.end(session, [4, 5], 3, store=True, incomplete=False) is None
            return session

        assert not isinstance(opened("alice", "first"), NotStored)
        assert not isinstance(opened("alice", "second"), NotStored)
        assert opened("alice", "third") is NotStored.LIMIT
        assert not isinstance(opened("alice", "first"), NotStored), "a known one"
        assert not isinstance(opened("al", "third"), NotStored), "of another principal"
        assert [each.name for each in memory.stored("alice")] == ["first", "second"]
