"""Requests that join and leave shared batches at any time, on a tiny model in a real scheduler thread."""

from __future__ import annotations

import itertools
import queue
import random
import threading
from collections.abc import Iterator
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

from suffixsvc.errors import (
    GrammarError,
    InvalidConfigError,
    InvalidInputError,
    InvalidTokensError,
    LimitExceededError,
    ServiceUnavailableError,
)
from suffixsvc_driver.decode.generation import Request, Result, StepRecord, curve_for
from suffixsvc_driver.decode.requests import Failure, Outcome, QueueFullError
from suffixsvc_driver.decode.running_batch import RunningBatch
from suffixsvc_driver.decode.scheduler import Scheduler, Ticket
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.parallel import ParallelLlama
from support.parallel_runs import CARELESS, alone, some_requests
from support.serving import PATIENCE_S, eventually


def batch_of(target: ParallelLlama) -> RunningBatch:
    target.forget()
    return RunningBatch(target, DriverConfig(), curve_for(target, CARELESS), Calibrator(), lambda: 0.0)


@pytest.fixture
def scheduler(tiny: ParallelLlama) -> Iterator[Scheduler]:
    with Scheduler(batch_of(tiny), queue_size=64) as scheduler:
        yield scheduler


class Outcomes:
    """Outcomes in the order of their arrival."""

    def __init__(self) -> None:
        self._arrived: queue.SimpleQueue[tuple[Any, Outcome]] = queue.SimpleQueue()

    def of(self, key: Any) -> Any:
        return lambda outcome: self._arrived.put((key, outcome))

    def next(self) -> tuple[Any, Outcome]:
        return self._arrived.get(timeout=PATIENCE_S)


@pytest.mark.parametrize("seed", range(3))
def test_requests_that_join_at_any_time_generate_what_they_generate_alone(
    scheduler: Scheduler, tiny: ParallelLlama, seed: int
) -> None:
    print("seed", seed)
    requests, expected = some_requests(np.random.default_rng(seed), tiny, 18, GREEDY)
    outcomes = Outcomes()

    def client(own: list[int]) -> None:
        for at in own:
            scheduler.submit(requests[at], outcomes.of(at), (f"n{at % 3}",))

    clients = [threading.Thread(target=client, args=(list(range(k, 18, 3)),)) for k in range(3)]
    for each in clients:
        each.start()
    found = dict(outcomes.next() for _ in requests)
    for each in clients:
        each.join()
    texts = [found[at].token_ids for at in range(18)]  # type: ignore[union-attr]  # fails on a Failure
    assert texts == [result.token_ids for result in expected]
    eventually(lambda: scheduler.load == (0, 0), "no request is left")


class Endless:
    """A request that runs until it is cancelled; counts its steps."""

    def __init__(self, seed: int = 1) -> None:
        self.steps = 0
        self.begun = threading.Event()
        prompt = random.Random(seed).choices(range(100, 200), k=8)
        self.request = Request(prompt, (), 480, on_step=self._count)

    def _count(self, record: StepRecord) -> None:
        self.steps += 1
        self.begun.set()


def test_a_cancelled_request_frees_its_lane_within_one_step(
    scheduler: Scheduler, tiny: ParallelLlama
) -> None:
    outcomes = Outcomes()
    running = [Endless(seed) for seed in range(tiny.lanes)]
    tickets = [scheduler.submit(each.request, outcomes.of(k)) for k, each in enumerate(running)]
    for each in running:
        assert each.begun.wait(PATIENCE_S)
    [waiting] = alone(tiny, [[7, 8, 9]], [5], GREEDY)
    scheduler.submit(Request([7, 8, 9], (), 5), outcomes.of("next"))
    before = running[1].steps
    scheduler.cancel(tickets[1])
    found = dict(outcomes.next() for _ in range(2))
    cancelled = found[1]
    assert isinstance(cancelled, Result)
    assert cancelled.finish is FinishReason.CANCELLED
    assert len(cancelled.token_ids) == running[1].steps
    assert running[1].steps - before <= 2  # the step that is under way, and the one that had begun
    assert found["next"].token_ids == waiting.token_ids  # type: ignore[union-attr]
    for ticket in tickets:
        scheduler.cancel(ticket)
        scheduler.cancel(ticket)  # twice is once
    rest = dict(outcomes.next() for _ in range(tiny.lanes - 1))
    assert set(rest) == {0, 2}


