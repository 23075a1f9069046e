"""Batches that several generations share: who gets what against brute force, and the state machine that is
told when its steps begin and what it may send."""

from __future__ import annotations

import itertools
import json
import math
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.events import (
    AskLayer,
    Begin,
    Decision,
    Finish,
    Grant,
    LayerAnswer,
    LayerFailed,
    Next,
    Propose,
    Verified,
    Verify,
    Wait,
    decision_to_json,
    event_from_json,
    event_to_json,
)
from suffixsvc_driver.policy import LEAST_GAIN, RunningRate
from suffixsvc_driver.sharing import share_out
from suffixsvc_driver.state import Driver
from suffixsvc_driver.targets.slots import Placement, SlotCache
from support.layers import tree
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

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import Draft, DraftSource

GOLDEN = Path(__file__).resolve().parents[1] / "golden" / "driver" / "paced.json"

falling = st.lists(st.floats(0, 1), max_size=4).map(lambda gains: tuple(sorted(gains, reverse=True)))
curves = st.one_of(
    st.floats(0.0, 0.9).map(lambda a: CostCurve.linear(a, 12)),
    st.lists(st.floats(0.0, 3.0), min_size=3, max_size=11).map(lambda c: CostCurve((0.0, 1.0, *c))),
)


# -- who gets what


@settings(max_examples=300, deadline=None)
@given(
    proposals=st.lists(falling, min_size=1, max_size=4),
    curve=curves,
    rate=st.floats(1.0, 3.0),
    replayed=st.integers(0, 3),
    room=st.integers(0, 10),
)
def test_the_best_shares_are_the_best(
    proposals: list[tuple[float, ...]], curve: CostCurve, rate: float, replayed: int, room: int
) -> None:
    base = len(proposals) + replayed
    shares = share_out(proposals, curve, rate, base, room)
    plain = curve.cost(base)
    best = 0.0
    for lengths in itertools.product(*(range(len(p) + 1) for p in proposals)):
        expected = sum(sum(p[:n]) for p, n in zip(proposals, lengths, strict=True))
        for width in range(base + sum(lengths), min(curve.max_width, base + room) + 1):
            if base == 1 and not any(lengths) and width > 1:
                continue  # a plain step is never padded
            best = max(best, expected - rate * (curve.costs[width] - plain))
    # rounding decides what is just at the least gain
    assert math.isclose(shares.gain, best if best > LEAST_GAIN else 0.0, abs_tol=1e-9) or math.isclose(
        best, LEAST_GAIN
    )
    sent = sum(shares.lengths)
    assert sent + shares.padding <= room
    if shares.gain > 0:
        expected = sum(sum(p[:n]) for p, n in zip(proposals, shares.lengths, strict=True))
        cost = curve.costs[base + sent + shares.padding] - plain
        assert math.isclose(shares.gain, expected - rate * cost, abs_tol=1e-9)
    else:
        assert (sent, shares.padding) == (0, 0)


def test_the_room_goes_to_what_gains_most() -> None:
    """Eight places, two good drafts and one that is not: not first come, first served."""
    proposals = [(0.5, 0.4, 0.3), (0.95,) * 6, (0.9, 0.8, 0.2)]
    shares = share_out(proposals, CostCurve.linear(0.01, 32), 1.0, 3, 8)
    assert shares.lengths == (0, 6, 2)
    steep = share_out(proposals, CostCurve.linear(0.45, 32), 1.0, 3, 20)
    assert steep.lengths == (1, 6, 2), "and nothing that gains less than it costs"


def test_generations_climb_a_step_of_the_curve_together() -> None:
    """A wider batch costs four plain steps, up to sixteen: neither draft pays alone, both do."""
    curve = CostCurve((0, 1.0, 1.1, *[4.0] * 14))
    draft = (0.95, 0.9)
    assert share_out([draft, ()], curve, 1.0, 2, 14).lengths == (0, 0)
    assert share_out([draft, draft], curve, 1.0, 2, 14).lengths == (2, 2)


def test_base_wider_than_the_curve() -> None:
    shares = share_out([(0.9,)] * 6, CostCurve.linear(0.1, 4), 1.0, 6, 20)
    assert (shares.lengths, shares.padding) == ((0,) * 6, 0)


# -- the machine, paced


class Paced(Replica):
    """Plays a generation that shares its batches with ``others`` tokens, and gets what is left of a room."""

    def __init__(self, *args: object, others: list[int], room: int = 12, **more: object) -> None:
        super().__init__(*args, **more)  # type: ignore[arg-type]  # passed on
        self.others, self.room = others, room
        self.proposals: list[Propose] = []

    def play(self, start: Begin) -> Finish:
        decision: Decision = self.feed(replace(start, paced=True))
        steps = itertools.cycle(self.others)
        while isinstance(decision, Wait):
            beside = next(steps)
            decision = self.feed(Next(beside, self.room))
            while isinstance(decision, AskLayer):
                draft = self.answer(decision, self.written)
                failed = LayerFailed(decision.layer, "made up", self.seconds)
                answered = LayerAnswer(decision.layer, draft or Draft.empty(), self.seconds)
                decision = self.feed(failed if draft is None else answered)
            assert isinstance(decision, Propose)
            self.proposals.append(decision)
            shares = share_out(
                [decision.gains], self.driver.curve, self.driver.rate, 1 + beside, self.room - 1
            )
            decision = self.feed(Grant(shares.lengths[0], shares.padding, beside))
            assert isinstance(decision, Verify)
            decision = self.feed(self.verify(decision, start))
        assert isinstance(decision, Finish)
        return decision


