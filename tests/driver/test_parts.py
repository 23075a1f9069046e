"""Curves, policies, calibrator, chains, vocabularies, slots: the driver's small pure parts."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import InvalidCostError, VocabularyMismatchError
from suffixsvc.fingerprint import tokenizer_fingerprint
from suffixsvc.types import Draft, DraftSource, Verified
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.chain import common_prefix, valid_draft
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.policy.expected_gain import (
    Choice,
    RunningRate,
    StepParams,
    best_prefix,
    best_query,
    evaluate_prefixes,
)
from suffixsvc_driver.targets.slots import SlotCache
from suffixsvc_models.vocabulary import Vocabulary, check_vocabulary

# -- curves


@pytest.mark.parametrize(
    "costs",
    [(), (0,), (0, 2.0), (0, 1, math.nan), (0, 1, math.inf), (0, 1, -0.1)],
)
def test_invalid_curves(costs: tuple[float, ...]) -> None:
    with pytest.raises(InvalidCostError):
        CostCurve(costs)


def test_an_unmeasured_width_is_not_cheap() -> None:
    curve = CostCurve.from_samples({1: 1.0, 2: 1.9, 4: 2.5, 8: 6.0, 12: 5.0}, seconds_per_step=0.03)
    assert curve.costs == (0, 1, 1.9, 2.5, 2.5, 6, 6, 6, 6, 6, 6, 6, 5)
    assert curve.padded_width(5, 100) == 12
    assert curve.padded_width(5, 11) == 5
    assert curve.padded_width(2, 100) == 2
    assert curve.effective().tolist() == pytest.approx([0, 1, 1.9, 2.5, 2.5, *[5] * 8])
    assert CostCurve.from_json(curve.to_json()) == curve
    assert curve.seconds[:5] == pytest.approx((0, 0.03, 0.057, 0.075, 0.075))
    assert CostCurve.from_seconds(curve.seconds).costs == pytest.approx(curve.costs)
    for wrong in ([], [0.0], [0.0, 0.0], [0.0, float("nan")], [0.0, 0.03, -1.0], [0.0, 0.03, float("inf")]):
        with pytest.raises(InvalidCostError):
            CostCurve.from_seconds(wrong)
    with pytest.raises(InvalidCostError):
        CostCurve.from_samples({2: 1.0})
    for wrong in ({}, {"costs": "abc"}, {"costs": [0, True]}, {"costs": [0, 1], "seconds_per_step": "1"}):
        with pytest.raises(InvalidCostError):
            CostCurve.from_json(wrong)


# -- policies

curves = st.lists(st.floats(0, 20), min_size=1, max_size=20).map(lambda c: CostCurve((0.0, 1.0, *c)))


@given(
    probs=st.lists(st.floats(0, 1), max_size=25),
    curve=curves,
    rate=st.floats(1, 5),
    limit=st.integers(0, 25),
    room=st.integers(1, 25),
    other_tokens=st.integers(0, 6),
    replays=st.booleans(),
    given_tokens=st.integers(0, 4),
)
def test_the_best_prefix_is_the_best(
    probs: list[float],
    curve: CostCurve,
    rate: float,
    limit: int,
    room: int,
    other_tokens: int,
    replays: bool,
    given_tokens: int,
) -> None:
    """Against all prefixes in all widths that hold them."""
    step = StepParams(curve, rate, limit, room, other_tokens, replays)
    costs = [0.1 + 0.05 * (n - given_tokens) for n in range(1, max(len(probs), limit) + 1)]
    evaluated = evaluate_prefixes(probs, step, costs)
    longer = (each for each in evaluated if each.length > given_tokens and each.gain > 0.0)
    choice = max(longer, key=lambda each: each.gain, default=Choice())
    base, best = 1 + other_tokens, 0.0
    widest = min(room + other_tokens, curve.max_width)
    for n in range(given_tokens + 1, min(len(probs), limit) + 1):
        paths = [math.prod(probs[:i]) for i in range(n + 1)]
        again = 0.0
        if replays:
            # tokens 0 .. n - 1 accepted, then a rejected one: the batch and the accepted
            # tokens are recomputed
            failing = [paths[i] * (1 - probs[i]) for i in range(n)]
            again = sum(p * (curve.cost(base + i + 1) - 1) for i, p in enumerate(failing))
        for width in range(base + n, widest + 1):
            if width == base + n or curve.padded_width(base + n, widest) == width:
                cost = curve.costs[width] - curve.cost(base) + again + 0.1 + 0.05 * (n - given_tokens)
                best = max(best, sum(paths[1:]) - rate * cost)
    assert choice.gain == pytest.approx(best)
    assert choice.length < choice.width <= max(1, room)
    assert choice.width + other_tokens <= max(1 + other_tokens, curve.max_width)
    assert choice.length <= min(limit, len(probs))


@given(
    probs=st.lists(st.floats(0, 1), max_size=25),
    curve=curves,
    rate=st.floats(1, 5),
    limits=st.tuples(st.integers(0, 25), st.integers(1, 25), st.integers(0, 6), st.booleans()),
)
def test_evaluated_prefixes_contain_the_best_one(
    probs: list[float], curve: CostCurve, rate: float, limits: tuple[int, int, int, bool]
) -> None:
    step = StepParams(curve, rate, *limits)
    choice = best_prefix(probs, step)
    weighed = list(evaluate_prefixes(probs, step))
    assert max([0.0, *(each.gain for each in weighed)]) == choice.gain
    if choice.length:
        chosen = weighed[choice.length - 1]
        assert (chosen.width, chosen.gain) == (choice.width, choice.gain)


def test_the_widest_step_that_can_pay() -> None:
    assert CostCurve((0, 1, 1.5, 3.5, 3.9, 6.0)).widest_paying == 4
    assert CostCurve((0, 1, 2.0, 3.0)).widest_paying == 1
    assert CostCurve((0, 1)).widest_paying == 1


def test_a_query_must_gain_its_cost() -> None:
    curve = CostCurve.linear(0.1, 16)
    step = StepParams(curve, 1.0, 15, 100)
    free = best_query(1.0, step)
    assert free.length == 15
    assert best_query(1.0, step, cost_per_token=0.95).length == 0
    assert 0 < best_query(0.5, step, cost_per_token=0.05).length < 6
    # after four tokens that are nearly always accepted it gains more than after four that never are
    sure = best_query(0.5, step, after=[0.95] * 4, cost_per_token=0.05)
    vain = best_query(0.5, step, after=[0.05] * 4, cost_per_token=0.05)
    assert sure.length > 4
    assert vain.length == 0


@given(
    acceptance=st.floats(0, 1),
    suggested=st.lists(st.floats(0, 1), max_size=8),
    limit=st.integers(0, 12),
    rate=st.floats(1, 5),
)
def test_suggested_tokens_save_the_passes_in_which_they_agree(
    acceptance: float, suggested: list[float], limit: int, rate: float
) -> None:
    """Against the expectation over the number of suggested tokens that the layer would draft."""
    curve = CostCurve.linear(0.02, 32)
    costs_of_query = {"cost_per_query": 0.1, "cost_per_token": 0.05, "cost_per_read": 0.01}
    choice = best_query(
        acceptance, StepParams(curve, rate, limit, 100), suggested=suggested, **costs_of_query
    )
    best = 0.0
    for n in range(1, limit + 1):
        verified = suggested[: n - 1]  # the pass that verifies them drafts one token more
        passes = 0.0
        for agreed in range(len(verified) + 1):
            here = math.prod(verified[:agreed])
            here *= 1.0 if agreed == len(verified) else 1.0 - verified[agreed]
            passes += here * (n - agreed)
        cost = 0.1 + 0.05 * passes + 0.01 * len(verified) + curve.costs[n + 1] - 1.0
        # where a suggested token is wrong, the layer is right half as often as elsewhere
        probs = [max(acceptance, p + (1.0 - p) * acceptance / 2) for p in suggested[:n]]
        probs += [acceptance] * (n - len(probs))
        best = max(best, sum(math.prod(probs[:i]) for i in range(1, n + 1)) - rate * cost)
    assert choice.gain == pytest.approx(best, abs=1e-9)


def test_the_running_rate_is_never_below_plain_decoding() -> None:
    rate = RunningRate(0.99)
    assert rate.value == 1.0
    for _ in range(5):  # a few good steps are not the long run
        rate.add(8, 2.0)
    assert 1.0 < rate.value < 1.4
    for _ in range(50):
        rate.add(1, 5.0)
    assert rate.value == 1.0
    for _ in range(500):
        rate.add(8, 2.0)
    assert rate.value == pytest.approx(4.0, rel=0.02)


# -- calibration


def calibrated(calibrator: Calibrator, layer: str, raw: float, depth: int) -> float:
    return calibrator.table(layer).calibrate([raw], [depth])[0]


def test_calibration_starts_with_the_raw_probability() -> None:
    assert calibrated(Calibrator(), "any", 0.7, 3) == 0.7


def test_calibration_by_layer_and_raw_probability() -> None:
    calibrator = Calibrator()
    for i in range(400):
        calibrator.table("liar").learn(0.95, 0, False)
        calibrator.table("modest").learn(0.4, 0, i % 10 != 0)
        calibrator.table("deep").learn(0.9, min(i % 2 * 6, 6), i % 2 == 0)
    assert calibrated(calibrator, "liar", 0.95, 0) < 0.05
    assert calibrated(calibrator, "liar", 0.6, 8) < 0.1, (
        "other raw probabilities of an overconfident layer are lowered, too"
    )
    assert calibrated(calibrator, "modest", 0.4, 0) == pytest.approx(0.9, abs=0.05)
    assert calibrated(calibrator, "deep", 0.9, 0) > 0.9 > 0.2 > calibrated(calibrator, "deep", 0.9, 6)
    assert calibrated(calibrator, "other", 0.95, 0) == 0.95
    for _ in range(300):
        calibrator.table("liar").learn(0.95, 0, True)
    assert calibrated(calibrator, "liar", 0.95, 0) > 0.7


# -- chains


def test_the_most_probable_path_of_a_tree() -> None:
    draft = Draft(
        np.array([10, 20, 30, 40, 50], np.int32),
        np.array([-1, -1, 1, 1, 3], np.int32),
        np.array([0.4, 0.6, 0.1, 0.5, 0.9], np.float32),
        np.array([1, 2, 2, 3, 77], np.uint8),
        np.zeros(5, np.int32),
    )
    chain = valid_draft(draft, 10, 100, DraftSource.CORPUS)
    assert chain.token_ids == (20, 40, 50)
    assert chain.sources == (DraftSource.NAMESPACE, DraftSource.CORPUS, DraftSource.CORPUS)
    assert not chain.junk
    assert valid_draft(draft, 2, 100, DraftSource.CORPUS).token_ids == (20, 40)
    assert valid_draft(draft, 10, 45, DraftSource.CORPUS).token_ids == (20, 40)


class Odd(int):
    """An int with code of its own."""

    def __eq__(self, other: object) -> bool:
        raise ArithmeticError

    __hash__ = int.__hash__


class Heavy(float):
    def __float__(self) -> float:
        raise ArithmeticError


class Columns:
    """A draft that is none of numpy's arrays."""

    def __init__(self, tokens: list[Any], parents: list[Any], probs: list[Any], sources: list[Any]) -> None:
        for name, values in {
            "token_ids": tokens,
            "parents": parents,
            "probs": probs,
            "sources": sources,
        }.items():
            setattr(self, name, self.Column(values))

    class Column:
        def __init__(self, values: list[Any]) -> None:
            self.tolist = lambda: values


