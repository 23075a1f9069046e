"""Requests between their last byte and the queue: memory and number stay bounded while a template is slow."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from suffixsvc_openai.app.http.body_memory import BodyMemory
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import LANES, QUEUE, access_to, idle, running, settings_of, token_of
from support.serving import PATIENCE_S, eventually

ALICE, BOB = token_of("alice"), token_of("bob")
LIMIT = 8 << 20
SIZE = 1 << 20
#: of this size as many as one principal may have: they take half of the memory for long bodies at most
FIT = (LIMIT - LIMIT // 8) // 2 // (SIZE + 1000)
THREADS = 4


@pytest.fixture
def keyed(brief: Path, tmp_path: Path) -> Iterator[OpenAIServer]:
    with running(settings_of(brief, access=access_to(tmp_path, ALICE, BOB))) as server:
        yield server


class SlowTemplate:
    """A chat template that renders nothing until it is released."""

    def __init__(self, server: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rendering: list[str] = []
        self._permits = threading.Semaphore(0)
        render = server.service.chat.prompt

        def prompt(turn: Any) -> Any:
            self.rendering.append(turn.messages[-1]["content"])
            assert self._permits.acquire(timeout=PATIENCE_S)
            return render(turn)

        monkeypatch.setattr(server.service.chat, "prompt", prompt)

    def release(self, prompts: int = 1000) -> None:
        self._permits.release(prompts)


@pytest.fixture
def template(keyed: OpenAIServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[SlowTemplate]:
    found = SlowTemplate(keyed, monkeypatch)
    yield found
    found.release()  # also after a failure, or the server would not end


def chat(server: OpenAIServer, text: str, key: str = ALICE) -> socket.socket:
    """Send a chat and leave its answer unread."""
    body = json.dumps({"model": "brief", "messages": [{"role": "user", "content": text}]}).encode()
    host, _, port = server.address.rpartition(":")
    found = socket.create_connection((host, int(port)), PATIENCE_S)
    head = f"Host: {server.address}\r\nAuthorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n"
    found.sendall(f"POST /v1/chat/completions HTTP/1.1\r\n{head}\r\n".encode() + body)
    return found


def answer(sent: socket.socket) -> tuple[int, dict[str, str], dict[str, Any]]:
    data = b""
    while b"\r\n\r\n" not in data:
        data += sent.recv(1 << 16) or pytest.fail("the server closed the connection")
    head, _, body = data.partition(b"\r\n\r\n")
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    while len(body) < int(headers["content-length"]):
        body += sent.recv(1 << 16) or pytest.fail("the server closed the connection")
    sent.close()
    return int(status.split()[1]), headers, json.loads(body)


def complete(server: OpenAIServer, key: str) -> int:
    body = {"model": "brief", "prompt": "\n", "max_tokens": 2}
    headers = {"Authorization": f"Bearer {key}"}
    url = f"http://{server.address}/v1/completions"
    return httpx.post(url, json=body, headers=headers, timeout=PATIENCE_S).status_code


def test_a_body_counts_until_its_request_is_admitted_or_refused(
    keyed: OpenAIServer, template: SlowTemplate
) -> None:
    """500 clients with 16 MiB each did not fill 256 MiB: each body was given back before its rendering."""
    memory = keyed.service.bodies = BodyMemory(LIMIT)
    with ThreadPoolExecutor(3 * FIT) as pool:
        sent = [chat(keyed, "a" * SIZE) for _ in range(FIT)]
        eventually(lambda: keyed.service.preparing.requests["alice"] == FIT, "as many as fit are prepared")
        assert FIT * SIZE < memory.held <= LIMIT
        refused = list(pool.map(answer, [chat(keyed, "a" * SIZE) for _ in range(2 * FIT)]))
    for status, headers, body in refused:
        assert (status, body["error"]["code"]) == (503, "server_overloaded")
        assert int(headers["retry-after"]) >= 1
    assert FIT * SIZE < memory.held <= LIMIT
    assert keyed.service.engine.load == (0, 0)
    template.release()
    for status, _, body in map(answer, sent):
        assert (status, body["error"]["code"]) == (400, "context_length_exceeded")
    eventually(lambda: memory.held == 0, "all is given back")
    again = answer(chat(keyed, "a" * SIZE))
    assert (again[0], again[2]["error"]["code"]) == (400, "context_length_exceeded")
    assert answer(chat(keyed, "ab"))[2]["choices"][0]["message"]["content"] == "ok"


def test_an_answer_does_not_keep_the_body(keyed: OpenAIServer, template: SlowTemplate) -> None:
    template.release()
    assert answer(chat(keyed, "ab"))[0] == 200
    eventually(lambda: keyed.service.bodies.held == 0, "it is given back")
    assert not keyed.service.preparing.requests


def test_the_number_of_prepared_requests_is_bounded_by_principal(
    keyed: OpenAIServer, template: SlowTemplate
) -> None:
    service, most = keyed.service, LANES + QUEUE
    with ExitStack() as stack:
        sent = [stack.enter_context(chat(keyed, "ab")) for _ in range(most)]
        eventually(lambda: service.preparing.requests["alice"] == most, "alice has her share")
        for _ in range(3):
            status, headers, body = answer(chat(keyed, "ab"))
            assert (status, body["error"]["code"], body["error"]["type"]) == (
                429, "rate_limit_exceeded", "requests",
            )  # fmt: skip
            assert int(headers["retry-after"]) >= 1
        assert service.preparing.requests == {"alice": most}
        of_bob = chat(keyed, "bob", BOB)
        eventually(lambda: "bob" in service.engine._starting.waiting, "bob is not refused")
        assert service.engine.load == (0, 0)
        assert template.rendering == ["ab"] * THREADS
        template.release(2)  # his turn comes before the rest of hers
        eventually(lambda: "bob" in template.rendering, "bob has a thread")
        assert len(template.rendering) == THREADS + 2
        template.release()
        assert answer(of_bob)[0] == 200
        found = [answer(each)[0] for each in sent]
        assert found.count(200) >= LANES
        assert set(found) <= {200, 429}, "of one namespace, half of the queue may wait"
    idle(keyed)
    assert not service.preparing.requests
    assert complete(keyed, ALICE) == complete(keyed, BOB) == 200


def test_a_client_that_goes_while_it_waits_for_a_thread_leaves_nothing(
    keyed: OpenAIServer, template: SlowTemplate
) -> None:
    memory = keyed.service.bodies = BodyMemory(LIMIT)
    rendered = [chat(keyed, "ab") for _ in range(THREADS)]
    eventually(lambda: len(template.rendering) == THREADS, "all threads are in use")
    before = memory.held
    for _ in range(3):  # more, one after the other, than have room together
        waiting = [chat(keyed, "a" * SIZE) for _ in range(FIT - 1)]
        eventually(lambda: memory.held > before + (FIT - 1) * SIZE, "they wait")
        for each in waiting:
            each.close()
        eventually(lambda: memory.held == before, "they have left")
    template.release()
    assert [answer(each)[0] for each in rendered] == [200] * THREADS
    assert len(template.rendering) == THREADS, "what no client waits for is not rendered"
