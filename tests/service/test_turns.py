"""Turns of large calls: how many at a time, in which order, and that a real service takes them."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import NewOutput, SuffixCache
from suffixsvc.errors import LimitExceededError
from suffixsvc.index import session as sessions
from suffixsvc.runtime.turns import Turns
from suffixsvc.service.calls.large_messages import LargeMessages
from suffixsvc.types import TokenArray
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
    turns, order = Turns(1, PATIENCE), list[str]()
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
    turns, lock = Turns(limit, PATIENCE), threading.Lock()
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


def test_what_waits_for_too_long_runs_beside_the_others() -> None:
    turns, order = Turns(1, 0.01), list[str]()
    with turns.taken("a"), turns.taken("b"), turns.taken("a"):
        order.append("three at a time")
    assert order
    assert (turns._free, turns._waiting) == (1, {})


@pytest.mark.parametrize("seed", range(3))
def test_turns_that_come_while_patience_ends_are_not_lost(seed: int) -> None:
    turns = Turns(1, 0.001)

    def work(number: int) -> None:
        rng = random.Random(seed * 100 + number)
        for _ in range(60):
            with turns.taken(rng.choice("ab")):
                threading.Event().wait(rng.choice((0.0, 0.0009, 0.0015)))

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert (turns._free, turns._waiting) == (1, {})


def test_large_messages_of_a_principal_leave_room_to_others() -> None:
    large = LargeMessages(100)
    with ExitStack() as stack:
        for _ in range(5):
            stack.enter_context(large.in_progress("a", 10))
        with (
            pytest.raises(LimitExceededError, match="leaves to others") as caught,
            large.in_progress("a", 10),
        ):
            pass
        assert caught.value.retry_after_s
        stack.enter_context(large.in_progress("b", 40))  # its only one
        with pytest.raises(LimitExceededError), large.in_progress("b", 10):
            pass
        stack.enter_context(large.in_progress("c", 10))
        with pytest.raises(LimitExceededError), large.in_progress("d", 1):
            pass
    with large.in_progress("a", 100):  # all was given back
        pass


def test_a_huge_prompt_in_pieces_is_the_same_prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(7)
    prompt, output = rng.integers(0, 90, 5_000), rng.integers(0, 90, 3_000)
    found = list[tuple[object, ...]]()
    for piece in (1_000, 1 << 30):
        monkeypatch.setattr(sessions, "_HUGE_CONTEXT", piece)
        with SuffixCache() as cache, cache.namespace("a").open_session(prompt, output) as session:
            session.append_context(prompt[:2_500])
            drafts = [session.step(output[first : first + 3], 8) for first in range(0, 60, 3)]
            tokens = session.token_ids().tolist()
            output_id = session.close()
            (stored,) = cache._parts.store.scan("a")
            assert stored.output_id == output_id
            row = stored.output
            stored_parts = (row.token_ids.tolist(), row.segment_lens, row.prompt_tail.tolist())
            drafted = [(draft.token_ids.tolist(), draft.probs.tolist()) for draft in drafts]
            found.append((tokens, drafted, stored_parts))
    assert found[0] == found[1]


def test_pieces_of_two_principals_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a short prompt does not wait for the whole of a huge one."""
    monkeypatch.setattr(sessions, "_HUGE_CONTEXT", 100)
    order = list[int]()
    both = threading.Event()

    def recorded(append: Callable[[TokenArray], None], piece: TokenArray) -> None:
        order.append(int(piece[0]))
        assert both.wait(PATIENCE)
        append(piece)

    monkeypatch.setattr(sessions, "low_priority", recorded)
    with SuffixCache() as cache:
        turns = cache._parts.sessions._turns
        turns._free, turns._patience = 1, PATIENCE

        def open_session(token: int, tokens: int) -> None:
            cache.namespace("a").open_session([token] * tokens, principal=f"p{token}").close()

        threads = [
            threading.Thread(target=open_session, args=each, daemon=True) for each in ((1, 2_000), (2, 300))
        ]
        threads[0].start()
        eventually(lambda: order == [1], "the huge one has begun")
        threads[1].start()
        eventually(lambda: "p2" in turns._waiting, "the other one waits")
        both.set()
        for thread in threads:
            thread.join(PATIENCE)
    assert len(order) == 23
    assert max(number for number, token in enumerate(order) if token == 2) <= 8, order


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache() as cache, ControlledService(tmp_path, ("alice", "bob")).run(cache) as service:
        yield service


def test_large_calls_of_a_service_wait_for_their_turn_and_others_do_not(service: ControlledService) -> None:
    handlers = service.server.handlers
    turns, prompts = handlers._writes._turns, service.cache._parts.sessions._turns
    turns._patience = prompts._patience = PATIENCE
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