@pytest.mark.parametrize("trees", [False, True])
@pytest.mark.parametrize(
    ("tokens", "probs"),
    [
        ([Odd(3), 4, 5], [0.5, 0.5, 0.5]),
        ([3, 4, 5], [Heavy(0.5), 0.5, 0.5]),
        ([True, 4, 5], [1, False, 0.5]),
        ([3, 4, 10**400], [0.5, math.nan, 0.5]),
    ],
)
def test_no_content_of_an_answer_raises(tokens: list[Any], probs: list[Any], trees: bool) -> None:
    found = valid_draft(Columns(tokens, [-1, -1, 0], probs, [1] * 3), 9, 100, DraftSource.CORPUS, trees=trees)
    assert {type(token) for token in found.token_ids} <= {int}
    assert {type(p) for p in found.raw_probs} <= {float}
    assert all(0 <= p <= 1 for p in found.raw_probs)


# -- vocabularies


def vocabulary(texts: list[bytes], **changes: object) -> Vocabulary:
    values: dict[str, object] = {
        "kind": "BPE",
        "size": len(texts),
        "bos_id": 1,
        "eos_id": 2,
        "add_bos": True,
        "add_eos": False,
        "texts": tuple(texts),
    }
    values.update(changes)
    special = {"bos": values["bos_id"], "eos": values["eos_id"]}
    values["fingerprint"] = tokenizer_fingerprint(enumerate(texts), special)  # type: ignore[arg-type]  # ids are ints
    return Vocabulary(**values)  # type: ignore[arg-type]  # a field each


