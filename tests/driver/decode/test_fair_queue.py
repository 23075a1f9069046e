"""The queue is fair in tokens between namespaces, and in order within one."""

from __future__ import annotations

import random

import pytest

from suffixsvc_driver.decode.fair_queue import FairQueue


def test_a_namespace_that_floods_the_queue_delays_itself() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(10):
        queue.push("flood", item)
        assert len(queue) == item + 1
    assert queue.pop() == 0
    queue.charge("flood", 100)
    queue.push("other", 100)
    assert queue.pop() == 100
    queue.charge("other", 300)
    assert [queue.pop() for _ in range(9)] == list(range(1, 10))
    assert queue.pop() is None


def test_a_namespace_that_was_idle_has_not_saved_up() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("idle", "i")
    assert queue.pop() == "i"
    queue.charge("busy", 1000)
    queue.push("busy", "b1")
    queue.push("busy", "b2")
    for k in range(3):
        queue.push("idle", f"i{k}")
    queue.charge("idle", 1)
    taken = []
    for _ in range(3):
        taken.append(queue.pop())
        queue.charge("busy" if str(taken[-1]).startswith("b") else "idle", 10)
    assert taken == ["b1", "i0", "b2"]


def test_removed_and_drained_items_do_not_come() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push("a", "1")
    queue.push("a", "2")
    queue.push("b", "3")
    assert queue.remove("b", "3")
    assert not queue.remove("b", "3")
    assert not queue.remove("a", "3")
    assert queue.drain() == ["1", "2"]
    assert (queue.pop(), len(queue)) == (None, 0)


@pytest.mark.parametrize("seed", range(20))
def test_shares_of_busy_namespaces_differ_by_at_most_one_request(seed: int) -> None:
    """The bound of the virtual token counter: while all wait, no namespace is ahead by more than its largest
    request (the oracle counts what each was served)."""
    print("seed", seed)
    rng = random.Random(seed)
    names = [f"n{i}" for i in range(rng.randint(2, 6))]
    queue: FairQueue[tuple[str, int]] = FairQueue()
    served = dict.fromkeys(names, 0)
    for name in names:
        for _ in range(200):
            queue.push(name, (name, rng.randint(1, 50)))
    for _ in range(150):
        name, tokens = queue.pop() or ("", 0)
        queue.charge(name, tokens)
        served[name] += tokens
        assert max(served.values()) - min(served.values()) <= 50
