"""The draft worker's thread: batches, the queue, "busy", deadlines, and jobs that break."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from suffixsvc_driver.targets.llama_context import ContextSettings
from suffixsvc_driver.workers.batching import BatchCosts
from suffixsvc_driver.workers.engine import DraftEngine, DraftRequest, Job
from suffixsvc_driver.workers.scheduler import Scheduler, Ticket
from suffixsvc_driver.workers.sequences import KvSequences

from suffixsvc.errors import AppendGap, InvalidConfigError, ModelError

SLOTS = 4
SETTINGS = ContextSettings(
    context_size=512, slots=SLOTS, threads=1, max_width=1, flash_attention=False, kv_type="f32"
)
PATIENT = 300.0
FOREVER = 1e6


@pytest.fixture(scope="module")
def alone(tiny_model: Path) -> Iterator[DraftEngine]:
    """The same model, asked one request at a time: what everything else is held against."""
    engine = DraftEngine(tiny_model, SETTINGS)
    yield engine
    engine.close()


@pytest.fixture
def engine(tiny_model: Path) -> Iterator[DraftEngine]:
    engine = DraftEngine(tiny_model, replace(SETTINGS, max_width=17), batch_width=SLOTS)
    yield engine
    engine.close()


@pytest.fixture
def run(engine: DraftEngine) -> Iterator[Callable[..., Scheduler]]:
    """Makes a scheduler that is stopped at the end."""
    made: list[Scheduler] = []

    def make(**settings: object) -> Scheduler:
        made.append(Scheduler(engine, **{"busy_after_seconds": FOREVER, "queue": 64, **settings}))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for scheduler in made:
        scheduler.stop()


def ask(name: str, context: Sequence[int], count: int, **more: float) -> DraftRequest:
    return DraftRequest(name, 0, list(context), count, **more)  # type: ignore[arg-type]  # p_min


def answers(scheduler: Scheduler, tickets: Sequence[Ticket]) -> list[list[int]]:
    for ticket in tickets:
        scheduler.wait(ticket)
    return [ticket.draft.token_ids.tolist() for ticket in tickets]


def prompt(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(32, 127), k=length)


def test_requests_that_wait_together_draft_in_one_batch(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    widths: list[int] = []
    step = engine.step

    def watched(jobs: Sequence[Job]) -> None:
        widths.append(len(jobs))
        step(jobs)

    monkeypatch.setattr(engine, "step", watched)
    scheduler = run()
    # of different lengths, one that breaks a rule, one that asks for more than the others
    requests = [ask("a", prompt(1, 5), 6), ask("b", prompt(2, 40), 6), ask("c", prompt(3, 9), 9)]
    tickets = [scheduler.submit(request) for request in requests]
    wrong = scheduler.submit(DraftRequest("d", 0, [1, 100_000], 5))
    scheduler.start()
    assert answers(scheduler, tickets) == [alone.draft(request).token_ids.tolist() for request in requests]
    scheduler.wait(wrong)
    assert wrong.error is not None
    assert widths == [3] * 6 + [1] * 3


def test_whatever_is_asked_at_the_same_time(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler]
) -> None:
    """Random sessions, prefixes and lengths, more of them than sequences: everybody gets what the model
    drafts for him alone."""
    for seed in range(6):
        rng = random.Random(seed)
        engine.costs = BatchCosts({1: 1e-3}, 1e-4, rng.choice([1, 2, 3, 4]))
        scheduler = run()
        scheduler.start()
        shared = prompt(seed, 120)
        texts = {f"{seed}/{i}": shared[: rng.randrange(1, 120)] for i in range(7)}
        for _ in range(4):
            requests = []
            for name in rng.sample(sorted(texts), k=5):
                texts[name] = texts[name] + prompt(rng.randrange(99), rng.randrange(1, 9))
                request = ask(name, texts[name], rng.randrange(0, 9), p_min=rng.choice([0.0, 0.2]))
                right = alone.draft(request).token_ids.tolist()[: rng.randrange(9)]
                noise = prompt(rng.randrange(99), rng.randrange(4))
                requests.append(replace(request, suggested=[*right, *noise]))
            tickets = [scheduler.submit(request) for request in requests]
            expected = [alone.draft(request).token_ids.tolist() for request in requests]
            assert answers(scheduler, tickets) == expected, f"seed {seed}"
            assert [ticket.length for ticket in tickets] == [len(r.new_token_ids) for r in requests]
        scheduler.stop()


def test_a_long_prompt_does_not_keep_the_others_waiting(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler]
) -> None:
    order: list[str] = []
    read = engine.read
    scheduler = run()
    late: list[Ticket] = []

    def reading(job: Job, most: int = 1 << 30) -> None:
        order.append("read")
        if len(order) == 2:
            late.append(scheduler.submit(ask("short", prompt(5, 8), 6)))
        read(job, most)

    engine.read = reading  # type: ignore[method-assign]  # a watch, and a request at a certain moment
    long = scheduler.submit(ask("long", prompt(4, 400), 3))
    scheduler.start()
    assert answers(scheduler, [long]) == [alone.draft(ask("x", prompt(4, 400), 3)).token_ids.tolist()]
    assert late[0].done.is_set()
    assert late[0].draft.token_ids.tolist() == alone.draft(ask("y", prompt(5, 8), 6)).token_ids.tolist()
    assert len(order) > 400 // 16


def test_a_full_queue_is_told_at_once(
    engine: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, leave = threading.Event(), threading.Event()
    step = engine.step

    def held(jobs: Sequence[Job]) -> None:
        entered.set()
        assert leave.wait(PATIENT)
        step(jobs)

    monkeypatch.setattr(engine, "step", held)
    engine.costs = BatchCosts({1: 1e-3}, 1e-4, 1)
    scheduler = run(queue=2)
    first = scheduler.submit(ask("a", [1, 2], 3))
    scheduler.start()
    assert entered.wait(PATIENT)
    second, third = scheduler.submit(ask("b", [3], 3)), scheduler.submit(ask("c", [4], 3))
    turned_away = scheduler.submit(ask("d", [5], 3))
    assert turned_away.busy
    assert turned_away.done.is_set()
    leave.set()
    assert [len(tokens) for tokens in answers(scheduler, [first, second, third])] == [3, 3, 3]
    assert engine.length("d") == 0
    assert len(answers(scheduler, [scheduler.submit(ask("d", [5], 3))])[0]) == 3


def test_who_would_wait_too_long_is_told_at_once(
    engine: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what batches cost: the one before still has 60 tokens of 10 ms to draft, the bound is 50 ms."""
    entered, leave = threading.Event(), threading.Event()
    step = engine.step

    def held(jobs: Sequence[Job]) -> None:
        entered.set()
        assert leave.wait(PATIENT)
        step(jobs)

    monkeypatch.setattr(engine, "step", held)
    engine.costs = BatchCosts({1: 0.01}, 1e-4, 1)
    now = [0.0]
    scheduler = run(busy_after_seconds=0.05, clock=lambda: now[0])
    first = scheduler.submit(ask("a", [1, 2], 60))
    scheduler.start()
    assert entered.wait(PATIENT)
    assert scheduler.submit(ask("b", [3], 3)).busy
    patient = scheduler.submit(ask("c", [3], 3), wait_seconds=5.0)  # its driver's target is a slow one
    assert not patient.busy
    engine.costs = BatchCosts({1: 0.01}, 1e-4, 2)  # were there a second lane, it would start in 10 ms
    scheduler._waiting.remove(patient)
    assert not scheduler.submit(ask("b", [3], 3)).busy
    leave.set()
    scheduler.wait(first)


