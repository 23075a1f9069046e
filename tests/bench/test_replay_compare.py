"""Comparison of drafting methods: counters, costs, warm-up, sweeps, calibration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc.types import Draft, TokenArray
from suffixsvc_bench.methods import Method, MethodSpec, Settings, known_methods
from suffixsvc_bench.methods.base import guess
from suffixsvc_bench.replay.compare import NamedCost, Plan, compare
from suffixsvc_bench.replay.grids import summary_grids
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import replay_method
from suffixsvc_bench.replay.stats import Calibration, ReliabilityBin, pooled, reliability, total_cost
from suffixsvc_bench.replay.traces import Trace
from suffixsvc_bench.report.statistics import geometric_mean


def ids(tokens: list[int]) -> TokenArray:
    return np.array(tokens, np.int32)


def call(response: list[int], prompt: list[int] | None = None) -> Call:
    return Call("agent", "s", ids(prompt or []), ids(response))


class Counting(Method):
    """Drafts 1, 2, 3 .. as wide as allowed, and counts its calls."""

    made = 0

    def __init__(self, settings: Settings) -> None:
        type(self).made += 1
        self.settings = settings
        self.calls = 0

    def begin(self, prompt: TokenArray, agent: str) -> None:
        self.prompt = prompt

    def draft(self) -> Draft:
        return guess(list(range(1, self.settings.max_draft_tokens + 1)))

    def accept(self, token_ids: TokenArray, accepted: int) -> None:
        pass

    def end(self) -> None:
        self.calls += 1

    def memory_bytes(self) -> int:
        return self.calls


def counting(k: int = 3, cost_aware: bool = False, key: str = "counting", family: str = "") -> MethodSpec:
    return MethodSpec(
        key, key, "for tests", k, Counting, cost_aware=cost_aware, families=(family,) if family else ()
    )


def trace(*calls: Call, warmup: tuple[Call, ...] = ()) -> Trace:
    return Trace("t", Path("t.jsonl"), "code", calls, warmup)


# ----------------------------------------------------------------------------------------------- counting


def test_a_replay_worked_by_hand() -> None:
    # 1 2 3 accepted and the bonus 9; then 1 of 1 2 3 accepted and 5; then 1 2 and the answer ends
    stats = replay_method(Counting(Settings(3, 0.1)), [call([1, 2, 3, 9, 1, 5, 1, 2])])
    assert (stats.steps, stats.tokens, stats.drafted, stats.accepted) == (3, 8, 9, 6)
    assert (stats.steps_with_draft, stats.steps_with_hit) == (3, 3)
    assert stats.widths == {3: 3}
    assert stats.speedup(0.1) == pytest.approx(8 / (3 * 1.3))
    assert stats.speedup([0, 1, 2, 3, 1.5]) == pytest.approx(8 / (3 * 1.5))
    assert stats.rates()["mean_accepted_tokens"] == pytest.approx(8 / 3)


def test_costs_of_steps() -> None:
    assert total_cost({0: 10, 4: 5}, 0.05) == pytest.approx(10 + 5 * 1.2)
    assert total_cost({0: 1, 2: 1}, [0, 1, 1.5, 1.25]) == pytest.approx(1 + 1.25)
    assert total_cost({}, 0.1) == 0
    with pytest.raises(ValueError, match="3 tokens"):
        total_cost({3: 1}, [0, 1, 1.5])


def test_a_prompt_is_cut_to_its_end() -> None:
    method = Counting(Settings(3, 0.1))
    replay_method(method, [call([1], prompt=[5, 6, 7])], prompt_tokens=2)
    assert method.prompt.tolist() == [6, 7]
    replay_method(method, [call([1], prompt=[5, 6, 7])])
    assert method.prompt.tolist() == [5, 6, 7]


def test_a_method_is_replayed_once_for_all_costs_unless_it_is_cost_aware() -> None:
    costs = [NamedCost("0.01", 0.01), NamedCost("0.2", 0.2), NamedCost("curve", [0, 1, 1.5, 2])]
    methods = [counting(k=5), counting(k=2, cost_aware=True, key="priced")]
    (result,) = compare([trace(call([1, 2, 3, 4]))], Plan(methods, costs))
    runs = {(run.method, run.k, run.cost): run for run in result.runs}
    # the curve covers 2 drafted tokens: the wide method is replayed again for it
    expected = {("counting", 5, ""), ("counting", 2, "")}
    assert set(runs) == expected | {("priced", 2, name) for name in ("0.01", "0.2", "curve")}
    assert set(runs["counting", 5, ""].speedups) == {"0.01", "0.2"}
    assert set(runs["priced", 2, "0.2"].speedups) == {"0.2"}
    assert result.run("counting", "curve") is runs["counting", 2, ""]
    assert result.run("counting", "0.01") is runs["counting", 5, ""]
    # 1 2, the bonus 3, and a last step for 4
    assert result.run("counting", "curve").speedups["curve"] == pytest.approx(4 / (2 * 2))  # type: ignore[union-attr] # seen above


def test_the_best_in_hindsight_is_chosen_per_cost() -> None:
    methods = [counting(k=1, key="narrow", family="f"), counting(k=9, key="wide", family="f")]
    plan = Plan(methods, [NamedCost("0.01", 0.01), NamedCost("0.9", 0.9)])
    (result,) = compare([trace(call([1, 2, 3, 9] * 4))], plan)
    for cost, key, other in (("0.01", "wide", "narrow"), ("0.9", "narrow", "wide")):
        best, worse = result.run(key, cost), result.run(other, cost)
        assert best is not None
        assert worse is not None
        assert result.speedup(methods, cost) == best.speedups[cost] > worse.speedups[cost]
    assert result.speedup([], "0.01") is None


def test_the_summary_divides_by_the_best_in_hindsight() -> None:
    family = [counting(k=k, key=f"fixed-{k}", family="arctic") for k in (1, 3, 5, 9)]
    plan = Plan([counting(k=3, cost_aware=True, key="own"), *family], [NamedCost("0.1", 0.1)])
    results = list(compare([trace(call([1, 2, 3, 9] * 4)), trace(call([7, 7]))], plan))
    speedups, relative = summary_grids(results, plan)
    # a family of many shows its first member and its best
    assert speedups.headings == [
        "priced speedup at cost 0.1",
        "own",
        "fixed-1",
        "Arctic, best of 4 in hindsight",
    ]
    own, best = 4 / 1.3, 4 / 1.3
    assert speedups.rows[0][1:] == [f"{own:.3f}", f"{4 / 3 / 1.1:.3f}", f"{best:.3f}"]
    assert speedups.rows[1][1:] == [f"{1 / 1.3:.3f}", f"{1 / 1.1:.3f}", f"{1 / 1.1:.3f}"]
    assert [row[1] for row in relative.rows] == ["1.000", f"{1.1 / 1.3:.3f}"]
    assert relative.summaries[-1] == ["lowest", f"{1.1 / 1.3:.3f}"]


def test_warmup_calls_are_replayed_but_not_counted_and_traces_start_cold() -> None:
    plan = Plan([counting()], [NamedCost("0.1", 0.1)])
    traces = [trace(call([1, 2]), warmup=(call([3]), call([4]))), trace(call([1, 2]))]
    cold = list(compare(traces, plan))
    assert [r.runs[0].rates["memory_bytes"] for r in cold] == [3, 1]
    assert [r.runs[0].rates["calls"] for r in cold] == [1, 1]
    assert cold[0].runs[0].timeline[0][0] == 2  # tokens before the first scored call
    warm = list(compare(traces, Plan([counting()], plan.costs, keep_warm=True)))
    assert [r.runs[0].rates["memory_bytes"] for r in warm] == [3, 4]


def test_an_offline_trained_method_is_not_replayed_over_the_warmup() -> None:
    seen: list[str] = []

    class Student(Method):
        def train(self, texts: Any) -> None:
            seen.append(f"trains {sum(len(text) for text in texts)}")

        def begin(self, prompt: TokenArray, agent: str) -> None:
            seen.append("begins")

        def draft(self) -> Draft:
            return Draft.empty()

        def accept(self, token_ids: TokenArray, accepted: int) -> None:
            pass

        def end(self) -> None:
            pass

        def memory_bytes(self) -> int:
            return 0

    spec = MethodSpec("s", "s", "", 4, lambda _: Student(), trains_offline=True, swept=False)
    call = Call("", "", np.zeros(0, np.int32), np.arange(5, dtype=np.int32))
    for warmup, expected in (((call, call), ["trains 10", "begins"]), ((), [])):
        trace = Trace("t", Path("t"), "prose", [call], list(warmup))
        result = next(compare([trace], Plan([spec], [NamedCost("0.05", 0.05)])))
        assert seen == expected
        assert len(result.runs) == len(expected) // 2
        seen.clear()


def test_our_own_engine_gains_from_a_warm_start() -> None:
    answer = [int(x) for x in np.random.default_rng(3).integers(0, 50_000, 200)]
    plan = Plan([known_methods()["ours-linear"]], [NamedCost("0.05", 0.05)])
    cold, warm = compare([trace(call(answer)), trace(call(answer), warmup=(call(answer),))], plan)
    assert cold.runs[0].rates["mean_accepted_tokens"] < 1.1
    assert warm.runs[0].rates["mean_accepted_tokens"] > 3


def test_a_sweep_compares_widths() -> None:
    (result,) = compare([trace(call([1] * 20))], Plan([counting()], [NamedCost("0.1", 0.1)], sweep=(1, 4)))
    swept = {run.k: run.rates["acceptance_rate"] for run in result.runs if run.sweep}
    assert swept == {1: 1.0, 4: 0.25}


def test_geometric_mean() -> None:
    assert geometric_mean([2, 8]) == pytest.approx(4)
    assert geometric_mean([]) == 0
    assert geometric_mean([1, 0]) == 0


# -------------------------------------------------------------------------------------------- calibration


def test_reliability_of_calibrated_and_of_overconfident_probabilities() -> None:
    rng = np.random.default_rng(5)
    p = rng.random(20_000)
    calibrated = reliability(p, rng.random(20_000) < p)
    assert calibrated is not None
    assert [b.nodes for b in calibrated.bins] == [1000] * 20
    assert calibrated.ece < 0.02
    overconfident = reliability(np.ones(10), [1] * 4 + [0] * 6)
    assert overconfident is not None
    assert overconfident.bins == (ReliabilityBin(1.0, 0.4, 10),)
    assert (overconfident.ece, overconfident.largest_bin_gap) == (pytest.approx(0.6), pytest.approx(0.6))
    assert reliability([], []) is None


def test_equal_probabilities_share_a_bin() -> None:
    found = reliability([0.2] * 50 + [0.9] * 50, [0] * 50 + [1] * 50)
    assert found is not None
    assert [(round(b.predicted, 6), b.observed, b.nodes) for b in found.bins] == [(0.2, 0, 50), (0.9, 1, 50)]
    assert found.ece == pytest.approx(0.15)


def test_calibration_is_of_paths_not_of_single_tokens() -> None:
    calibration = Calibration()
    #              a      b under a   c under a
    calibration.add([-1, 0, 0], [0.5, 0.5, 0.25], [0, 2])
    calibration.add([-1], [float("nan")], [])  # a method without probabilities
    assert len(calibration) == 3
    found = calibration.reliability()
    assert found is not None
    assert {(b.predicted, b.observed) for b in found.bins} == {(0.125, 1), (0.25, 0), (0.5, 1)}


def test_pooled_bins_keep_the_means() -> None:
    bins = [ReliabilityBin(i / 10, i / 20, 100) for i in range(10)]
    points = pooled(bins, 5)
    assert len(points) == 5
    assert points[0] == (pytest.approx(0.05), pytest.approx(0.025))
