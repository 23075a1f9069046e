"""The first twenty calls on an empty memory, with prices that are guessed or were measured at a start.

Recorded and made-up answers are replayed with the real driver over the real engine, and a simulated clock
adds the cost of steps and of queries. The results do not depend on the machine.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from test_shared_evidence import (
    A_TWENTIETH,
    EOG,
    STEEP,
    TWO_CORES,
    VOCAB,
    CountingClock,
    TimedNamespace,
    recorded,
    written,
)

import suffixsvc_bench.workloads
from suffixsvc import SuffixCache
from suffixsvc_bench.decode.workload.jobs import AnsweredJob
from suffixsvc_bench.decode.workload.replay_target import ReplayTarget, replay_call
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import GUESSED, STORED, LiveCurve
from suffixsvc_driver.settings.driver_config import DriverConfig

CALLS, TOKENS = 20, 96
#: of plain decoding
BOUND = 1.02


def of_words(exponent: float) -> list[AnsweredJob]:
    """Words without an order, some far more frequent than others: what follows a match is chance."""
    rng = np.random.default_rng(2)
    share = 1.0 / np.arange(1, 3001) ** exponent
    texts = rng.choice(len(share), size=(2 * CALLS, TOKENS), p=share / share.sum()).tolist()
    return [written(str(i), "agent", texts[2 * i], texts[2 * i + 1]) for i in range(CALLS)]


def of_files() -> list[AnsweredJob]:
    """Pieces of a text that has little in common with itself: the tasks of the bench."""
    ids: dict[str, int] = {}
    folder = Path(suffixsvc_bench.workloads.__file__).with_name("tasks")
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.toml")))
    tokens = [ids.setdefault(word, len(ids)) for word in re.findall(r"\w+|[^\w\s]", text)]
    step = len(tokens) // CALLS
    pieces = [tokens[at : at + 2 * TOKENS] for at in range(0, CALLS * step, step)]
    return [written(str(i), "agent", each[:TOKENS], each[TOKENS:]) for i, each in enumerate(pieces)]


def of_agents() -> list[AnsweredJob]:
    return recorded("planner", "reporter", "sql-writer").warmup[:CALLS]


def cold(calls: Sequence[AnsweredJob], curve: CostCurve, prices: LiveCurve) -> tuple[float, float]:
    """Cost of the verified tokens, and seconds with those of the queries, relative to plain decoding."""
    clock = CountingClock()
    target = ReplayTarget(VOCAB, EOG, curve, clock)
    with SuffixCache() as cache:
        namespace = TimedNamespace(cache.namespace("empty"), clock)
        speculator = Speculator(target, prices, namespace, clock=clock)  # type: ignore[arg-type]  # all it uses
        results = [replay_call(call, target, speculator, DriverConfig()).result for call in calls]
    tokens = sum(len(result.token_ids) for result in results)
    cost = sum(curve.cost(len(step.token_ids)) for result in results for step in result.steps)
    return cost / tokens, clock.now / (tokens * curve.seconds_per_step)


def measured(curve: CostCurve) -> LiveCurve:
    """The prices that a server has at its start."""
    few = {width: curve.cost(width) for width in (1, 2, 4, 8, 16, 32)}
    return LiveCurve(CostCurve.from_samples(few, seconds_per_step=curve.seconds_per_step), STORED)


@pytest.mark.parametrize("curve", [TWO_CORES, STEEP, A_TWENTIETH], ids=["two-cores", "steep", "a-twentieth"])
@pytest.mark.parametrize(
    "calls",
    [of_words(1.1), of_words(1.5), of_files(), of_agents()],
    ids=["rare-words", "frequent-words", "files", "agents"],
)
def test_the_first_calls_cost_no_more_than_plain_decoding(calls: list[AnsweredJob], curve: CostCurve) -> None:
    assert len(calls) >= 18
    guessed = [LiveCurve(CostCurve.guessed(32), GUESSED)] if curve is STEEP else []
    for prices in (measured(curve), *guessed):
        cost, seconds = cold(calls, curve, prices)
        assert cost <= BOUND
        assert seconds <= BOUND