def test_a_full_queue_refuses_and_a_cancelled_request_leaves_it(tiny: ParallelLlama) -> None:
    outcomes = Outcomes()
    with Scheduler(batch_of(tiny), queue_size=2) as scheduler:
        for seed in range(tiny.lanes):
            running = Endless(seed)
            scheduler.submit(running.request, outcomes.of("running"))
            assert running.begun.wait(PATIENCE_S)
        waiting = [scheduler.submit(Request([1, 2], (), 3), outcomes.of(k), (f"n{k}",)) for k in range(2)]
        assert scheduler.load == (tiny.lanes, 2)
        with pytest.raises(QueueFullError, match="the queue is full"):
            scheduler.submit(Request([1, 2], (), 3), outcomes.of("refused"), ("other",))
        scheduler.cancel(waiting[0])
        key, outcome = outcomes.next()
        assert key == 0
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, CancelledError)
        scheduler.submit(Request([1, 2], (), 3), outcomes.of("later"))
    # closed: everything has ended
    ends = [outcomes.next() for _ in range(tiny.lanes + 2)]
    assert sorted(str(key) for key, _ in ends) == sorted(["running"] * tiny.lanes + ["1", "later"])
    with pytest.raises(ServiceUnavailableError, match="closed"):
        scheduler.submit(Request([1, 2], (), 3), outcomes.of("refused"))
    with pytest.raises(InvalidConfigError, match="queue_size must be an int >= 1"):
        Scheduler(batch_of(tiny), queue_size=0)


def test_a_full_queue_tells_its_pace(tiny: ParallelLlama) -> None:
    """A lane becomes free every ten seconds of the clock."""
    outcomes = Outcomes()
    time = itertools.count(0, 10)
    with Scheduler(batch_of(tiny), 24, lambda: float(next(time))) as scheduler:
        running = [Endless(seed) for seed in range(tiny.lanes)]
        tickets = [scheduler.submit(each.request, outcomes.of("running")) for each in running]
        for each in running:
            assert each.begun.wait(PATIENCE_S)
        submit = partial(scheduler.submit, Request([1, 2], (), 2), outcomes.of("waiting"))

        def fill() -> None:
            for k in range(25):
                submit((f"n{k}",))

        with pytest.raises(QueueFullError) as unknown:
            fill()
        assert unknown.value.retry_seconds == 0.0
        scheduler.cancel(tickets[0])
        for _ in range(9):
            outcomes.next()
        with pytest.raises(QueueFullError) as known:
            fill()
        assert known.value.retry_seconds == pytest.approx(10.0)


def test_a_flood_of_one_namespace_does_not_delay_another(scheduler: Scheduler, tiny: ParallelLlama) -> None:
    """Also where it fills the queue: it gets the free lanes and half of the queue, and there is a place for
    everyone else."""
    outcomes = Outcomes()
    gate = threading.Event()
    first = Request([1, 2], (), 1, on_step=lambda _: gate.wait(PATIENCE_S))
    scheduler.submit(first, outcomes.of("first"))
    eventually(lambda: scheduler.load == (1, 0), "it is on a lane")
    flood = tiny.lanes - 1 + 32
    for k in range(flood):
        scheduler.submit(Request([5, 6, k], (), 12), outcomes.of("flood"), ("flood",))
    for _ in range(2):
        with pytest.raises(QueueFullError, match="'flood' fills its part of the queue"):
            scheduler.submit(Request([5, 6], (), 12), outcomes.of("refused"), ("flood",))
    scheduler.submit(Request([5, 6], (), 12), outcomes.of("other"), ("other",))
    gate.set()
    order = [outcomes.next()[0] for _ in range(flood + 2)]
    assert order.index("other") < 8, order


