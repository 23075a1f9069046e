"""Many concurrent sessions through one client: answers are not mixed up, and nothing is lost or doubled."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from suffixsvc import SuffixCache
from suffixsvc_client import AsyncSuffixClient, ClientConfig, SuffixClient
from support.engine_parts import parts_of
from support.serving import serving, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)
SESSIONS = 12


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache
        cache.check()


@pytest.fixture
def address(cache: SuffixCache) -> Iterator[str]:
    with socket_dir() as folder, serving(cache, f"unix:{folder}/s.sock") as (_, address):
        yield address


def scripts(seed: int) -> list[list[list[int]]]:
    """For every session the tokens of its steps, from ids that are its own."""
    rng = random.Random(seed)
    return [
        [[100 * s + rng.randrange(20) for _ in range(rng.randrange(4))] for _ in range(60)]
        for s in range(SESSIONS)
    ]


def flat(script: list[list[int]]) -> list[int]:
    return [token for step in script for token in step]


def check(cache: SuffixCache, written: list[list[list[int]]]) -> None:
    outputs = sorted(row.output.token_ids.tolist() for row in parts_of(cache).store.scan())
    assert outputs == sorted(flat(script) for script in written)
    assert cache.stats().sessions == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_threads_share_a_client(cache: SuffixCache, address: str, seed: int) -> None:
    written = scripts(seed)

    def work(number: int) -> None:
        session = client.namespace("a").open_session([100 * number + 50])
        for step in written[number]:
            draft = session.step(step)
            assert all(token // 100 == number for token in draft.token_ids), "another session's answer"
        assert session.close() is not None

    with SuffixClient(address, PATIENT) as client, ThreadPoolExecutor(SESSIONS) as pool:
        list(pool.map(work, range(SESSIONS)))
        assert client.counts.empty == {}
        assert client.counts.steps == 60 * SESSIONS
    check(cache, written)


async def test_tasks_share_a_client(cache: SuffixCache, address: str) -> None:
    written = scripts(3)

    async def work(number: int) -> None:
        session = await client.namespace("a").open_session([100 * number + 50])
        for step in written[number]:
            draft = await session.step(step)
            assert all(token // 100 == number for token in draft.token_ids), "another session's answer"
        assert await session.close() is not None

    async with AsyncSuffixClient(address, PATIENT) as client:
        await asyncio.gather(*(work(number) for number in range(SESSIONS)))
        assert client.counts.empty == {}
    check(cache, written)


async def test_cancelled_steps_lose_nothing(cache: SuffixCache, address: str) -> None:
    """A task is cancelled while its step is in flight: the tokens are stored, and the session continues."""
    rng = random.Random(4)
    async with AsyncSuffixClient(address, PATIENT) as client:
        session = await client.namespace("a").open_session([1])
        tokens = list(range(100, 200))
        for token in tokens:
            task = asyncio.ensure_future(session.step([token]))
            for _ in range(rng.randrange(4)):
                await asyncio.sleep(0)
            if task.cancel():
                await asyncio.gather(task, return_exceptions=True)
        expected = session.length
        await session.close()
    [row] = parts_of(cache).store.scan()
    assert len(row.output.token_ids) == expected - 1
    assert row.output.token_ids.tolist() == sorted(row.output.token_ids.tolist())