def golden_case(start: Begin) -> Paced:
    truth = [*text(36, seed=3), EOG, 1, 2, 3, 4, 5]

    def answer(ask: AskLayer, written: list[int]) -> Draft | None:
        step, ahead = len(written), truth[len(written) + len(ask.after) :]
        if ask.layer == "other":
            return chain(ahead[:3], 0.7, DraftSource.PROMPT_LOOKUP)
        if ask.layer == "suffix" and step % 3 == 1 and ask.budget > 3:
            return tree([9, *ahead[:2], 8], [-1, -1, 1, 1], [0.5, 0.4, 0.9, 0.1])
        if ask.layer == "suffix":
            return None if step % 7 == 3 else chain([*ahead[: step % 5], 7, 7][: ask.budget], 0.9)
        return chain(ahead[: min(ask.budget, 4)], 0.8, DraftSource.DRAFT_MODEL)

    curve = TWO_CORES if start.max_branches == 1 else GPU
    driver = Driver(DriverConfig(), curve, [OTHER, SUFFIX, MODEL])
    paced = Paced(driver, truth, answer, seconds=0.0005, others=[0, 1, 3, 11])
    if start.max_tokens:
        paced.play(start)
    return paced


@pytest.mark.parametrize("leaves", [1, 3])
def test_golden_trace(leaves: int) -> None:
    """SUFFIXSVC_UPDATE_GOLDEN=1 writes it anew."""
    path = GOLDEN if leaves == 1 else GOLDEN.with_name("paced-tree.json")
    if os.environ.get("SUFFIXSVC_UPDATE_GOLDEN") == "1":
        trace = golden_case(replace(begin(80), max_branches=leaves)).trace
        lines = [json.dumps({"in": event_to_json(e), "out": decision_to_json(d)}) for e, d in trace]
        path.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    recorded = json.loads(path.read_text())
    driver = golden_case(replace(begin(), max_tokens=0, max_branches=leaves)).driver
    for i, entry in enumerate(recorded):
        decision = decision_to_json(driver.on(event_from_json(entry["in"])))
        assert decision == entry["out"], f"step {i} of {path.name}"
    assert recorded[-1]["out"] == {"decision": "Finish", "reason": "stop"}
    sent = [entry["out"] for entry in recorded if entry["out"]["decision"] == "Verify"]
    assert any(out["padding"] for out in sent) is (leaves == 1)
    assert any("parents" in out for out in sent) is (leaves > 1)


def test_alone_it_decides_as_ever() -> None:
    """With nobody beside it, what is granted is what it would have sent."""
    truth = text(300, seed=5)
    answer = oracle(truth, right=5)
    free = Replica(Driver(DriverConfig(), TWO_CORES, [SUFFIX]), truth, answer)
    free.run(begin(200))
    paced = Paced(Driver(DriverConfig(), TWO_CORES, [SUFFIX]), truth, answer, others=[0], room=64)
    paced.play(begin(200))
    assert paced.widths == free.widths
    assert paced.driver.stats == free.driver.stats


def test_what_others_send_is_not_its_price() -> None:
    """c[16] is cheaper than c[12]: with eleven tokens of others in the batch, four more cost less than
    nothing."""
    truth = text(400)
    widths = {}
    for others in (0, 11):
        driver = Driver(DriverConfig(), TWO_CORES, [SUFFIX])
        paced = Paced(driver, truth, oracle(truth, prob=0.6), others=[others], room=16)
        paced.play(begin(100))
        widths[others] = paced.widths
        cost = sum(TWO_CORES.cost(w + others) * w / (w + others) for w in paced.widths)
        assert driver.stats.cost == pytest.approx(cost)
    assert max(widths[11][:3]) == 5
    assert max(widths[0][:3]) < 5


def test_first_match_is_not_weighed() -> None:
    truth = text(100)
    steep = CostCurve.linear(2.0, 32)
    driver = Driver(DriverConfig(policy="first-match"), steep, [SUFFIX])
    driver.on(replace(begin(50), paced=True))
    decision = driver.on(Next(3, 9))
    assert isinstance(decision, AskLayer)
    assert decision.budget == 8, "as many as there may be room for"
    decision = driver.on(LayerAnswer("suffix", chain(truth[:8], 0.9)))
    assert decision == Propose((1.0,) * 8, forced=True)
    decision = driver.on(Grant(5, 0, 11))
    assert isinstance(decision, Verify)
    assert decision.token_ids == tuple(truth[:5])


