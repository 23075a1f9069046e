"""`bench decode`: pairs and intervals, what runs in which order, other programs' words, costs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc.errors import InvalidCostError, InvalidInputError, ModelError
from suffixsvc_bench.decode.figures import ratio_against, ratio_of, row_of
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.pricing.supplied_costs import (
    ASSUMED,
    SHIPPED_COSTS,
    read_supplied_costs,
    replay_at_costs,
    supplied_costs_heading,
)
from suffixsvc_bench.decode.tables import priced_grid
from suffixsvc_bench.decode.variants.best import Best, best_of, write_best
from suffixsvc_bench.decode.variants.programs import parse_statistics
from suffixsvc_bench.decode.variants.variants import settings_for
from suffixsvc_bench.decode.workload.jobs import AnsweredJob, Job
from suffixsvc_bench.decode.workload.prepared import PreparedAnswers
from suffixsvc_bench.speculation.model_fixture import FixtureOptions
from suffixsvc_bench.speculation.paired import Outcome, Pair
from suffixsvc_driver.profile.settings_file import read_settings
from suffixsvc_driver.sampling.settings import GREEDY
from suffixsvc_driver.settings.driver_config import Controller, LayerKind, Policy
from suffixsvc_driver.settings.model_class import ModelClass


def pair(ours: tuple[int, float], plain: tuple[int, float], job: str = "a") -> Pair:
    return Pair(job, "agent", Outcome(*ours), Outcome(*plain))


# -- figures


def test_the_ratio_is_of_the_sums_and_its_interval_holds_it() -> None:
    pairs = [pair((100, 1.0), (100, 2.0)), pair((10, 1.0), (10, 1.0)), pair((50, 1.0), (50, 1.5))]
    ratio = ratio_of(pairs)
    assert ratio.value == pytest.approx((160 / 3.0) / (160 / 4.5))
    assert ratio.low <= ratio.value <= ratio.high
    assert (ratio.median, ratio.pairs) == (1.5, 3)
    assert ratio_of([pair((7, 1.0), (7, 1.3))] * 5).low == pytest.approx(1.3)
    with pytest.raises(ValueError, match="pairs must not be empty"):
        ratio_of([])


def test_the_interval_covers_the_truth() -> None:
    """Of 200 experiments whose ways are 1.2 apart, 95 % intervals hold 1.2 in nearly all."""
    rng = np.random.default_rng(7)
    print("seed 7")
    hit = 0
    for _ in range(200):
        drift = rng.lognormal(0, 0.2, 20)
        noise = rng.lognormal(0, 0.05, (20, 2))
        found = ratio_of(
            [pair((60, d * n[0] / 1.2), (60, d * n[1])) for d, n in zip(drift, noise, strict=True)]
        )
        hit += found.low <= 1.2 <= found.high
    assert hit >= 175


def test_one_variant_over_another_uses_the_same_rounds() -> None:
    ours = [pair((10, 1.0), (10, 2.0), "a"), pair((10, 1.0), (10, 1.0), "b")]
    theirs = [pair((10, 2.0), (10, 2.0), "a"), pair((10, 2.0), (10, 1.0), "b")]
    assert ratio_against(ours, theirs).value == pytest.approx(2.0)
    row = row_of("sql", "variant", ours)
    assert (row.tokens, row.drafted, row.acceptance) == (20, 0, 0.0)


def test_what_is_compared() -> None:
    made = settings_for(
        DecodeOptions(
            (Path("m.gguf"),),
            policies=("expected-gain", "fixed-k", "first-match", "class-k", "adaptive-k"),
            ks=(4, 32),
            layers=("all", "prompt-lookup+suffix"),
        ),
        GREEDY,
        ModelClass.MOE,
    )
    assert [s.name for s in made] == [
        "expected-gain", "expected-gain, prompt-lookup+suffix", "K = 4", "K = 32",
        "K = 4, prompt-lookup+suffix", "K = 32, prompt-lookup+suffix", "adaptive-k", "class-k",
    ]  # fmt: skip
    assert made[1].layers == (LayerKind.PROMPT_LOOKUP, LayerKind.SUFFIX)
    assert made[3].config.policy is Policy.FIRST_MATCH
    assert made[3].config.controller is Controller.FIXED
    for wrong in ({"policies": ("best",)}, {"layers": ("lookup",)}):
        with pytest.raises(InvalidInputError, match="must"):
            settings_for(DecodeOptions((Path("m.gguf"),), **wrong), GREEDY, ModelClass.MOE)  # type: ignore[arg-type]  # mixed values


# -- other programs

LOOKUP = """
encoded   12 tokens in    0.271 seconds, speed:   44.281 t/s
decoded   64 tokens in    1.234 seconds, speed:   51.864 t/s

