"""All bodies together have one memory: what it refuses, and that nothing of it is lost, over real sockets."""

from __future__ import annotations

import json
import random
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from suffixsvc_openai.app.http import body_memory
from suffixsvc_openai.app.http.body_memory import BodyMemory, HeldBody
from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.protocol.json_values import VALUE_BYTES
from support.serving import PATIENCE_S, eventually

LIMIT = 4 << 20
#: of which long bodies have 7 / 8
LONG = LIMIT - LIMIT // 8
SHORT = body_memory.SHORT_BODY_BYTES


class WatchedMemory(BodyMemory):
    """It knows the most that it has held."""

    most = 0

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self.__dict__["most"] = max(self.most, self.held) if name == "held" else self.most


@pytest.fixture
def memory(server: OpenAIServer) -> Iterator[WatchedMemory]:
    service = server.service
    before, service.bodies = service.bodies, WatchedMemory(LIMIT)
    yield service.bodies
    service.bodies = before


@dataclass
class Client:
    """A request for an unknown model, so that a body that is read is a 404."""

    server: OpenAIServer
    size: int
    sent: int = 0
    socket: socket.socket = field(init=False)

    def __post_init__(self) -> None:
        host, _, port = self.server.address.rpartition(":")
        self.socket = socket.create_connection((host, int(port)), PATIENCE_S)
        self.begin()

    def begin(self) -> None:
        self.sent = 0
        start = json.dumps({"model": "none", "prompt": ""})[:-2]
        self.body = (start + "a" * (self.size - len(start) - 2) + '"}').encode()
        fields = f"Host: {self.server.address}\r\nContent-Length: {self.size}\r\n"
        self.socket.sendall(f"POST /v1/completions HTTP/1.1\r\n{fields}\r\n".encode())

    def send(self, size: int | None = None) -> None:
        end = self.size if size is None else min(self.size, self.sent + size)
        self.socket.sendall(self.body[self.sent : end])
        self.sent = end

    def answer(self) -> tuple[int, dict[str, str], dict[str, Any]]:
        """Status, headers and error, after the rest of the body."""
        self.send()
        received = b""
        while b"\r\n\r\n" not in received:
            received += self._part()
        head, _, body = received.partition(b"\r\n\r\n")
        status, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        while len(body) < int(headers["content-length"]):
            body += self._part()
        return int(status.split()[1]), headers, json.loads(body)["error"]

    def _part(self) -> bytes:
        part = self.socket.recv(1 << 16)
        assert part, "the server closed the connection"
        return part


def holds(memory: BodyMemory, size: int) -> None:
    eventually(lambda: memory.held == size, f"bodies hold {size} bytes")


def test_a_body_beyond_the_memory_is_503_until_another_one_has_gone(
    server: OpenAIServer, memory: WatchedMemory
) -> None:
    holding = Client(server, 3 << 20)
    holding.send((3 << 20) - 1)
    holds(memory, (3 << 20) - 1)
    refused = Client(server, 1 << 20)
    status, headers, error = refused.answer()
    assert (status, error["code"], error["type"]) == (503, "server_overloaded", "server_error")
    assert int(headers["retry-after"]) >= 1
    holds(memory, (3 << 20) - 1)
    short = Client(server, SHORT)  # a part of the memory is for short ones
    assert short.answer()[0] == 404
    holding.socket.close()  # in the middle of its body
    holds(memory, 0)
    refused.begin()  # the connection is in order: the refused body was read to its end
    assert refused.answer()[0] == 404
    holds(memory, 0)
    for client in (refused, short):
        client.socket.close()


def test_what_a_body_is_parsed_to_counts(server: OpenAIServer, memory: WatchedMemory) -> None:
    """Small objects take many times the bytes of their text."""
    address = f"http://{server.address}/v1/completions"
    for objects, status in ((8_000, 404), (24_000, 503)):
        body = {"model": "none", "prompt": "a", "unknown": [{"": 0}] * objects}
        assert len(json.dumps(body)) < LIMIT // 8
        answer = httpx.post(address, json=body, timeout=PATIENCE_S)
        assert answer.status_code == status, answer.text
        assert memory.held == 0
    assert memory.most > 16_000 * VALUE_BYTES


