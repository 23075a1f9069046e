"""Responses on a server that is full or stops: the same statuses as for chats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx

from support.openai_serving import ENDLESS, LANES, NO_DRAFTS, QUEUE, running, send, settings_of
from support.serving import PATIENCE_S, eventually

BODY: dict[str, Any] = {"model": "cycle", "input": "ab", "max_output_tokens": 3, "temperature": 0}


def test_a_full_queue_is_429_by_namespace(cycle: Path) -> None:
    with (
        running(settings_of(cycle, context=1 << 14)) as server,
        httpx.Client(base_url=f"http://{server.address}", timeout=PATIENCE_S) as http,
    ):
        load = server.service.engine
        clients = [send(server, {**ENDLESS, **NO_DRAFTS}) for _ in range(LANES)]
        eventually(lambda: load.load.running == LANES, "all lanes are in use")
        for at in range(QUEUE // 2):  # one namespace may not fill the queue
            clients.append(send(server, ENDLESS))
            eventually(lambda n=at: load.load.waiting > n, "it waits")  # type: ignore[misc]
        for stream in (False, True):
            refused = http.post("/v1/responses", json={**BODY, "stream": stream})
            assert refused.status_code == 429
            assert int(refused.headers["Retry-After"]) >= 1
            assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        stored = http.get("/v1/responses/resp_x")  # needs no lane
        assert stored.status_code == 404
        for each in clients:
            each.close()
        other = http.post("/v1/responses", json=BODY, headers={"X-Suffixsvc-Namespace": "other"})
        assert other.status_code == 200


def test_a_server_that_stops_answers_503_and_shows_what_is_stored(cycle: Path) -> None:
    with (
        running(settings_of(cycle)) as server,
        httpx.Client(base_url=f"http://{server.address}", timeout=PATIENCE_S) as http,
    ):
        first = http.post("/v1/responses", json=BODY).json()
        server.drain()
        refused = http.post("/v1/responses", json=BODY)
        assert refused.status_code == 503
        assert refused.json()["error"]["code"] == "server_stopping"
        assert http.get(f"/v1/responses/{first['id']}").json() == first
