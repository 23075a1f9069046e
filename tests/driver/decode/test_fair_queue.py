"""The queue is fair in tokens between principals and between namespaces of one, and in order within these."""

from __future__ import annotations

import random

import pytest

from suffixsvc_driver.decode.fair_queue import MAX_IDLE, FairQueue
from support.long_form import rounds


def test_a_namespace_that_floods_the_queue_delays_itself() -> None:
    queue: FairQueue[int] = FairQueue()
    for item in range(10):
        queue.push(("flood",), item)
        assert len(queue) == item + 1
    assert queue.pop() == 0
    queue.charge(("flood",), 100)
    queue.push(("other",), 100)
    assert queue.pop() == 100
    queue.charge(("other",), 300)
    assert [queue.pop() for _ in range(9)] == list(range(1, 10))
    assert queue.pop() is None


def test_a_namespace_that_was_idle_has_not_saved_up() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push(("idle",), "i")
    assert queue.pop() == "i"
    queue.charge(("busy",), 1000)
    queue.push(("busy",), "b1")
    queue.push(("busy",), "b2")
    for k in range(3):
        queue.push(("idle",), f"i{k}")
    queue.charge(("idle",), 1)
    taken = []
    for _ in range(3):
        taken.append(queue.pop())
        queue.charge(("busy" if str(taken[-1]).startswith("b") else "idle",), 10)
    assert taken == ["b1", "i0", "b2"]


def test_removed_and_drained_items_do_not_come() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.push(("a",), "1")
    queue.push(("a",), "2")
    queue.push(("b",), "3")
    assert queue.remove(("b",), "3")
    assert not queue.remove(("b",), "3")
    assert not queue.remove(("a",), "3")
    assert queue.drain() == ["1", "2"]
    assert (queue.pop(), len(queue)) == (None, 0)


@pytest.mark.parametrize("seed", range(rounds(8, full=20)))
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
            queue.push((name,), (name, rng.randint(1, 50)))
    for _ in range(150):
        name, tokens = queue.pop() or ("", 0)
        queue.charge((name,), tokens)
        served[name] += tokens
        assert max(served.values()) - min(served.values()) <= 50


def test_new_namespaces_of_one_principal_do_not_starve_another() -> None:
    """With a counter per namespace only, one that was served 1,000 tokens waited behind every new name."""
    queue: FairQueue[str] = FairQueue()
    queue.push(("other", "0"), "o")
    queue.charge(("victim", "n"), 1000)
    queue.push(("victim", "n"), "v")
    taken = []
    for k in range(1, 200):
        queue.push(("other", f"{k}"), "o")  # one waits at any time
        taken.append(queue.pop())
        queue.charge(("other", f"{k - 1}") if taken[-1] == "o" else ("victim", "n"), 10)
    assert taken.index("v") == 100, "it has its turn when the other was served more"


def test_namespaces_of_one_principal_share_what_it_gets() -> None:
    """One principal with four namespaces is served as much as another with one, each of them a quarter."""
    queue: FairQueue[tuple[str, str]] = FairQueue()
    shares = [("a", "1"), *(("b", name) for name in "1234")]
    served = dict.fromkeys(shares, 0)
    for share in shares:
        for _ in range(80):
            queue.push(share, share)
    for _ in range(80):
        found = queue.pop()
        assert found is not None
        queue.charge(found, 5)
        served[found] += 5
    assert served == {("a", "1"): 200, **{("b", name): 50 for name in "1234"}}
    assert (queue.waiting(("b",)), queue.waiting(("b", "1")), queue.waiting(("c", "1"))) == (280, 70, 0)


def test_counters_of_idle_namespaces_are_bounded() -> None:
    """A queue that is never empty dropped none that was served after the last turn: each turn got slower."""
    queue: FairQueue[str] = FairQueue()
    queue.push(("p", "n0"), "n0")
    for k in range(1, 10 * MAX_IDLE):
        queue.push(("p", f"n{k}"), f"n{k}")  # one waits at any time
        queue.charge(("p", "runs"), 1)
        name = queue.pop()
        assert name == f"n{k - 1}"
        queue.charge(("p", name), 500)
    node = queue._root.waiting["p"]
    assert (len(node.waiting), len(node.idle)) == (1, MAX_IDLE)
    assert "runs" in node.idle, "it is served all the time"
    queue.push(("p", "n1"), "n1")
    queue.push(("p", f"n{k - 2}"), f"n{k - 2}")
    taken = [queue.pop() for _ in range(3)]
    assert taken == [f"n{k}", "n1", f"n{k - 2}"], "of the one that was served last, the counter is kept"