@pytest.mark.parametrize("ascii_only", [True, False])
def test_a_wide_character_counts_for_all_characters(
    server: OpenAIServer, memory: WatchedMemory, ascii_only: bool
) -> None:
    """A body of one byte a character was counted once, and took five times its bytes."""
    address = f"http://{server.address}/v1/completions"
    for end, status in (("a", 404), ("\U0001f600", 503)):
        text = json.dumps({"model": "none", "prompt": "a" * (1 << 20) + end}, ensure_ascii=ascii_only)
        answer = httpx.post(address, content=text.encode(), timeout=PATIENCE_S)
        assert answer.status_code == status, answer.text
        assert memory.held == 0


def test_short_bodies_have_a_limit_too() -> None:
    memory = BodyMemory(LIMIT)
    with memory.body("p") as long:
        assert long.add(bytes(LONG))
        assert not long.add(b"a")
        shorts = [HeldBody(memory, f"p{i}") for i in range(LIMIT // SHORT)]
        taken = [short for short in shorts if short.add(bytes(SHORT))]
        assert len(taken) == (LIMIT - LONG) // SHORT < len(shorts)
        assert memory.held <= LIMIT
        for short in taken:
            short.drop()
            short.drop()
        assert memory.held == LONG
    assert memory.held == 0


@pytest.mark.parametrize("size", [SHORT, 2 * SHORT])
def test_the_bodies_of_one_principal_keep_no_other_out(size: int) -> None:
    """One with 14 slow connections once took all: every other principal got 503."""
    memory = BodyMemory(LIMIT)
    ours = [HeldBody(memory, "alice") for _ in range(LIMIT // size + 1)]
    taken = [body for body in ours if body.add(bytes(size))]
    assert LIMIT // 3 < memory.held <= LIMIT // 2
    with memory.body("bob") as body:
        assert body.add(bytes(size))
        assert not ours[-1].add(bytes(size))
    for body in taken:
        body.drop()
    assert not memory.held
    assert not memory.shares


def test_a_short_body_of_many_values_is_still_short_when_nothing_is_stored() -> None:
    """/v1/responses answered 503 to ordinary requests while long bodies filled their part."""
    memory = BodyMemory(LIMIT)
    with memory.body("alice") as long, memory.body("alice") as short:
        assert long.add(bytes(LONG))
        assert short.add(bytes(SHORT // 4))
        assert short.add_parsed(SHORT)
        short.parsed()
        assert short.add_stored(0)
        assert short.add_stored(SHORT // 4), "few bytes of history"
        assert not short.add_stored(SHORT), "many"


def test_the_only_principal_may_use_all() -> None:
    """A server without keys used half of its memory."""
    memory = BodyMemory(LIMIT, principals=lambda: 1)
    bodies = [HeldBody(memory, "local") for _ in range(LIMIT // SHORT)]
    assert sum(body.add(bytes(2 * SHORT)) for body in bodies) == LONG // (2 * SHORT)
    expected = (LIMIT - memory.held) // SHORT
    assert sum(HeldBody(memory, "local").add(bytes(SHORT)) for _ in bodies) == expected


def test_a_server_without_keys_has_one_principal(server: OpenAIServer) -> None:
    assert not server.service.bodies.shared


def test_the_only_body_of_a_principal_may_take_more_than_it_leaves() -> None:
    memory = BodyMemory(LIMIT)
    with memory.body("alice") as large, memory.body("alice") as short, memory.body("alice") as other:
        assert all(large.add(bytes(LONG // 4)) for _ in range(4))
        assert not other.add(bytes(2 * SHORT))
        assert short.add(bytes(SHORT)), "the part for short bodies is left to it too"


@pytest.mark.parametrize("seed", range(3))
def test_any_order_of_parts_ends_and_disconnections_keeps_to_the_memory(
    server: OpenAIServer, memory: WatchedMemory, seed: int
) -> None:
    """Clients send parts, finish or disconnect in a random order; the seed is in the test's name."""
    rng = random.Random(seed)
    clients: list[Client] = []
    refused = answered = 0
    for _ in range(400):
        if len(clients) < 20:
            clients.append(Client(server, rng.choice((200, SHORT, SHORT + 1, 500_000, 1_000_000))))
        client = rng.choice(clients)
        match rng.choice(("part",) * 6 + ("end", "disconnect")):
            case "part":
                # the last byte is sent at the end: the answer is read then
                client.send(min(rng.randrange(400_000), client.size - client.sent - 1))
                continue
            case "end":
                status, headers, error = client.answer()
                assert status in (404, 503), error
                assert ("retry-after" in headers) == (status == 503)
                refused += status == 503
                answered += status == 404
        clients.remove(client)
        client.socket.close()
    for client in clients:
        client.socket.close()
    holds(memory, 0)
    assert memory.most <= LIMIT
    assert answered
    assert refused
