"""Many more clients than four lanes and a short queue have room for: each is answered, if refused after a
wait.
"""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import httpx

from support.long_form import rounds
from support.openai_serving import cycle_text, idle, running, settings_of
from support.serving import PATIENCE_S

CLIENTS, LANES, QUEUE = rounds(200, full=500), 4, 64


def test_hundreds_of_clients_on_four_lanes(cycle: Path) -> None:
    with running(settings_of(cycle, lanes=LANES, context=256, queue_size=QUEUE)) as server:
        refused = 0

        # a pool of connections for each client: one of 500 connections is traversed at every request
        unused = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)

        async def ask(at: int) -> str:
            address = f"http://{server.address}"
            async with httpx.AsyncClient(base_url=address, timeout=PATIENCE_S, verify=unused) as http:
                return await answer_to(http, at)

        async def answer_to(http: httpx.AsyncClient, at: int) -> str:
            nonlocal refused
            body = {
                "model": "cycle", "prompt": "abcdefgh"[at % 8], "max_tokens": 5 + at % 20, "temperature": 0,
                "suffixsvc": {"namespace": f"team{at % 7}"},
            }  # fmt: skip
            while True:
                answer = await http.post("/v1/completions", json=body)
                if answer.status_code != 429:
                    assert answer.status_code == 200, answer.text
                    return str(answer.json()["choices"][0]["text"])
                refused += 1
                await asyncio.sleep(int(answer.headers["Retry-After"]))

        async def ask_all() -> list[str]:
            return await asyncio.gather(*(ask(at) for at in range(CLIENTS)))

        found = asyncio.run(asyncio.wait_for(ask_all(), PATIENCE_S))
        assert found == [cycle_text("abcdefgh"[at % 8], 5 + at % 20) for at in range(CLIENTS)]
        assert refused, "the queue never was full"
        idle(server)