def test_a_driver_gets_what_was_drafted_in_its_time(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    step = engine.step

    def slow(jobs: Sequence[Job]) -> None:
        step(jobs)
        now[0] += 0.01

    monkeypatch.setattr(engine, "step", slow)
    engine.costs = BatchCosts({1: 0.01}, 0.0, 1)
    monkeypatch.setattr(engine.costs, "learn_step", lambda *_: None)
    scheduler = run(clock=lambda: now[0])
    ticket = scheduler.submit(ask("a", prompt(6, 9), 20), 0.055)
    scheduler.start()
    (found,) = answers(scheduler, [ticket])
    assert found == alone.draft(ask("a", prompt(6, 9), 20)).token_ids.tolist()[:5]
    assert ticket.length == 9


def test_a_driver_that_left_frees_the_model(
    engine: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = run()
    steps: list[int] = []
    step = engine.step

    def watched(jobs: Sequence[Job]) -> None:
        steps.append(len(jobs))
        if len(steps) == 3:
            scheduler.cancel(ticket)
        step(jobs)

    monkeypatch.setattr(engine, "step", watched)
    ticket = scheduler.submit(ask("a", prompt(7, 9), 400))
    scheduler.start()
    scheduler.wait(ticket)
    assert len(steps) == 3
    assert len(answers(scheduler, [scheduler.submit(ask("a", prompt(7, 9), 4))])[0]) == 4


def test_a_batch_that_fails_fails_only_for_whom_it_must(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    decode = engine._decode

    def failing(jobs: Sequence[Job]) -> None:
        if any(66 in job.context and len(job.token_ids) == 2 for job in jobs):
            raise ModelError("llama_decode failed", expected=0, got=-3)
        decode(jobs)

    monkeypatch.setattr(engine, "_decode", failing)
    scheduler = run()
    requests = [ask("a", [70, 71], 6), ask("b", [65, 66, 67], 6), ask("c", [72, 73, 74], 6)]
    tickets = [scheduler.submit(request) for request in requests]
    scheduler.start()
    found = answers(scheduler, tickets)
    assert isinstance(tickets[1].error, ModelError)
    assert [found[0], found[2]] == [
        alone.draft(requests[0]).token_ids.tolist(),
        alone.draft(requests[2]).token_ids.tolist(),
    ]
    monkeypatch.undo()
    # what the failed one left behind is not used again
    again = scheduler.submit(requests[1])
    assert answers(scheduler, [again]) == [alone.draft(requests[1]).token_ids.tolist()]


@pytest.mark.parametrize("call", ["begin", "read", "_check", "_decode", "forget", "length"])
def test_an_unexpected_exception_fails_only_the_requests_concerned(
    engine: DraftEngine,
    alone: DraftEngine,
    run: Callable[..., Scheduler],
    monkeypatch: pytest.MonkeyPatch,
    call: str,
) -> None:
    """One exception that was not our own ended the thread: the worker refused every request from then on,
    until it was restarted. Now it is logged and counted, the requests of that read or batch have an error,
    others are answered, and later ones drafted for as if nothing had happened."""
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    work = getattr(engine, call)
    failing = False

    def broken(*arguments: Any) -> Any:
        if failing and rng.random() < 0.4:
            raise ZeroDivisionError
        return work(*arguments)

    monkeypatch.setattr(engine, call, broken)
    scheduler = run()
    scheduler.start()
    texts = {name: prompt(i, rng.randrange(1, 20)) for i, name in enumerate("abcdef")}
    answered = []
    with structlog.testing.capture_logs() as logs:
        for turn in range(12):
            failing = turn < 10
            requests = []
            for name in rng.sample("abcdef", k=3):
                texts[name] = texts[name] + prompt(rng.randrange(99), rng.randrange(1, 9))
                request = ask(name, texts[name], rng.randrange(1, 6))
                right = alone.draft(request).token_ids.tolist()[: rng.randrange(5)]
                requests.append(replace(request, suggested=right))
                if call == "forget":
                    scheduler.forget(name)
            tickets = [scheduler.submit(request) for request in requests]
            for ticket, request in zip(tickets, requests, strict=True):
                scheduler.wait(ticket)
                assert not ticket.busy
                if ticket.error is None:
                    assert ticket.draft.token_ids.tolist() == alone.draft(request).token_ids.tolist()
                    answered.append(failing)
                else:
                    assert isinstance(ticket.error, ModelError)
                    assert failing
    assert answered.count(False) == 6, "all of the last turns"
    assert not scheduler.stopped
    told = [entry for entry in logs if "failed unexpectedly" in entry["event"]]
    assert len(told) == scheduler.failures > 0
    assert call == "length" or answered.count(True) > 0


def test_busy_has_done_nothing(
    engine: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts of more sessions than may be read at a time: the last is turned away untouched."""
    gate = threading.Event()
    read = engine.read

    def held(job: Job, most: int = 1 << 30) -> None:
        assert gate.wait(PATIENT)
        read(job, most)

    monkeypatch.setattr(engine, "read", held)
    scheduler = run()
    tickets = [scheduler.submit(ask(f"{i}", prompt(i, 200), 0)) for i in range(SLOTS)]
    scheduler.start()
    scheduler.wait(tickets[-1])
    assert tickets[-1].busy
    assert engine.length(f"{SLOTS - 1}") == 0
    gate.set()
    answers(scheduler, tickets)
    assert [ticket.length for ticket in tickets[:-1]] == [200] * (SLOTS - 1)


def test_a_keep_beyond_the_end(engine: DraftEngine, run: Callable[..., Scheduler]) -> None:
    scheduler = run()
    scheduler.start()
    answers(scheduler, [scheduler.submit(ask("a", [1, 2], 0))])
    ticket = scheduler.submit(DraftRequest("a", 3, [1], 1))
    scheduler.wait(ticket)
    assert isinstance(ticket.error, AppendGap)
    assert ticket.length == 2


@pytest.mark.parametrize(
    ("seconds", "lanes", "of_three"),
    [
        ({1: 11.5, 2: 22.9, 4: 37.3, 8: 63.5}, 1, 1),  # smollm2-135m on one core
        ({1: 1.0, 2: 1.05, 4: 1.2, 8: 1.5}, 8, 3),  # a batch costs what its weights' reading costs
        ({1: 1.0, 2: 1.9, 4: 2.5, 8: 3.9}, 8, 1),  # pays from five on
        ({1: 1.0}, 1, 1),
    ],
)
def test_the_width_that_pays(seconds: dict[int, float], lanes: int, of_three: int) -> None:
    costs = BatchCosts(seconds, 0.1)
    assert costs.lanes == lanes
    assert costs.width_for(3) == of_three
    for ready in range(1, 9):
        width = costs.width_for(ready)
        assert costs.step_seconds(width) <= costs.step_seconds(1) * (width + 1) / 2
    assert BatchCosts(seconds, 0.1, 3).width_for(8) == 3


def test_settings_that_make_no_sense(engine: DraftEngine, tiny_model: Path) -> None:
    for settings in ({"queue": 0}, {"busy_after_seconds": -1.0}, {"busy_after_seconds": float("nan")}):
        with pytest.raises(InvalidConfigError, match="makes no sense"):
            Scheduler(engine, **settings)  # type: ignore[arg-type]  # as typed there
    with pytest.raises(InvalidConfigError, match="batch_width"):
        DraftEngine(tiny_model, SETTINGS, batch_width=-1)


def test_placing_beside_each_other() -> None:
    """A sequence in use is never given away, and what it holds is copied rather than read again."""
    sequences = KvSequences(2)
    first = sequences.plan([1, 2, 3, 4])
    assert first is not None
    sequences.carry_out(first)
    first.sequence.tokens.extend([1, 2, 3, 4])
    second = sequences.plan([1, 2, 3, 9], taken=[first.sequence.index])
    assert second is not None
    assert (second.keep, second.copy_from) == (3, first.sequence)
    assert second.sequence is not first.sequence
    sequences.carry_out(second)
    assert sequences.plan([1], taken=[0, 1]) is None
    assert sequences.plan([1, 2, 3, 4, 5]).sequence is first.sequence  # type: ignore[union-attr]  # none is taken


def test_reading_a_few_tokens_says_nothing_of_reading_many() -> None:
    costs = BatchCosts({1: 0.01}, 0.001)
    for _ in range(50):
        costs.learn_read(1, 0.01)
    assert costs.read_seconds(1) == 0.001
    for _ in range(50):
        costs.learn_read(16, 0.032)
    assert costs.read_seconds(1) == pytest.approx(0.002, rel=0.01)


def test_suggestions_that_take_longer_than_the_driver_waits_are_not_looked_at(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another token may still come in time."""
    looked_at: list[Job] = []
    check = engine._check
    monkeypatch.setattr(engine, "_check", lambda job: (looked_at.append(job), check(job)))
    engine.costs = BatchCosts({1: 1e-6}, 2 * PATIENT, 1)
    request = ask("a", prompt(4, 2), 5)
    plain = alone.draft(request).token_ids.tolist()
    told = replace(request, suggested=plain[:3])
    scheduler = run()
    scheduler.start()
    for timeout, times in ((PATIENT, 0), (0.0, 1)):
        [tokens] = answers(scheduler, [scheduler.submit(told, timeout)])
        assert tokens == plain
        assert len(looked_at) == times
