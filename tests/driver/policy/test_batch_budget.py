"""Shared batches: allocation against brute force, and the state machine of a generation in shared batches."""

from __future__ import annotations

import itertools
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.events import (
    Begin,
    BudgetGrant,
    Decision,
    Finish,
    LayerAnswer,
    LayerFailed,
    Next,
    Propose,
    QueryLayer,
    StepResult,
    Verify,
    Wait,
)
from suffixsvc_driver.policy.batch_budget import allocate_budget
from suffixsvc_driver.policy.expected_gain import MIN_GAIN, RunningRate
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from suffixsvc_driver.targets.slots import Placement, SlotCache
from support.golden_traces import replay_golden, write_golden
from support.layers import tree
from support.long_form import rounds
from support.replica import (
    EOG,
    GPU,
    MODEL,
    OTHER,
    SUFFIX,
    TWO_CORES,
    Replica,
    begin,
    chain,
    oracle,
    text,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "driver" / "paced.json"

falling = st.lists(st.floats(0, 1), max_size=4).map(lambda gains: tuple(sorted(gains, reverse=True)))
curves = st.one_of(
    st.floats(0.0, 0.9).map(lambda a: CostCurve.linear(a, 12)),
    st.lists(st.floats(0.0, 3.0), min_size=3, max_size=11).map(lambda c: CostCurve((0.0, 1.0, *c))),
)


# -- allocation


@settings(max_examples=rounds(90, full=300), deadline=None)
@given(
    proposals=st.lists(falling, min_size=1, max_size=4),
    curve=curves,
    rate=st.floats(1.0, 3.0),
    replayed=st.integers(0, 3),
    room=st.integers(0, 10),
)
def test_allocation_equals_brute_force(
    proposals: list[tuple[float, ...]], curve: CostCurve, rate: float, replayed: int, room: int
) -> None:
    base = len(proposals) + replayed
    shares = allocate_budget(proposals, curve, rate, base, room)
    plain = curve.cost(base)
    best = 0.0
    for lengths in itertools.product(*(range(len(p) + 1) for p in proposals)):
        expected = sum(sum(p[:n]) for p, n in zip(proposals, lengths, strict=True))
        for width in range(base + sum(lengths), min(curve.max_width, base + room) + 1):
            if base == 1 and not any(lengths) and width > 1:
                continue  # a plain step is never padded
            best = max(best, expected - rate * (curve.costs[width] - plain))
    # rounding decides at the smallest gain
    assert math.isclose(shares.gain, best if best > MIN_GAIN else 0.0, abs_tol=1e-9) or math.isclose(
        best, MIN_GAIN
    )
    sent = sum(shares.lengths)
    assert sent + shares.padding <= room
    if shares.gain > 0:
        expected = sum(sum(p[:n]) for p, n in zip(proposals, shares.lengths, strict=True))
        cost = curve.costs[base + sent + shares.padding] - plain
        assert math.isclose(shares.gain, expected - rate * cost, abs_tol=1e-9)
    else:
        assert (sent, shares.padding) == (0, 0)


def test_the_room_goes_to_the_largest_gains() -> None:
    """Room for eight tokens, two good drafts and a bad one: not first come, first served."""
    proposals = [(0.5, 0.4, 0.3), (0.95,) * 6, (0.9, 0.8, 0.2)]
    shares = allocate_budget(proposals, CostCurve.linear(0.01, 32), 1.0, 3, 8)
    assert shares.lengths == (0, 6, 2)
    steep = allocate_budget(proposals, CostCurve.linear(0.45, 32), 1.0, 3, 20)
    assert steep.lengths == (1, 6, 2), "and nothing that gains less than it costs"


def test_generations_cross_a_step_of_the_curve_together() -> None:
    """A wider batch costs four plain steps, up to sixteen: neither draft pays alone, both together do."""
    curve = CostCurve((0, 1.0, 1.1, *[4.0] * 14))
    draft = (0.95, 0.9)
    assert allocate_budget([draft, ()], curve, 1.0, 2, 14).lengths == (0, 0)
    assert allocate_budget([draft, draft], curve, 1.0, 2, 14).lengths == (2, 2)


def test_base_wider_than_the_curve() -> None:
    shares = allocate_budget([(0.9,)] * 6, CostCurve.linear(0.1, 4), 1.0, 6, 20)
    assert (shares.lengths, shares.padding) == ((0,) * 6, 0)


# -- the state machine of a generation in shared batches


class Batched(Replica):
    """Runs a generation in batches with ``others`` tokens of other generations, and grants the rest
    of the room."""

    def __init__(self, *args: object, others: list[int], room: int = 12, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]  # passed on
        self.others, self.room = others, room
        self.proposals: list[Propose] = []

    def play(self, start: Begin) -> Finish:
        decision: Decision = self.feed(replace(start, batched=True))
        steps = itertools.cycle(self.others)
        while isinstance(decision, Wait):
            other_tokens = next(steps)
            decision = self.feed(Next(other_tokens, self.room))
            while isinstance(decision, QueryLayer):
                draft = self.answer(decision, self.written)
                failed = LayerFailed(decision.layer, "made up", self.seconds)
                answered = LayerAnswer(decision.layer, draft or Draft.empty(), self.seconds)
                decision = self.feed(failed if draft is None else answered)
            assert isinstance(decision, Propose)
            self.proposals.append(decision)
            shares = allocate_budget(
                [decision.gains], self.driver.curve, self.driver.rate.value, 1 + other_tokens, self.room - 1
            )
            decision = self.feed(BudgetGrant(shares.lengths[0], shares.padding, other_tokens))
            assert isinstance(decision, Verify)
            decision = self.feed(self.verify(decision, start))
        assert isinstance(decision, Finish)
        return decision


def golden_case(start: Begin) -> Batched:
    truth = [*text(36, seed=3), EOG, 1, 2, 3, 4, 5]

    def answer(query: QueryLayer, written: list[int]) -> Draft | None:
        step, ahead = len(written), truth[len(written) + len(query.after) :]
        if query.layer == "other":
            return chain(ahead[:3], 0.7, DraftSource.PROMPT_LOOKUP)
        if query.layer == "suffix" and step % 3 == 1 and query.budget > 3:
            return tree([9, *ahead[:2], 8], [-1, -1, 1, 1], [0.5, 0.4, 0.9, 0.1])
        if query.layer == "suffix":
            return None if step % 7 == 3 else chain([*ahead[: step % 5], 7, 7][: query.budget], 0.9)
        return chain(ahead[: min(query.budget, 4)], 0.8, DraftSource.DRAFT_MODEL)

    curve = TWO_CORES if start.max_branches == 1 else GPU
    driver = GenerationStateMachine(DriverConfig(), curve, [OTHER, SUFFIX, MODEL])
    batched = Batched(driver, truth, answer, seconds=0.0005, others=[0, 1, 3, 11])
    if start.max_tokens:
        batched.play(start)
    return batched


@pytest.mark.parametrize("leaves", [1, 3])
def test_golden_trace(leaves: int) -> None:
    """SUFFIXSVC_UPDATE_GOLDEN=1 rewrites it."""
    path = GOLDEN if leaves == 1 else GOLDEN.with_name("paced-tree.json")
    if os.environ.get("SUFFIXSVC_UPDATE_GOLDEN") == "1":
        write_golden(path, golden_case(replace(begin(80), max_branches=leaves)).trace)
    recorded = replay_golden(path, golden_case(replace(begin(), max_tokens=0, max_branches=leaves)).driver)
    assert recorded[-1]["out"] == {"decision": "Finish", "reason": "stop"}
    sent = [entry["out"] for entry in recorded if entry["out"]["decision"] == "Verify"]
    assert any(out["padding"] for out in sent) is (leaves == 1)
    assert any("parents" in out for out in sent) is (leaves > 1)


def test_a_paced_generation_alone_decides_as_an_unpaced_one() -> None:
    """Without other generations, the grant equals what it would have sent."""
    truth = text(300, seed=5)
    answer = oracle(truth, right=5)
    free = Replica(GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX]), truth, answer)
    free.run(begin(200))
    batched = Batched(
        GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX]), truth, answer, others=[0], room=64
    )
    batched.play(begin(200))
    assert batched.widths == free.widths
    assert batched.driver.stats == free.driver.stats