def test_namespaces_get_equal_shares_of_real_lanes(scheduler: Scheduler, tiny: ParallelLlama) -> None:
    """One asks for long prompts, one for long answers, one for many short ones: while all wait, their tokens
    (computed and emitted) differ by at most what is on the lanes."""
    rng = random.Random(8)
    kinds = {"prompts": (60, 4), "answers": (2, 60), "short": (2, 6)}
    left = {"prompts": 10, "answers": 10, "short": 16}
    served = dict.fromkeys(kinds, 0)
    shares: list[dict[str, int]] = []
    outcomes = Outcomes()
    gate = threading.Event()
    first = Request([1], (), 1, on_step=lambda _: gate.wait(PATIENCE_S))
    scheduler.submit(first, outcomes.of("first"), ("first",))
    eventually(lambda: scheduler.load == (1, 0), "it is on a lane")
    for name, (prompt, answer) in kinds.items():
        for _ in range(left[name]):
            request = Request(rng.choices(range(50, 250), k=prompt), (), answer)
            scheduler.submit(request, outcomes.of(name), (name,))
    gate.set()
    assert outcomes.next()[0] == "first"
    while min(left.values()) > 0:
        name, outcome = outcomes.next()
        assert isinstance(outcome, Result)
        served[name] += len(outcome.prompt_ids) - outcome.prefill.reused + len(outcome.token_ids)
        left[name] -= 1
        shares.append(dict(served))
    print(shares[-1])
    bound = (tiny.lanes + 1) * 64
    assert all(max(s.values()) - min(s.values()) <= bound for s in shares[:-1])
    assert sum(shares[-1].values()) > bound, "long enough to tell"


def test_a_prompt_that_does_not_fit_is_refused_before_it_waits(
    scheduler: Scheduler, tiny: ParallelLlama
) -> None:
    """A prompt of the whole context has room for one token."""
    outcomes = Outcomes()
    with pytest.raises(LimitExceededError, match="longer than the target's context") as found:
        scheduler.submit(Request([1] * (tiny.context_size + 1)), outcomes.of("too long"))
    assert not isinstance(found.value, QueueFullError), "sending it again does not help"
    with pytest.raises(InvalidTokensError):
        scheduler.submit(Request([1, tiny.vocab_size]), outcomes.of("outside"))
    with pytest.raises(InvalidInputError, match="must be a Request; got str"):
        scheduler.submit("x", outcomes.of("wrong"))  # type: ignore[arg-type]
    assert scheduler.load == (0, 0)
    scheduler.submit(Request([1] * tiny.context_size), outcomes.of("full"))
    _, outcome = outcomes.next()
    assert isinstance(outcome, Result)
    assert len(outcome.token_ids) == 1


def test_a_failed_request_and_a_failing_owner_affect_no_other(
    scheduler: Scheduler, tiny: ParallelLlama
) -> None:
    [expected] = alone(tiny, [[3, 4, 5]], [9], GREEDY)
    outcomes = Outcomes()

    def angry(outcome: Outcome) -> None:
        raise ValueError("not today")

    grammar = Sampling(grammar="root ::= [a")
    scheduler.submit(Request([1, 2], sampling=grammar), outcomes.of("bad grammar"))
    scheduler.submit(Request([1, 2], (), 3), angry)
    scheduler.submit(Request([3, 4, 5], (), 9), outcomes.of("good"))
    found = dict(outcomes.next() for _ in range(2))
    assert isinstance(found["bad grammar"], Failure)
    assert isinstance(found["bad grammar"].error, GrammarError)
    assert found["good"].token_ids == expected.token_ids  # type: ignore[union-attr]


