"""Failures of requests in shared batches: the other generations are unaffected."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc.core import AcceptanceTable
from suffixsvc.errors import (
    InvalidConfigError,
    InvalidInputError,
    InvalidTokensError,
    LimitExceededError,
    ModelError,
)
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.generation import Request, Result, StepRecord
from suffixsvc_driver.decode.requests import Failure
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.settings import GREEDY
from suffixsvc_driver.targets.llama.context import LlamaContext, Part
from suffixsvc_driver.targets.parallel import ParallelLlama
from support.exactness_parallel import check_parallel
from support.layers import ScriptedLayer, chain
from support.parallel_runs import CARELESS, LANES, alone
from support.recorded_runs import Stepped, generate_many


def test_a_failed_request_does_not_affect_others(tiny: ParallelLlama) -> None:
    """A prompt that is too long, empty or outside the vocabulary, layers of the same name, and callbacks
    that raise: the other requests generate what they generate alone."""
    rng = np.random.default_rng(11)
    prompts = [rng.integers(0, 256, size=12).tolist() for _ in range(4)]
    expected = alone(tiny, prompts, [24] * 4, GREEDY)
    calls = 0

    def angry(written: object) -> bool:
        nonlocal calls
        calls += 1
        if calls > 3:
            raise ValueError("not today")
        return False

    def upset(record: StepRecord) -> None:
        raise KeyError(record.start)

    good = [Request(p, (), 24) for p in prompts]
    layer = ScriptedLayer(lambda text, budget: chain([1, 2]))
    bad = [
        Request([5] * 513),
        Request([]),
        Request([1, tiny.vocab_size]),
        Request([1, 2], [layer, layer]),
        Request([1, 2], max_tokens=-1),
        Request(prompts[0], (), 24, stop=angry),
        Request(prompts[1], (), 24, on_step=upset),
    ]
    mixed = [bad[0], good[0], bad[5], good[1], *bad[1:5], good[2], bad[6], good[3]]
    tiny.forget()
    run = generate_many(tiny, mixed, curve=CARELESS)
    assert [r.token_ids for r in run.results] == [e.token_ids for e in expected]
    errors = [o.error for o in run.outcomes if isinstance(o, Failure)]
    assert [type(e) for e in errors] == [
        LimitExceededError, ValueError, InvalidTokensError, InvalidTokensError,
        InvalidConfigError, InvalidInputError, KeyError,
    ]  # fmt: skip
    assert [isinstance(o, Failure) for o in run.outcomes] == [r in bad for r in mixed]
    report = check_parallel(tiny, run)
    assert report.same_shapes_exact, report.describe()
    # all lanes are free again
    assert len(generate_many(tiny, good, curve=CARELESS).results) == 4


def test_a_failed_batch_ends_its_requests(tiny: ParallelLlama, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(12)
    prompts = [rng.integers(0, 256, size=12).tolist() for _ in range(5)]
    expected = alone(tiny, prompts, [10] * 5, GREEDY)
    real = LlamaContext.decode_parts
    calls = 0

    def fails_once(context: LlamaContext, parts: list[Part]) -> list[int]:
        nonlocal calls
        offsets = real(context, parts)
        calls += 1
        if calls == 4:
            raise ModelError("llama_decode failed", expected=0, got=-3)
        return offsets

    monkeypatch.setattr(LlamaContext, "decode_parts", fails_once)
    run = generate_many(tiny, [Request(p, (), 10) for p in prompts], curve=CARELESS)
    failed = [isinstance(o, Failure) for o in run.outcomes]
    assert failed == [True, True, True, False, False]
    assert [r.token_ids for r in run.results] == [e.token_ids for e in expected[3:]]


def test_a_target_closed_while_generating(tiny_model: Path) -> None:
    target = ParallelLlama(tiny_model, LANES)

    def close(record: StepRecord) -> None:
        target.close()

    requests = [Request([n], (), 20, on_step=close if n == 1 else None) for n in range(5)]
    run = generate_many(target, requests, curve=CARELESS)
    errors = [o.error for o in run.outcomes if isinstance(o, Failure)]
    assert len(errors) == 5
    assert all(isinstance(e, ModelError) and "closed" in str(e) for e in errors)


@pytest.mark.parametrize("where", ["while proposing", "in the batch", "after the batch"])
def test_a_batch_is_observed_whichever_generation_fails(tiny: ParallelLlama, where: str) -> None:
    """The first generation of a batch observed its seconds, so nothing was learned if that one failed;
    and the base width was computed before all had proposed, so if another one failed then, a batch
    with a draft counted as one without. Now the loop observes each batch once, with its width and its
    width without drafts."""
    seen: list[tuple[int, int]] = []

    class Watching(LiveCurve):
        def observe(self, width: int, seconds: float, base: int = 1) -> None:
            if seconds:
                seen.append((width, base))

    class FailingTable(AcceptanceTable):
        calls = 0

        def calibrate(self, raw: Sequence[float], depths: Sequence[int]) -> list[float]:
            self.calls += 1
            if self.calls > 3:
                raise ArithmeticError
            return super().calibrate(raw, depths)

    class Failing(Calibrator):
        def __init__(self) -> None:
            super().__init__()
            self.failing = FailingTable()

        def table(self, layer: str) -> AcceptanceTable:
            return self.failing

    calls = 0

    def angry(written: object) -> bool:
        nonlocal calls
        calls += 1
        if calls > 4:
            raise ValueError("not today")
        return False

    def upset(record: StepRecord) -> None:
        if record.start > 14:
            raise KeyError(record.start)

    def layers() -> list[ScriptedLayer]:
        return [ScriptedLayer(lambda text, budget: chain([1, 2][:budget]))]

    first = {
        "while proposing": Request([5] * 12, layers(), 24, calibrator=Failing()),
        "in the batch": Request([5] * 12, layers(), 24, stop=angry),
        "after the batch": Request([5] * 12, layers(), 24, on_step=upset),
    }[where]
    ticks = iter(range(10**6))
    requests = [first, *(Request([n] * 12, layers(), 24) for n in (6, 7))]
    run = generate_many(tiny, requests, curve=Watching(CARELESS), clock=lambda: float(next(ticks)))
    assert [isinstance(outcome, Failure) for outcome in run.outcomes] == [True, False, False]
    batches = [o.steps for o in run.operations if isinstance(o, Stepped)]
    widths = [(sum(1 + len(drafted) for _, drafted, _ in steps), len(steps)) for steps in batches]
    assert len({lanes for _, lanes in widths}) > 1
    assert any(width > lanes for width, lanes in widths)
    assert seen == widths


def test_an_element_that_is_no_request_fails_alone(tiny: ParallelLlama) -> None:
    """None among the requests ended them: the requests after it were silently dropped."""
    requests: list[Any] = [Request([1, 2], (), 4), None, Request([3, 4], (), 4), "x"]
    run = generate_many(tiny, requests, curve=CARELESS)
    assert [isinstance(outcome, Result) for outcome in run.outcomes] == [True, False, True, False]
    errors = [outcome.error for outcome in run.outcomes if isinstance(outcome, Failure)]
    assert all(isinstance(error, InvalidInputError) for error in errors)
    assert [str(error) for error in errors] == [
        "requests[1] must be a Request; got NoneType",
        "requests[3] must be a Request; got str",
    ]


def test_an_iterator_that_raises_loses_no_result(tiny: ParallelLlama) -> None:
    """An iterator that raised discarded the results of all earlier requests. It is the last outcome."""

    def some() -> Iterator[Request]:
        for first in range(5):  # more than there are lanes
            yield Request([first, 2], (), 4)
        raise KeyError("no more")

    run = generate_many(tiny, some(), curve=CARELESS)
    assert [len(result.token_ids) for result in run.results] == [4] * 5
    last = run.outcomes[-1]
    assert isinstance(last, Failure)
    assert isinstance(last.error, KeyError)
    assert len(run.outcomes) == 6
    assert len(generate_many(tiny, [Request([1, 2], (), 4)], curve=CARELESS).results) == 1