def test_cost_is_relative_to_the_tokens_of_others() -> None:
    """c[16] is cheaper than c[12]: with eleven tokens of others in the batch, four more have
    a negative cost."""
    truth = text(400)
    widths = {}
    for others in (0, 11):
        driver = GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX])
        batched = Batched(driver, truth, oracle(truth, prob=0.6), others=[others], room=16)
        batched.play(begin(100))
        widths[others] = batched.widths
        cost = sum(TWO_CORES.cost(w + others) * w / (w + others) for w in batched.widths)
        assert driver.stats.cost == pytest.approx(cost)
    assert max(widths[11][:3]) == 5
    assert max(widths[0][:3]) < 5


def test_first_match_is_not_weighed() -> None:
    truth = text(100)
    steep = CostCurve.linear(2.0, 32)
    driver = GenerationStateMachine(DriverConfig(policy="first-match"), steep, [SUFFIX])
    driver.on(replace(begin(50), batched=True))
    decision = driver.on(Next(3, 9))
    assert isinstance(decision, QueryLayer)
    assert decision.budget == 8, "as many as there may be room for"
    decision = driver.on(LayerAnswer("suffix", chain(truth[:8], 0.9)))
    assert decision == Propose((1.0,) * 8, forced=True)
    decision = driver.on(BudgetGrant(5, 0, 11))
    assert isinstance(decision, Verify)
    assert decision.token_ids == tuple(truth[:5])