def test_a_defect_in_a_step_ends_its_requests_only(
    scheduler: Scheduler, tiny: ParallelLlama, monkeypatch: pytest.MonkeyPatch
) -> None:
    outcomes = Outcomes()
    ticket: Ticket
    with monkeypatch.context() as patch:

        def broken(steps: object) -> Any:
            raise KeyError("defect")

        patch.setattr(tiny, "verify_many", broken)
        ticket = scheduler.submit(Request([1, 2], (), 3), outcomes.of("lost"))
        _, outcome = outcomes.next()
        assert isinstance(outcome, Failure)
        assert isinstance(outcome.error, KeyError)
    scheduler.cancel(ticket)
    scheduler.submit(Request([1, 2], (), 3), outcomes.of("kept"))
    key, outcome = outcomes.next()
    assert (key, isinstance(outcome, Result)) == ("kept", True)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("part", ["_charge", "_recharge", "_queue.charge"])
def test_a_defect_of_the_accounts_ends_every_request(
    tiny: ParallelLlama, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """What happened: it ended the thread before the requests had their outcomes, for which their owners
    waited for ever."""
    outcomes = Outcomes()
    with Scheduler(batch_of(tiny), queue_size=64) as scheduler:
        for lane in range(tiny.lanes):
            scheduler.submit(Endless(lane).request, outcomes.of(lane))
        eventually(lambda: scheduler.load.running == tiny.lanes, "every lane is in use")
        waiting = [scheduler.submit(Request([1, 2], (), 3), outcomes.of(f"w{k}")) for k in range(3)]
        owner, _, name = part.rpartition(".")
        monkeypatch.setattr(getattr(scheduler, owner) if owner else scheduler, name, lambda *_: 1 / 0)
        scheduler.cancel(waiting[0])
        found = dict(outcomes.next() for _ in range(tiny.lanes + len(waiting)))
        assert set(found) == {*range(tiny.lanes), "w0", "w1", "w2"}
        for outcome in found.values():
            cancelled = isinstance(outcome, Result) and outcome.finish is FinishReason.CANCELLED
            assert cancelled or isinstance(outcome, Failure)
        eventually(lambda: scheduler.ended, "its end is seen")
        assert scheduler.load == (0, 0)
        with pytest.raises(ServiceUnavailableError, match="closed"):
            scheduler.submit(Request([1, 2], (), 3), outcomes.of("refused"))


def test_only_computed_tokens_are_charged(scheduler: Scheduler, tiny: ParallelLlama) -> None:
    """A prompt that was cancelled before its first batch, or refused, cost its namespace all its tokens."""
    outcomes = Outcomes()
    gate, begun = threading.Event(), threading.Event()

    def wait(record: StepRecord) -> None:
        begun.set()
        assert gate.wait(PATIENCE_S)

    runs = scheduler.submit(Request([1, 2], (), 400, on_step=wait), outcomes.of("runs"), ("other",))
    assert begun.wait(PATIENCE_S)
    # both are on lanes after this step, and the first is cancelled before the next batch of a prompt
    long = random.Random(3).choices(range(100, 200), k=400)
    cancelled = scheduler.submit(Request(long, (), 1), outcomes.of("cancelled"), ("cancels",))
    bad = Request(long, (), 1, sampling=Sampling(grammar="root ::= [a"), on_step=None)
    scheduler.submit(bad, outcomes.of("refused"), ("refused",))
    done = Request([5, 6, 7, 8], (), 3)
    scheduler.submit(done, outcomes.of("done"), ("done",))
    scheduler.cancel(cancelled)
    gate.set()
    ends = dict(outcomes.next() for _ in range(3))
    assert set(ends) == {"cancelled", "refused", "done"}
    counters = {name: node.served for name, node in scheduler._queue._root.idle.items()}
    scheduler.cancel(runs)
    outcomes.next()
    assert counters.get("cancels", 0) == 0
    assert counters["refused"] == 0
    assert counters["done"] == 4 + 3


def test_a_request_on_a_lane_counts_what_was_computed_of_its_prompt(tiny: ParallelLlama) -> None:
    """With its log probabilities, a prompt is computed 32 tokens at a time."""
    batch = batch_of(tiny)
    prompt = random.Random(4).choices(range(100, 200), k=90)
    running = batch.add(Request(prompt, (), 5, prompt_logprobs=0), lambda outcome: None)
    served = []
    for _ in range(4):
        served.append(running.served)
        assert running.expected == max(90, running.served)
        batch.advance()
    assert served == [0, 32, 64, 90 + 1], "the third batch and the first step"
    batch.cancel(running)


def test_requests_are_queued_all_or_none(tiny: ParallelLlama) -> None:
    outcomes = Outcomes()
    with Scheduler(batch_of(tiny), queue_size=4) as scheduler:
        assert scheduler.most(("n",)) == tiny.lanes + 2
        assert scheduler.most(("p", "n")) == tiny.lanes + 1
        many = [(Request([1, 2, k], (), 3), outcomes.of(k)) for k in range(tiny.lanes + 3)]
        with pytest.raises(LimitExceededError, match="too many requests at once") as never:
            scheduler.submit_all(many, ("n",))
        assert not isinstance(never.value, QueueFullError), "sending them again does not help"
        running = [Endless(seed) for seed in range(tiny.lanes)]
        for each in running:
            scheduler.submit(each.request, outcomes.of("running"))
            assert each.begun.wait(PATIENCE_S)
        with pytest.raises(QueueFullError):
            scheduler.submit_all(many[:3], ("n",))
        assert scheduler.load == (tiny.lanes, 0)
        assert len(scheduler.submit_all(many[:2], ("n",))) == 2
        assert scheduler.load == (tiny.lanes, 2)


def test_namespaces_of_one_principal_do_not_fill_the_queue(tiny: ParallelLlama) -> None:
    """Each new name had the right to a place, so that one principal took all of them."""
    outcomes = Outcomes()
    with Scheduler(batch_of(tiny), queue_size=16) as scheduler:
        for seed in range(tiny.lanes):
            running = Endless(seed)
            scheduler.submit(running.request, outcomes.of("running"), ("running", "n"))
            assert running.begun.wait(PATIENCE_S)

        def fill(principal: str, name: str = "n{}") -> int:
            for k in range(20):
                try:
                    request = Request([1, 2], (), 3)
                    scheduler.submit(request, outcomes.of("waits"), (principal, name.format(k)))
                except QueueFullError:
                    return k
            return 20

        assert fill("one", "same") == 4, "half of the principal's half"
        assert fill("one") == 4, "the rest of that half"
        assert fill("two") == 4
        assert fill("three") == 2


def test_names_do_not_pass_the_principals_part_while_lanes_are_free(tiny: ParallelLlama) -> None:
    """During a step free lanes are not given out: the requests for them wait beside those of the queue."""
    outcomes = Outcomes()
    gate = threading.Event()
    with Scheduler(batch_of(tiny), queue_size=2) as scheduler:
        first = Request([1, 2], (), 1, on_step=lambda _: gate.wait(PATIENCE_S))
        scheduler.submit(first, outcomes.of("first"), ("one", "n"))
        eventually(lambda: scheduler.load == (1, 0), "it is on a lane")
        accepted = 0
        for k in range(tiny.lanes + 8):
            with suppress(QueueFullError):
                scheduler.submit(Request([1, 2], (), 3), outcomes.of("one"), ("one", f"n{k}"))
                accepted += 1
        assert accepted == tiny.lanes - 1 + 1, "the free lanes and half of the queue"
        scheduler.submit(Request([1, 2], (), 3), outcomes.of("two"), ("two", "n"))
        gate.set()