def test_what_does_not_pay_alone_is_proposed_nevertheless() -> None:
    """Others may carry the batch over a step of the curve."""
    curve = CostCurve((0, 1.0, 1.1, *[6.0] * 14), 0.03)
    driver = Driver(DriverConfig(), curve, [OTHER, SUFFIX])
    driver.on(replace(begin(50), paced=True))
    driver.on(Next(1, 14))
    driver.on(LayerAnswer("other", chain([1, 2], 0.3)))
    decision = driver.on(LayerAnswer("suffix", chain([3, 4], 0.9)))
    assert isinstance(decision, Propose)
    counted_on = 0.9 / 1.1  # half the odds
    assert decision.gains == pytest.approx((counted_on, counted_on**2))
    sent = driver.on(Grant(1, 2, 6))
    assert isinstance(sent, Verify)
    assert (sent.token_ids, sent.padding, sent.layer) == ((3, 3, 3), 2, "suffix")


def test_a_batch_may_be_filled_where_nothing_was_drafted() -> None:
    driver = Driver(DriverConfig(), GPU, [])
    driver.on(replace(begin(50), paced=True))
    assert driver.on(Next(6, 8)) == Propose()
    sent = driver.on(Grant(0, 2, 6))
    assert isinstance(sent, Verify)
    assert (sent.token_ids, sent.padding, sent.layer) == ((0, 0), 2, "")
    assert driver.on(Verified((0, 4), 1, 3)) == Wait()
    assert (driver.stats.drafted, driver.stats.accepted, driver.stats.tokens) == (0, 0, 2)


def test_grants_that_cannot_be() -> None:
    driver = Driver(DriverConfig(), GPU, [SUFFIX])
    with pytest.raises(InvalidInputError, match="idle"):
        driver.on(Next(0, 4))
    assert driver.on(replace(begin(50), paced=True)) == Wait()
    for wrong in (
        Next(-1, 4),
        Next(0, 0),
        Grant(0, 0, 0),
        Verified((1,), 0, 1),
        LayerAnswer("suffix", chain([], 0)),
    ):
        with pytest.raises(InvalidInputError, match="waiting"):
            driver.on(wrong)
    driver.on(Next(2, 4))
    driver.on(LayerAnswer("suffix", chain([1, 2, 3], 0.9)))
    for grant in (Grant(4, 0, 0), Grant(-1, 0, 0), Grant(3, 1, 0), Grant(0, -1, 0), Grant(1, 0, -1)):
        with pytest.raises(InvalidInputError, match="proposing"):
            driver.on(grant)
    assert isinstance(driver.on(Grant(3, 0, 0)), Verify)


def test_the_rate_is_that_of_all_together() -> None:
    """Two generations in the same batches, one with drafts and one without: tokens and costs both add up."""
    truth, rate = text(400, seed=6), RunningRate(0.99)
    drafting = Driver(DriverConfig(), GPU, [SUFFIX], rate=rate)
    plain = Driver(DriverConfig(), GPU, [], rate=rate)
    written, tokens, cost = 0, 80.0, 80.0
    for driver in (drafting, plain):
        driver.on(replace(begin(300), paced=True))
    for _ in range(10):
        drafting.on(Next(1, 12))
        plain.on(Next(1, 12))
        drafting.on(LayerAnswer("suffix", chain(truth[written : written + 4], 0.9)))
        drafting.on(Grant(4, 0, 1))
        plain.on(Grant(0, 0, 5))
        drafting.on(Verified(tuple(truth[written : written + 5]), 4, 5))
        plain.on(Verified((7,), 0, 1))
        written += 5
        # two additions a batch
        tokens = (tokens * 0.99 + 5) * 0.99 + 1
        cost = (cost * 0.99 + GPU.cost(6) * 5 / 6) * 0.99 + GPU.cost(6) / 6
    assert rate.value == pytest.approx(tokens / cost)
    assert drafting.rate == plain.rate


# -- where prompts go


def test_prompts_go_to_lanes_that_are_free() -> None:
    cache = SlotCache(3)
    cache.slots[0].tokens = [1, 2, 3, 4]
    cache.slots[1].tokens = [1, 2, 9]
    cache.slots[2].tokens = [5]
    prompt = [1, 2, 3, 7]
    assert cache.place(prompt) == Placement(0, 3)
    assert cache.place(prompt, (1, 2)) == Placement(1, 3, copy_from=0)
    assert cache.place(prompt, (0,)) == Placement(0, 3)
    own = SlotCache(3, copies=False)
    own.slots = cache.slots
    assert own.place(prompt, (1, 2)) == Placement(1, 2)
    assert own.place(prompt, (2,)) == Placement(2, 0)
    whole = SlotCache(3, whole=True, copies=False)
    whole.slots = cache.slots
    assert whole.place([1, 2, 9, 9], (0, 1)) == Placement(1, 3)
    assert whole.place([1, 2, 9, 9], (0, 2)) == Placement(0, 0)