def test_drafts_that_do_not_pay_alone_are_proposed() -> None:
    """Other drafts may carry the batch over a step of the curve."""
    curve = CostCurve((0, 1.0, 1.1, *[6.0] * 14), 0.03)
    driver = GenerationStateMachine(DriverConfig(), curve, [OTHER, SUFFIX])
    driver.on(replace(begin(50), batched=True))
    driver.on(Next(1, 14))
    driver.on(LayerAnswer("other", chain([1, 2], 0.3)))
    decision = driver.on(LayerAnswer("suffix", chain([3, 4], 0.9)))
    assert isinstance(decision, Propose)
    discounted = 0.9 / 1.1  # half the odds
    assert decision.gains == pytest.approx((discounted, discounted**2))
    sent = driver.on(BudgetGrant(1, 2, 6))
    assert isinstance(sent, Verify)
    assert (sent.token_ids, sent.padding, sent.layer) == ((3, 3, 3), 2, "suffix")


def test_a_batch_may_be_filled_where_nothing_was_drafted() -> None:
    driver = GenerationStateMachine(DriverConfig(), GPU, [])
    driver.on(replace(begin(50), batched=True))
    assert driver.on(Next(6, 8)) == Propose()
    sent = driver.on(BudgetGrant(0, 2, 6))
    assert isinstance(sent, Verify)
    assert (sent.token_ids, sent.padding, sent.layer) == ((0, 0), 2, "")
    assert driver.on(StepResult((0, 4), 1, 3)) == Wait()
    assert (driver.stats.drafted, driver.stats.accepted, driver.stats.tokens) == (0, 0, 2)


def test_invalid_grants() -> None:
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX])
    with pytest.raises(InvalidInputError, match="idle"):
        driver.on(Next(0, 4))
    assert driver.on(replace(begin(50), batched=True)) == Wait()
    for wrong in (
        Next(-1, 4),
        Next(0, 0),
        BudgetGrant(0, 0, 0),
        StepResult((1,), 0, 1),
        LayerAnswer("suffix", chain([], 0)),
    ):
        with pytest.raises(InvalidInputError, match="waiting"):
            driver.on(wrong)
    driver.on(Next(2, 4))
    driver.on(LayerAnswer("suffix", chain([1, 2, 3], 0.9)))
    for grant in (
        BudgetGrant(4, 0, 0),
        BudgetGrant(-1, 0, 0),
        BudgetGrant(3, 1, 0),
        BudgetGrant(0, -1, 0),
        BudgetGrant(1, 0, -1),
    ):
        with pytest.raises(InvalidInputError, match="proposing"):
            driver.on(grant)
    assert isinstance(driver.on(BudgetGrant(3, 0, 0)), Verify)


def test_the_rate_is_common_to_all_generations() -> None:
    """Two generations in the same batches, with drafts and without: tokens and costs of both are added."""
    truth, rate = text(400, seed=6), RunningRate(0.99)
    drafting = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX], rate=rate)
    plain = GenerationStateMachine(DriverConfig(), GPU, [], rate=rate)
    written, tokens, cost = 0, 80.0, 80.0
    for driver in (drafting, plain):
        driver.on(replace(begin(300), batched=True))
    for _ in range(10):
        drafting.on(Next(1, 12))
        plain.on(Next(1, 12))
        drafting.on(LayerAnswer("suffix", chain(truth[written : written + 4], 0.9)))
        drafting.on(BudgetGrant(4, 0, 1))
        plain.on(BudgetGrant(0, 0, 5))
        drafting.on(StepResult(tuple(truth[written : written + 5]), 4, 5))
        plain.on(StepResult((7,), 0, 1))
        written += 5
        # two additions a batch
        tokens = (tokens * 0.99 + 5) * 0.99 + 1
        cost = (cost * 0.99 + GPU.cost(6) * 5 / 6) * 0.99 + GPU.cost(6) / 6
    assert rate.value == pytest.approx(tokens / cost)
    assert drafting.rate.value == plain.rate.value


# -- lanes of prompts


def test_prompts_are_assigned_to_free_lanes() -> None:
    cache = SlotCache(3)
    cache.slots[0].tokens = [1, 2, 3, 4]
    cache.slots[1].tokens = [1, 2, 9]
    cache.slots[2].tokens = [5]
    prompt = [1, 2, 3, 7]
    first, second, third = cache.slots
    assert cache.place(prompt) == Placement(first, 3)
    assert cache.place(prompt, (1, 2)) == Placement(second, 3, copy_from=first)
    assert cache.place(prompt, (0,)) == Placement(first, 3)
    own = SlotCache(3, copies=False)
    own.slots = cache.slots
    assert own.place(prompt, (1, 2)) == Placement(second, 2)
    assert own.place(prompt, (2,)) == Placement(third, 0)
    whole = SlotCache(3, whole=True, copies=False)
    whole.slots = cache.slots
    assert whole.place([1, 2, 9, 9], (0, 1)) == Placement(second, 3)
    assert whole.place([1, 2, 9, 9], (0, 2)) == Placement(first, 0)