n_draft      = 8
n_predict    = 64
n_drafted    = 40
t_draft_flat = 0.10 ms
n_accept     = 22
accept       = 55.000%
"""


def test_what_llama_cpp_prints_is_read() -> None:
    assert parse_statistics(LOOKUP) == Outcome(64, 1.234, drafted=40, accepted=22)
    odd = LOOKUP.replace("51.864", "inf").replace("1.234", "nan").replace("55.000%", "-nan%")
    assert parse_statistics(odd.replace("n_drafted    = 40", "n_drafted    = 0")).seconds == 0.0
    assert parse_statistics(odd).speed == 0.0
    with pytest.raises(ModelError, match="must contain statistics"):
        parse_statistics("error: cannot load model")


# -- costs


def test_prices_that_come_with_the_package_can_be_read() -> None:
    assert {"gpu", "96-cores"} <= set(SHIPPED_COSTS)
    for name in SHIPPED_COSTS:
        costs = read_supplied_costs(name)
        assert costs.about.startswith(ASSUMED), "none of them was measured"
        assert costs.curve.seconds_per_step > costs.draft_token > 0


def test_results_at_assumed_prices_say_so(tmp_path: Path) -> None:
    """The costs of 96 cores were fitted to a speedup of 11, and figures at them read as if they confirmed
    it."""
    assert "fitted to a headline" in read_supplied_costs("96-cores").about
    assert supplied_costs_heading("gpu", read_supplied_costs("gpu").about) == "At the assumed prices of gpu"
    data = json.loads(SHIPPED_COSTS["gpu"].read_text())
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(data | {"assumed": False, "about": "a machine of mine"}))
    assert supplied_costs_heading("mine", read_supplied_costs(path).about) == "At the prices of mine"
    assert read_supplied_costs(path).about == "a machine of mine"


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"format": "x"}, "must be a file of prices"),
        ({"target": 3}, "target must be a table"),
        ({"target": {"seconds_per_step": 0, "cost_per_token": 0.1, "max_width": 8}}, "above 0"),
        ({"target": {"seconds_per_step": 1, "costs": [0, 2]}}, r"costs\[1\] must be 1"),
        ({"suffix": {"seconds_per_ask": "1"}}, "finite number"),
        ({"draft_model": {"seconds_per_token": -1}}, "finite number"),
        ({"draft_model": {}}, "seconds_per_token"),
        ({"draft_model": {"second_per_token": 1}}, "keys of draft_model must be known"),
        ({"target": {"seconds_per_step": 1, "cost_per_tokens": 0.1}}, "keys of target must be known"),
        ({"target": {"seconds_per_step": 1, "max_width": 8}}, "costs, or cost_per_token"),
        ({"target": {"seconds_per_step": 1, "cost_per_token": 0.1}}, "costs, or max_width"),
        ({"suffix": {}}, "seconds_per_ask"),
        ({"assumed": "yes"}, "true or false"),
    ],
)
def test_invalid_prices(tmp_path: Path, change: dict[str, Any], match: str) -> None:
    data = json.loads(SHIPPED_COSTS["gpu"].read_text())
    path = tmp_path / "cost.json"
    path.write_text(json.dumps(data | change))
    with pytest.raises(InvalidCostError, match=match):
        read_supplied_costs(path)
    with pytest.raises(InvalidCostError, match="96-cores or gpu"):
        read_supplied_costs("tpu")


def test_a_text_that_is_known_costs_what_the_curve_says() -> None:
    """The same answer twice: the second time it is drafted whole, at one wide step."""
    text = tuple(np.random.default_rng(3).integers(0, 500, 60).tolist())
    job = Job("j", "agent", (1, 2, 3), 60)
    costs = read_supplied_costs("gpu")
    settings = settings_for(
        DecodeOptions((Path("m.gguf"),), policies=("expected-gain", "fixed-k"), ks=(4,), layers=("all",)),
        GREEDY,
        ModelClass.MOE,
    )
    cold = replay_at_costs("w", [AnsweredJob(job, text)], [], settings, costs, 512, frozenset(), None)
    warm = replay_at_costs(
        "w", [AnsweredJob(job, text)], [AnsweredJob(job, text)] * 3, settings, costs, 512, frozenset(), None
    )
    assert [row.setting for row in warm] == ["expected-gain", "K = 4"]
    assert cold[0].speedup == pytest.approx(1.0, abs=0.02)
    assert warm[0].speedup > 10
    assert warm[0].speedup > warm[1].speedup > 2
    assert warm[0].by_layer["suffix"] > 50
    grid = priced_grid([{name: getattr(warm[0], name) for name in warm[0].__dataclass_fields__}])
    assert grid.rows[0][1] == "expected-gain"


# -- the best of them


def ways(**seconds: Sequence[float]) -> dict[str, list[Pair]]:
    """Of each way, the seconds its answers took; plain took 1."""
    return {name: [pair((10, each), (10, 1.0)) for each in taken] for name, taken in seconds.items()}


BOTH = {
    setting.name: setting
    for setting in settings_for(
        DecodeOptions(
            (Path("m.gguf"),), policies=("expected-gain", "fixed-k", "plain"), ks=(8,), layers=("all",)
        ),
        GREEDY,
        ModelClass.MOE,
    )
}


def test_the_first_setting_is_the_best_unless_another_one_is_faster_for_sure() -> None:
    gain, eight = "expected-gain", "K = 8"
    close = {"sql": {gain: ways(a=[0.8, 0.9, 0.7])["a"], eight: ways(a=[0.75, 0.95, 0.65])["a"]}}
    found = best_of(close, BOTH)
    assert found is not None
    assert found.setting.name == gain
    assert found.mean == pytest.approx(3 / 2.4)
    sure = {
        "sql": {gain: ways(a=[0.8, 0.9])["a"], eight: ways(a=[0.4, 0.4])["a"]},
        "chat": {gain: ways(a=[1.0, 1.0])["a"], eight: ways(a=[0.9, 0.8])["a"]},
    }
    found = best_of(sure, BOTH)
    assert found is not None
    assert found.setting.name == eight
    assert found.mean == pytest.approx((1 / 0.4 * 2 / 1.7) ** 0.5)
    assert "K = 8: 1.7" in str(found)


def test_plain_decoding_is_never_the_best_setting() -> None:
    fast = ways(a=[0.5, 0.5])["a"]
    slow = ways(a=[1.1, 1.1])["a"]
    measured = {"chat": {"plain, again": fast, "llama-server plain": fast, "expected-gain": slow}}
    found = best_of(measured, BOTH)
    assert found is not None
    assert found.setting.name == "expected-gain"
    assert best_of({"chat": {"llama-server plain": fast}}, BOTH) is None
    assert best_of({}, BOTH) is None


def test_the_best_setting_is_written_and_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "best.toml"
    fixture = FixtureOptions(Path("target.gguf"), None, 2, 1024, 16)
    write_best(path, Best(BOTH["K = 8"], 1.25), fixture)
    assert "K = 8: 1.25 times plain decoding" in path.read_text()
    kept = read_settings(path)
    assert kept.driver.controller is Controller.FIXED
    assert (kept.driver.k_start, kept.target.threads, kept.target.max_width) == (8, 2, 16)
    assert not kept.draft_model.enabled


# -- what was prepared


def test_prepared_answers_are_written_once_and_belong_to_their_model(tmp_path: Path) -> None:
    answered: list[str] = []

    def write(job: Job) -> list[int]:
        answered.append(job.key)
        return [7, 8]

    path = tmp_path / "prepared.json"
    first, second = Job("j0", "agent", (1, 2), 8), Job("other", "agent", (9,), 8)
    kept = PreparedAnswers(path, "model-a", write)
    assert (kept(first), kept(first), kept(second)) == ([7, 8], [7, 8], [7, 8])
    assert answered == ["j0", "other"]
    again = PreparedAnswers(path, "model-a", write)
    assert again(first) == [7, 8]
    assert answered == ["j0", "other"]
    with pytest.raises(InvalidInputError, match="answers of the same model"):
        PreparedAnswers(path, "model-b", write)
    path.write_text("[]")
    with pytest.raises(InvalidInputError, match="must contain prepared answers"):
        PreparedAnswers(path, "model-a", write)