TEXTS = [b"t%d" % i for i in range(300)]


@pytest.mark.parametrize(
    ("rule", "texts", "changes"),
    [
        ("vocab-type", TEXTS, {"kind": "SPM"}),
        ("bos", TEXTS, {"bos_id": 11}),
        ("bos", TEXTS, {"add_bos": False}),
        ("eos", TEXTS, {"eos_id": 7}),
        ("eos", TEXTS, {"add_eos": True}),
        ("size", [*TEXTS, *(b"[PAD%d]" % i for i in range(300, 429))], {}),
        ("token-text", [*TEXTS[:200], b"other", *TEXTS[201:]], {}),
        ("token-text", [*TEXTS, b"one more"], {}),
    ],
)
def test_each_vocabulary_rule_names_itself(rule: str, texts: list[bytes], changes: dict[str, object]) -> None:
    with pytest.raises(VocabularyMismatchError) as caught:
        check_vocabulary(vocabulary(texts, **changes), vocabulary(TEXTS))
    assert caught.value.rule == rule
    assert f"rule '{rule}'" in str(caught.value)
    if rule == "token-text":
        assert f"token {300 if len(texts) > 300 else 200} " in str(caught.value)


def test_vocabularies_that_fit() -> None:
    target = vocabulary(TEXTS)
    check_vocabulary(target, target)
    # exactly 128 more entries, all padding; one side has no texts beyond its end
    check_vocabulary(vocabulary([*TEXTS, *(b"[PAD%d]" % i for i in range(300, 428))]), target)
    check_vocabulary(target, vocabulary([*TEXTS, *([b""] * 128)]))
    # the first five ids may differ
    check_vocabulary(vocabulary([b"x", b"y", b"z", *TEXTS[3:]]), target)
    # BOS ids only matter where the token is added
    check_vocabulary(vocabulary(TEXTS, add_bos=False, bos_id=9), vocabulary(TEXTS, add_bos=False, bos_id=-1))


