"""Clients that disconnect, are slow, or are many: lanes are free at once, and nothing is left."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import openai
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import (
    ENDLESS,
    LANES,
    NO_DRAFTS,
    QUEUE,
    client_of,
    idle,
    running,
    send,
    settings_of,
)
from support.serving import PATIENCE_S, eventually


@pytest.fixture(scope="module")
def plain(cycle: Path) -> Iterator[OpenAIServer]:
    """A server without drafts, whose answers take long."""
    with running(settings_of(cycle, context=1 << 14)) as server:
        yield server


def _cancelled(server: OpenAIServer) -> int:
    text = httpx.get(f"http://{server.address}/metrics").text
    found = re.search(r'request_success_total{.*finished_reason="cancelled".*} (\d+)', text)
    return int(found[1]) if found else 0


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_disconnects_frees_its_lanes(plain: OpenAIServer, stream: bool) -> None:
    clients = [send(plain, {**ENDLESS, **NO_DRAFTS, "stream": stream}) for _ in range(LANES)]
    eventually(lambda: plain.service.engine.load.running == LANES, "all lanes are in use")
    before = _cancelled(plain)
    for each in clients:
        each.close()
    with client_of(plain) as client:
        answer = client.completions.create(model="cycle", prompt="a", max_tokens=4, temperature=0)
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    idle(plain)
    assert _cancelled(plain) == before + LANES


def test_a_client_that_disconnects_leaves_the_queue(plain: OpenAIServer) -> None:
    clients = [send(plain, {**ENDLESS, **NO_DRAFTS}) for _ in range(LANES + 1)]
    eventually(lambda: plain.service.engine.load == (LANES, 1), "one waits")
    clients[-1].close()
    clients[0].close()
    eventually(lambda: plain.service.engine.load == (LANES - 1, 0), "one is left")
    clients[1].close()
    idle(plain)


def test_a_full_queue_is_429_and_the_others_are_answered(plain: OpenAIServer) -> None:
    clients = [send(plain, {**ENDLESS, **NO_DRAFTS}) for _ in range(LANES)]
    eventually(lambda: plain.service.engine.load.running == LANES, "all lanes are in use")
    waiting: list[socket.socket] = []
    with httpx.Client(base_url=f"http://{plain.address}", timeout=PATIENCE_S) as http:
        for at in range(QUEUE):  # of other namespaces: one alone may not fill the queue
            before = plain.service.engine.load.waiting
            waiting.append(send(plain, {**ENDLESS, "max_tokens": 3, "suffixsvc": {"namespace": f"n{at}"}}))
            eventually(lambda n=before: plain.service.engine.load.waiting > n, "it waits")  # type: ignore[misc]
        refused = http.post("/v1/completions", json=ENDLESS)
        assert refused.status_code == 429
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        n = http.post("/v1/completions", json={**ENDLESS, "n": LANES})
        assert n.status_code == 429
        for each in clients:
            each.close()
        for each in waiting:
            received = b""
            while b"}]" not in received:
                part = each.recv(1 << 16)
                assert part
                received += part
            assert b'"finish_reason":"length"' in received
            each.close()
        assert http.post("/v1/completions", json={**ENDLESS, "max_tokens": 3}).status_code == 200
    idle(plain)


def test_a_slow_reader_does_not_hold_its_lane(plain: OpenAIServer) -> None:
    """The socket's buffers are far smaller than the stream, of which the client reads one byte."""
    host, _, port = plain.address.rpartition(":")
    slow = socket.socket()
    slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow.connect((host, int(port)))
    body = {**ENDLESS, **NO_DRAFTS, "max_tokens": 2000, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: {plain.address}\r\nContent-Length: {len(data)}\r\n\r\n"
    slow.sendall(head.encode() + data)
    assert slow.recv(1) == b"H"
    idle(plain)  # the answer is complete although the client has read one byte of it
    received = bytearray()
    while b"[DONE]" not in received[-100:]:
        part = slow.recv(1 << 16)
        assert part
        received += part
    slow.close()
    texts = [json.loads(line[6:]) for line in received.decode().splitlines() if line.startswith("data: {")]
    assert len("".join(each["choices"][0]["text"] for each in texts)) == 2000


def test_many_clients_are_answered(cycle: Path) -> None:
    """Sixty clients on two lanes, each with its own text."""
    with running(settings_of(cycle, queue_size=128)) as server, client_of(server) as client:
        found: dict[int, str] = {}

        def ask(at: int) -> None:
            text = client.completions.create(
                model="cycle", prompt="abcdefgh"[at % 8], max_tokens=5 + at, temperature=0
            )
            found[at] = text.choices[0].text

        threads = [threading.Thread(target=ask, args=(at,)) for at in range(60)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        repeated = "abcdefgh\n" * 10
        assert found == {at: repeated[at % 8 + 1 : at % 8 + 6 + at] for at in range(60)}
        idle(server)


def test_a_failing_answer_hurts_no_other(plain: OpenAIServer) -> None:
    """The first token of the format is banned: the model cannot begin."""
    schema = {"name": "x", "strict": True, "schema": {"const": {}}}
    with client_of(plain) as client:
        stream = client.completions.create(**ENDLESS, stream=True)
        next(iter(stream))
        with pytest.raises(openai.BadRequestError, match="permits none"):
            client.chat.completions.create(
                model="cycle",
                messages=[{"role": "user", "content": "a"}],
                response_format={"type": "json_schema", "json_schema": schema},
                logit_bias={str(ord("{")): -100},
                temperature=0,
            )
        assert next(iter(stream)).choices[0].text
        stream.close()
    idle(plain)
