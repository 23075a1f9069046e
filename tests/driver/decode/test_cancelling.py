"""Requests cancelled at any time, also in the middle of their prompt: the others generate what they generate
alone, and so does what runs on the lane next."""

from __future__ import annotations

import random
import threading
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc_driver.decode.generation import Request, Result, StepRecord, curve_for
from suffixsvc_driver.decode.requests import Failure, Outcome
from suffixsvc_driver.decode.running_batch import Running, RunningBatch
from suffixsvc_driver.decode.scheduler import Scheduler, Ticket
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.targets.single import LlamaTarget
from support.parallel_runs import CARELESS, LANES, alone, some_requests
from support.serving import PATIENCE_S, eventually
from support.targets import same_texts
from support.tiny_kinds import KINDS

SAMPLED = Sampling(temperature=1.0, top_k=40, seed=5)
FEW = replace(LANES, batch_size=36)  # prompts of several batches


def batch_of(target: ParallelLlama) -> RunningBatch:
    target.forget()
    return RunningBatch(target, DriverConfig(), curve_for(target, CARELESS), Calibrator(), lambda: 0.0)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["llama", "gemma", "mamba", "lfm2"])
def test_lanes_of_cancelled_requests_are_usable_at_once(
    tmp_path: Path, kind: str, sampling: Sampling
) -> None:
    """Random additions and cancellations between steps; texts share prefixes, and drafts are hostile."""
    path = KINDS[kind](tmp_path / f"{kind}.gguf", seed=1)
    with ParallelLlama(path, FEW) as target:
        requests, expected = some_requests(np.random.default_rng(21), target, 20, sampling)
        rng = random.Random(22)
        batch = batch_of(target)
        outcomes: dict[int, Outcome] = {}
        running: dict[int, Running] = {}
        waiting = list(range(len(requests)))
        in_prompt = in_text = 0
        while waiting or not batch.idle:
            while waiting and not batch.full and rng.random() < 0.7:
                at = waiting.pop()
                running[at] = batch.add(requests[at], lambda outcome, at=at: outcomes.update({at: outcome}))
            batch.advance()
            for at, each in list(running.items()):
                if at in outcomes:
                    del running[at]
                elif rng.random() < 0.08:
                    begun = each.filling.begun and each.filling.missing > 0
                    in_prompt, in_text = in_prompt + begun, in_text + bool(each.generation.emitted)
                    batch.cancel(each)
                    assert at in outcomes
                    assert not batch.full
                    batch.cancel(each)  # twice is once
        assert in_prompt > 0
        assert in_text > 1
        assert sorted(outcomes) == list(range(len(requests)))
        whole, theirs = [], []
        for at, outcome in outcomes.items():
            if isinstance(outcome, Failure):
                assert isinstance(outcome.error, CancelledError)
                continue
            truth = expected[at]
            if outcome.finish is FinishReason.CANCELLED:  # compared as if it had ended there
                cut = truth.token_ids[: len(outcome.token_ids)]
                truth = replace(truth, token_ids=cut, finish=FinishReason.CANCELLED)
            whole.append(outcome)
            theirs.append(truth)
        assert len(whole) > 8
        with LlamaTarget(target.model, replace(target.settings, slots=1, branches=0)) as solo:
            same_texts(solo, whole, theirs)


@pytest.mark.parametrize("seed", range(3))
def test_cancellations_race_with_ends(tiny_model: Path, seed: int) -> None:
    """Four threads submit and cancel at random times: each request has one outcome, and none is wrong."""
    print("seed", seed)
    with ParallelLlama(tiny_model, FEW) as tiny:
        prompts = [random.Random(n).choices(range(256), k=n % 60 + 1) for n in range(40)]
        expected = alone(tiny, prompts, [n % 7 + 1 for n in range(40)], GREEDY)
        outcomes: list[tuple[int, Outcome]] = []

        def client(scheduler: Scheduler, own: range) -> None:
            rng = random.Random(f"{seed} {own.start}")
            tickets: list[Ticket] = []
            for at in own:
                request = Request(prompts[at], (), at % 7 + 1)
                tickets.append(
                    scheduler.submit(
                        request, lambda outcome, at=at: outcomes.append((at, outcome)), (f"n{own.start}",)
                    )
                )
                if rng.random() < 0.5:
                    scheduler.cancel(rng.choice(tickets))
                if rng.random() < 0.3:
                    threading.Event().wait(rng.random() / 50)

        with Scheduler(batch_of(tiny)) as scheduler:
            clients = [threading.Thread(target=client, args=(scheduler, range(k, 40, 4))) for k in range(4)]
            for each in clients:
                each.start()
            for each in clients:
                each.join()
            eventually(lambda: scheduler.load == (0, 0), "no request is left")
        assert Counter(at for at, _ in outcomes) == Counter(range(40))
        for at, outcome in outcomes:
            if isinstance(outcome, Result):
                assert outcome.token_ids == expected[at].token_ids[: len(outcome.token_ids)]
                assert outcome.finish in (FinishReason.CANCELLED, expected[at].finish)
            else:
                assert isinstance(outcome.error, CancelledError)


def test_a_callback_cancels_submits_and_closes(tiny_model: Path) -> None:
    """Callbacks run in the scheduler's thread, which must not wait for itself."""
    ended = threading.Event()
    outcomes: dict[str, Outcome] = {}
    tickets: list[Ticket] = []

    def first_step(record: StepRecord) -> None:
        scheduler.cancel(tickets[0])

    def first_done(outcome: Outcome) -> None:
        outcomes["first"] = outcome
        scheduler.submit(Request([3, 4], (), 300, on_step=lambda _: scheduler.close()), second_done)

    def second_done(outcome: Outcome) -> None:
        outcomes["second"] = outcome
        ended.set()

    with ParallelLlama(tiny_model, FEW) as tiny:
        gate = threading.Event()
        scheduler = Scheduler(batch_of(tiny))
        scheduler.submit(Request([1], (), 1, stop=lambda _: gate.wait(PATIENCE_S)), lambda _: None)
        tickets.append(scheduler.submit(Request([1, 2], (), 300, on_step=first_step), first_done))
        gate.set()
        assert ended.wait(PATIENCE_S)
        scheduler.close()
    for outcome in outcomes.values():
        assert isinstance(outcome, Result)
        assert outcome.finish is FinishReason.CANCELLED
        assert len(outcome.token_ids) == 1


def test_a_callback_that_exits_ends_no_request_that_waits(tiny_model: Path) -> None:
    """SystemExit in a callback ended the thread, and the requests that waited never ended."""

    def leave(record: StepRecord) -> None:
        raise SystemExit

    outcomes: dict[int, Outcome] = {}
    done = threading.Event()

    def of(at: int, outcome: Outcome) -> None:
        outcomes[at] = outcome
        if len(outcomes) == 6:
            done.set()

    with ParallelLlama(tiny_model, FEW) as tiny, Scheduler(batch_of(tiny)) as scheduler:
        gate = threading.Event()
        scheduler.submit(
            Request([9], (), 2, on_step=lambda _: gate.wait(PATIENCE_S)), lambda outcome: of(0, outcome)
        )
        for at in range(1, 6):
            request = Request([at, 2], (), 4, on_step=leave if at == 1 else None)
            scheduler.submit(request, lambda outcome, at=at: of(at, outcome))
        gate.set()
        assert done.wait(PATIENCE_S)
    assert isinstance(outcomes[1], Failure)
    assert isinstance(outcomes[1].error, RuntimeError)
    assert all(isinstance(outcomes[at], Result) for at in range(3, 6)), outcomes
