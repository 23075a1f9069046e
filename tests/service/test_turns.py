"""Turns of large calls: how many at a time, in which order, and that a real service takes them."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import NewOutput, SuffixCache
from suffixsvc.service.calls.turns import Turns
from suffixsvc_client import SuffixClient
from support.access import ControlledService
from support.serving import eventually

PATIENCE = 300.0


def expected_order(waiting: list[str]) -> list[str]:
    """The principals in turn, the one that waits longest first; those of each in the order of arrival."""
    queues: dict[str, deque[str]] = {}
    for name in waiting:
        queues.setdefault(name[0], deque()).append(name)
    order = []
    ring = deque(queues.values())
    while ring:
        queue = ring.popleft()
        order.append(queue.popleft())
        if queue:
            ring.append(queue)
    return order


@pytest.mark.parametrize("seed", range(5))
def test_principals_take_turns(seed: int) -> None:
    rng = random.Random(seed)
    turns, order = Turns(1), list[str]()
    names = [f"{rng.choice('aaab' + 'c' * seed)}{number}" for number in range(12)]

    def work(name: str) -> None:
        with turns.taken(name[0]):
            order.append(name)

    threads = []
    with turns.taken("x"):
        for number, name in enumerate(names, start=1):
            threads.append(threading.Thread(target=work, args=(name,), daemon=True))
            threads[-1].start()
            eventually(lambda: sum(map(len, turns._waiting.values())) == number, "it waits")  # noqa: B023
        assert not order
    for thread in threads:
        thread.join(PATIENCE)
    assert order == expected_order(names)
    with turns.taken("x"):  # the turn came back
        pass


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_at_a_time_and_an_error_gives_the_turn_back(limit: int) -> None:
    turns, lock = Turns(limit), threading.Lock()
    inside, most, failed = 0, 0, 0

    def work(seed: int) -> None:
        nonlocal inside, most, failed
        rng = random.Random(seed)
        for _ in range(50):
            try:
                with turns.taken(rng.choice("abc")):
                    with lock:
                        inside += 1
                        most = max(most, inside)
                    threading.Event().wait(0.0002)
                    with lock:
                        inside -= 1
                    if rng.random() < 0.3:
                        int("no number")
            except ValueError:
                with lock:
                    failed += 1

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (inside, most) == (0, limit)
    assert failed
    assert turns._free == limit
    assert not turns._waiting


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache() as cache, ControlledService(tmp_path, ("alice", "bob")).run(cache) as service:
        yield service


def test_large_calls_of_a_service_wait_for_their_turn_and_others_do_not(service: ControlledService) -> None:
    handlers = service.server.handlers
    turns, prompts = handlers._writes._turns, handlers._prompts
    rng = np.random.default_rng(1)

    def large(client: SuffixClient, path: str) -> None:
        tokens = rng.integers(0, 50_000, 5_000).astype(np.int32)
        client.namespace(path).add_outputs([NewOutput(path, tokens, (5_000,), tokens[:0])])

    def huge(client: SuffixClient, path: str) -> None:
        session = client.namespace(path).open_session(rng.integers(0, 50_000, 20_000))
        session.append_context(rng.integers(0, 50_000, 20_000))
        session.step([1])
        session.close()

    def delete(client: SuffixClient, path: str) -> None:
        client.namespace(path).delete(labels={"no": "such"})

    with service.client("alice") as alice, service.client("bob") as bob:
        bob.namespace("bob/b").add_output([1, 2, 3])
        for turn, call in ((turns, large), (turns, delete), (prompts, huge)):
            held = [turn.taken("other") for _ in range(turn._free)]
            for each in held:
                each.__enter__()
            thread = threading.Thread(target=call, args=(alice, "alice/a"), daemon=True)
            thread.start()
            eventually(lambda: len(turn._waiting) == 1, "the call waits")  # noqa: B023
            with bob.namespace("bob/b").open_session([1]) as session:
                assert session.step([2]).token_ids.tolist()[:1] == [3]
            assert bob.namespace("bob/b").add_output([4, 5, 6])
            assert thread.is_alive()
            for each in held:
                each.__exit__(None, None, None)
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert service.cache.namespace("alice/a").stats().outputs == 2
