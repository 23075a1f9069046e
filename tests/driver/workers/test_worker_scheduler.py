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

from suffixsvc.errors import AppendGap, InvalidConfigError, ModelError
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.workers.server.batching import BatchCosts
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest, Job
from suffixsvc_driver.workers.server.scheduler import Scheduler
from suffixsvc_driver.workers.server.ticket import Ticket
from support.worker_parts import draft_alone, waiting_in

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
    assert answers(scheduler, tickets) == [
        draft_alone(alone, request).token_ids.tolist() for request in requests
    ]
    scheduler.wait(wrong)
    assert wrong.error is not None
    assert widths == [3] * 6 + [1] * 3


def test_concurrent_requests_have_the_drafts_of_separate_ones(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler]
) -> None:
    """Random sessions, prefixes and lengths, more of them than sequences: each gets what the model
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
                right = draft_alone(alone, request).token_ids.tolist()[: rng.randrange(9)]
                noise = prompt(rng.randrange(99), rng.randrange(4))
                requests.append(replace(request, suggested=[*right, *noise]))
            tickets = [scheduler.submit(request) for request in requests]
            expected = [draft_alone(alone, request).token_ids.tolist() for request in requests]
            assert answers(scheduler, tickets) == expected, f"seed {seed}"
            assert [ticket.length for ticket in tickets] == [len(r.new_token_ids) for r in requests]
        scheduler.stop()


def test_a_long_prompt_does_not_keep_the_others_waiting(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler]
) -> None:
    order: list[str] = []
    prefill = engine.prefill
    scheduler = run()
    late: list[Ticket] = []

    def recording(job: Job, limit: int = 1 << 30) -> None:
        order.append("read")
        if len(order) == 2:
            late.append(scheduler.submit(ask("short", prompt(5, 8), 6)))
        prefill(job, limit)

    engine.prefill = recording  # type: ignore[method-assign]  # a watch, and a request at a certain moment
    long = scheduler.submit(ask("long", prompt(4, 400), 3))
    scheduler.start()
    assert answers(scheduler, [long]) == [draft_alone(alone, ask("x", prompt(4, 400), 3)).token_ids.tolist()]
    assert late[0].done.is_set()
    assert (
        late[0].draft.token_ids.tolist() == draft_alone(alone, ask("y", prompt(5, 8), 6)).token_ids.tolist()
    )
    assert len(order) > 400 // 16


def test_a_full_queue_refuses_at_once(
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


def test_a_request_that_would_wait_too_long_is_refused_at_once(
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
    patient = scheduler.submit(ask("c", [3], 3), wait_seconds=5.0)  # its client's target is a slow one
    assert not patient.busy
    engine.costs = BatchCosts({1: 0.01}, 1e-4, 2)  # were there a second lane, it would start in 10 ms
    waiting_in(scheduler).remove(patient)
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
    monkeypatch.setattr(engine.costs, "record_step", lambda *_: None)
    scheduler = run(clock=lambda: now[0])
    ticket = scheduler.submit(ask("a", prompt(6, 9), 20), 0.055)
    scheduler.start()
    (found,) = answers(scheduler, [ticket])
    assert found == draft_alone(alone, ask("a", prompt(6, 9), 20)).token_ids.tolist()[:5]
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
        draft_alone(alone, requests[0]).token_ids.tolist(),
        draft_alone(alone, requests[2]).token_ids.tolist(),
    ]
    monkeypatch.undo()
    # the KV of the failed one is not used again
    again = scheduler.submit(requests[1])
    assert answers(scheduler, [again]) == [draft_alone(alone, requests[1]).token_ids.tolist()]


@pytest.mark.parametrize("call", ["begin", "prefill", "_verify_suggested", "_decode", "forget", "length"])
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
        if failing and rng.random() < 0.3:
            raise ZeroDivisionError
        return work(*arguments)

    monkeypatch.setattr(engine, call, broken)
    scheduler = run()
    scheduler.start()
    texts = {name: prompt(i, rng.randrange(1, 20)) for i, name in enumerate("abcdef")}
    answered = []
    with structlog.testing.capture_logs() as logs:
        for turn in range(20):  # of fewer, all may fail
            failing = turn < 18
            requests = []
            for name in rng.sample("abcdef", k=3):
                texts[name] = texts[name] + prompt(rng.randrange(99), rng.randrange(1, 9))
                request = ask(name, texts[name], rng.randrange(1, 6))
                right = draft_alone(alone, request).token_ids.tolist()[: rng.randrange(5)]
                requests.append(replace(request, suggested=right))
                if call == "forget":
                    scheduler.forget(name)
            tickets = [scheduler.submit(request) for request in requests]
            for ticket, request in zip(tickets, requests, strict=True):
                scheduler.wait(ticket)
                assert not ticket.busy
                if ticket.error is None:
                    assert ticket.draft.token_ids.tolist() == draft_alone(alone, request).token_ids.tolist()
                    answered.append(failing)
                else:
                    assert isinstance(ticket.error, ModelError)
                    assert failing
    assert answered.count(False) == 6, "all of the last turns"
    assert not scheduler.stopped
    logged = [entry for entry in logs if "failed unexpectedly" in entry["event"]]
    assert len(logged) == scheduler.failures > 0
    assert call == "length" or answered.count(True) > 0


def test_busy_has_done_nothing(
    engine: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts of more sessions than may be read at a time: the last is turned away untouched."""
    gate = threading.Event()
    prefill = engine.prefill

    def held(job: Job, limit: int = 1 << 30) -> None:
        assert gate.wait(PATIENT)
        prefill(job, limit)

    monkeypatch.setattr(engine, "prefill", held)
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


def test_invalid_settings_are_refused(engine: DraftEngine, tiny_model: Path) -> None:
    for settings in ({"queue": 0}, {"busy_after_seconds": -1.0}, {"busy_after_seconds": float("nan")}):
        with pytest.raises(InvalidConfigError, match="must be"):
            Scheduler(engine, **settings)  # type: ignore[arg-type]  # as typed there
    with pytest.raises(InvalidConfigError, match="batch_width"):
        DraftEngine(tiny_model, SETTINGS, batch_width=-1)


def test_suggestions_that_take_longer_than_the_timeout_are_not_verified(
    engine: DraftEngine, alone: DraftEngine, run: Callable[..., Scheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another token may still come in time."""
    verified: list[Job] = []
    verify = engine._verify_suggested
    monkeypatch.setattr(engine, "_verify_suggested", lambda job: (verified.append(job), verify(job)))
    engine.costs = BatchCosts({1: 1e-6}, 2 * PATIENT, 1)
    request = ask("a", prompt(4, 2), 5)
    plain = draft_alone(alone, request).token_ids.tolist()
    with_suggestions = replace(request, suggested=plain[:3])
    scheduler = run()
    scheduler.start()
    for timeout, times in ((PATIENT, 0), (0.0, 1)):
        [tokens] = answers(scheduler, [scheduler.submit(with_suggestions, timeout)])
        assert tokens == plain
        assert len(verified) == times