# -- slots


@given(st.lists(st.integers(0, 1), max_size=20), st.lists(st.integers(0, 1), max_size=20))
def test_common_prefix(a: list[int], b: list[int]) -> None:
    n = common_prefix(a, b)
    assert a[:n] == b[:n]
    assert n == min(len(a), len(b)) or a[n] != b[n]


def test_slots_of_prompts() -> None:
    cache = SlotCache(2)
    system = list(range(50))

    def put(prompt: list[int]) -> tuple[int, int, int | None]:
        placement = cache.place(prompt)
        cache.apply(placement)
        placement.slot.tokens = prompt[:-1]
        source = placement.copy_from
        return placement.slot.index, placement.keep, None if source is None else source.index

    assert put([*system, *[100] * 40]) == (0, 0, None)
    assert put([*system, *[200] * 40]) == (1, 50, 0), "the first agent keeps its text"
    assert put([*system, *[100] * 40, 1, 2]) == (0, 89, None)
    assert put([*system, *[200] * 40]) == (1, 89, None), "the last token is always computed"
    assert put([9] * 5) == (0, 0, None), "the least recently used one goes"


def test_padding_looks_for_the_cheapest_width_that_fits() -> None:
    """Without room for the cheapest width, the cheapest one that fits was not found."""
    curve = CostCurve((0.0, 1.0, 4.0, 5.0, 3.0, 2.0))
    assert curve.padded_width(3, 5) == 5
    assert curve.padded_width(3, 4) == 4
    assert curve.padded_width(3, 3) == 3
    assert curve.padded_width(1, 5) == 1


def test_underestimates_earn_no_credit_for_overestimates() -> None:
    calibrator = Calibrator()
    for _ in range(500):
        calibrator.table("shy").learn(0.1, 0, True)
    for _ in range(30):
        calibrator.table("shy").learn(0.9, 0, False)
    assert calibrated(calibrator, "shy", 0.9, 0) < 0.2


# -- prompt lookup as a layer


@pytest.mark.parametrize("cost", [0, 1, 0.2, np.float32(0.2), [0, 1, 1.1, 1.2, 1.3, 1.4]])
def test_prompt_lookup_takes_any_kind_of_cost(cost: Any) -> None:
    layer = PromptLookupLayer()
    layer.begin([1, 2, 3, 4, 5] * 4, cost)
    for _ in range(3):
        draft = layer.draft([1, 2, 3, 4, 5], QueryLayer("x", 4, Verified(5, 4, DraftSource.PROMPT_LOOKUP)))
        assert draft.token_ids.tolist()[:2] in ([1, 2], [])
    assert len(draft) or np.ndim(cost) == 0
