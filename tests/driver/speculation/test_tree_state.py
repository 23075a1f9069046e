"""State machine with trees: merging, selection, calibration and statistics."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidInputError
from suffixsvc.types import Draft, DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.chain import valid_draft
from suffixsvc_driver.drafts.events import (
    Begin,
    LayerAnswer,
    QueryLayer,
    StepResult,
    Verify,
)
from suffixsvc_driver.drafts.tree import leaf_count
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from support.golden_traces import replay_golden, write_golden
from support.layers import hostile_tree_drafter, tree
from support.long_form import rounds
from support.replica import (
    EOG,
    GPU,
    LOOKUP,
    MODEL,
    OTHER,
    SUFFIX,
    TWO_CORES,
    VOCAB,
    Answer,
    Replica,
    begin,
    chain,
    oracle,
    text,
)

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "driver" / "tree.json"


def branching(start: Begin, leaves: int = 4) -> Begin:
    return replace(start, max_branches=leaves)


def forked(truth: list[int]) -> Answer:
    """Another memory layer drafts two right tokens and fails every other time, the suffix index drafts a
    tree with the truth on the less probable branch, the draft model drafts a few tokens."""

    def answer(query: QueryLayer, written: list[int]) -> Draft | None:
        step = len(written)
        at = step + len(query.after)
        ahead = truth[at:]
        if query.layer == "other":
            wrong = [3, 3] if step % 2 else []
            return chain([*ahead[:2], *wrong][: query.budget], 0.9, DraftSource.PROMPT_LOOKUP)
        if query.layer == "suffix":
            if step % 3 == 0:
                return None
            if len(ahead) < 4 or query.budget < 6:
                return Draft.empty()
            wrong = [(t % 40) + 5 for t in ahead[:3]]
            tokens = [wrong[0], ahead[0], wrong[1], ahead[1], ahead[2], ahead[3]]
            return tree(tokens, [-1, -1, 0, 1, 3, 4], [0.6, 0.3, 0.9, 0.9, 0.8, 0.8])
        return chain(ahead[: min(query.budget, 4)], 0.8, DraftSource.DRAFT_MODEL)

    return answer


def golden_case() -> tuple[GenerationStateMachine, list[int], Answer, Begin]:
    truth = [*text(70, seed=3), EOG, 1, 2, 3]
    layers = [OTHER, SUFFIX, replace(MODEL, can_continue=True)]
    return GenerationStateMachine(DriverConfig(), GPU, layers), truth, forked(truth), branching(begin(80))


def test_golden_trace() -> None:
    """SUFFIXSVC_UPDATE_GOLDEN=1 rewrites it."""
    if os.environ.get("SUFFIXSVC_UPDATE_GOLDEN") == "1":
        driver, truth, answer, start = golden_case()
        replica = Replica(driver, truth, answer, seconds=0.0005)
        replica.run(start)
        write_golden(GOLDEN, replica.trace)
    recorded = replay_golden(GOLDEN, golden_case()[0])
    assert recorded[-1]["out"]["decision"] == "Finish"
    sent = [entry["out"] for entry in recorded if entry["out"]["decision"] == "Verify"]
    assert any("parents" in out and "layers" in out for out in sent)
    assert any("parents" not in out for out in sent), "a chain where that is best"
    assert any("after" in entry["out"] for entry in recorded), "the draft model continued a path"


# -- selection


def first_verify(
    answers: dict[str, Draft],
    start: Begin,
    curve: CostCurve = GPU,
    driver: GenerationStateMachine | None = None,
) -> Verify:
    specs = {"other": OTHER, "suffix": SUFFIX, "model": MODEL}
    driver = driver or GenerationStateMachine(DriverConfig(), curve, [specs[name] for name in answers])
    decision = driver.on(start)
    while isinstance(decision, QueryLayer):
        decision = driver.on(LayerAnswer(decision.layer, answers[decision.layer]))
    assert isinstance(decision, Verify)
    return decision


def test_two_drafts_merge_into_one_tree() -> None:
    """The common prefix once, then both ends; each token belongs to its layer, a common one to the layer
    with the larger probability."""
    answers = {"other": chain([5, 6, 7], 0.6, DraftSource.PROMPT_LOOKUP), "suffix": chain([5, 6, 8], 0.9)}
    sent = first_verify(answers, branching(begin()))
    assert sent.token_ids == (5, 6, 8, 7)
    assert sent.parents == (-1, 0, 1, 1)
    assert sent.layers == ("suffix", "suffix", "suffix", "other")
    assert sent.sources == (2, 2, 2, 5)
    assert sent.probs == pytest.approx((0.9, 0.9, 0.6, 0.4)), "siblings share one certainty"
    assert [c.layer for c in sent.considered] == ["other", "suffix"]
    assert sent.considered[1].length == 4
    # without branches: the better chain alone
    assert first_verify(answers, begin()).token_ids == (5, 6, 8)


def test_the_most_probable_path_comes_first() -> None:
    """It is contiguous, even if other tokens are more probable than its end."""
    wide = tree([5, 6, 7, 8, 9], [-1, -1, 1, 2, 0], [0.45, 0.5, 0.6, 0.6, 0.9])
    sent = first_verify({"suffix": wide}, branching(begin()))
    assert sent.token_ids == (6, 7, 8, 5, 9)
    assert sent.parents == (-1, 0, 1, -1, 3)


def test_a_chain_is_sent_where_it_is_best() -> None:
    steep = CostCurve.linear(0.5, 16, seconds_per_step=0.03)
    answers = {"other": chain([5, 6, 7], 0.6, DraftSource.PROMPT_LOOKUP), "suffix": chain([5, 6, 8], 0.95)}
    sent = first_verify(answers, branching(begin()), steep)
    assert (sent.token_ids, sent.parents) == ((5, 6, 8), ())
    assert sent.layers == ()
    assert sent.layer == "suffix"


def test_tokens_off_the_best_path_cost_twice() -> None:
    """A token costs 0.3 plain steps: one of probability 0.4 pays for that once, but not twice."""
    curve = CostCurve.linear(0.3, 16, seconds_per_step=0.03)
    draft = tree([5, 6], [-1, -1], [0.45, 0.4])
    assert first_verify({"suffix": draft}, branching(begin()), curve).token_ids == (5,)
    cheaper = CostCurve.linear(0.25, 16, seconds_per_step=0.03)
    assert first_verify({"suffix": draft}, branching(begin()), cheaper).token_ids == (5, 6)


def test_two_layers_one_chain() -> None:
    """One layer continues where the other ends: no branch, and each token belongs to its layer."""
    answers = {"other": chain([5, 6], 0.9, DraftSource.PROMPT_LOOKUP), "suffix": chain([5, 6, 8, 9], 0.8)}
    sent = first_verify(answers, branching(begin()))
    assert (sent.token_ids, sent.parents) == ((5, 6, 8, 9), ())
    assert sent.layers == ("other", "other", "suffix", "suffix")


@pytest.mark.parametrize("leaves", [2, 3, 4])
def test_no_more_leaves_than_the_target_accepts(leaves: int) -> None:
    wide = tree([5, 6, 7, 8, 9, 10], [-1] * 6, [0.16] * 6)
    sent = first_verify({"suffix": wide}, branching(begin(), leaves))
    assert leaf_count(sent.parents) == leaves


def test_padding_follows_the_last_token() -> None:
    """c[4] equals c[3]: the third token is padding, without another leaf."""
    curve = CostCurve((0.0, 1.0, 1.2, 1.5, 1.3), 0.03)
    sent = first_verify({"suffix": tree([5, 6], [-1, -1], [0.5, 0.5])}, branching(begin(), 2), curve)
    assert sent.token_ids == (5, 6, 6)
    assert sent.parents == (-1, -1, 1)
    assert (sent.padding, sent.probs[2], sent.sources[2]) == (1, 0.0, 0)
    driver = GenerationStateMachine(DriverConfig(), curve, [SUFFIX])
    first_verify({"suffix": tree([5, 6], [-1, -1], [0.5, 0.5])}, branching(begin(), 2), curve, driver)
    driver.on(StepResult((6, 6, 9), 2, 4))
    assert (driver.stats.accepted, driver.stats.drafted, driver.stats.padding) == (1, 2, 1)


def test_replaying_targets_and_first_match_draft_chains() -> None:
    answers = {"suffix": tree([5, 6, 7, 8], [-1, -1, 1, 2], [0.4, 0.6, 0.9, 0.9])}
    assert first_verify(answers, replace(branching(begin()), replays=True)).parents == ()
    driver = GenerationStateMachine(DriverConfig(policy="first-match"), GPU, [SUFFIX])
    assert first_verify(answers, branching(begin()), driver=driver).token_ids == (6, 7, 8)


def test_the_draft_model_continues_the_best_path() -> None:
    truth = text(200, seed=4)
    model = replace(MODEL, can_continue=True)

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        at = len(written) + len(query.after)
        if query.layer == "suffix":
            wrong = (truth[at] % 40) + 5
            return tree([wrong, *truth[at : at + 3]], [-1, -1, 1, 2], [0.1, 0.88, 0.95, 0.95])
        assert not query.after or list(query.after) == truth[len(written) : at]
        return chain(truth[at : at + min(5, query.budget)], 0.95, DraftSource.DRAFT_MODEL)

    replica = Replica(GenerationStateMachine(DriverConfig(), GPU, [SUFFIX, model]), truth, answer)
    replica.run(branching(begin(150)))
    stats = replica.driver.stats
    assert stats.mat > 6
    sent = {name: counts.sent for name, counts in stats.layers.items()}
    assert sent["suffix"].accepted > 2 * stats.steps
    assert sent["model"].accepted > 3 * stats.steps
    assert sent["model"].accepted == sent["model"].drafted


# -- calibration


def test_at_most_one_sibling_is_right() -> None:
    calibrator = Calibrator()
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX], calibrator)
    draft = tree([5, 6, 7, 8, 9], [-1, -1, 0, 1, 1], [0.99, 0.4, 0.9, 0.6, 0.2])
    first_verify({"suffix": draft}, branching(begin()), driver=driver)
    driver.on(StepResult((6, 9, 3), 2, 6))
    ratio = {
        raw_probability: calibrator.table("suffix").calibrate([raw_probability], [0])[0] / raw_probability
        for raw_probability in (0.99, 0.4, 0.9, 0.6, 0.2)
    }
    assert ratio[0.99] < 0.85, "wrong, and its child not labelled at all:"
    assert ratio[0.9] > ratio[0.99]
    assert ratio[0.4] > 1.2
    assert ratio[0.2] > 1.2
    assert ratio[0.6] < 0.85


def test_a_path_that_was_not_sent_is_refused() -> None:
    driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX])
    draft = tree([5, 6, 7], [-1, -1, 1], [0.5, 0.4, 0.9])
    for wrong in (StepResult((5, 7, 1), 2, 4), StepResult((6, 7, 8), 3, 4), StepResult((7, 6), 1, 4)):
        driver = GenerationStateMachine(DriverConfig(), GPU, [SUFFIX])
        first_verify({"suffix": draft}, branching(begin()), driver=driver)
        with pytest.raises(InvalidInputError, match="verifying"):
            driver.on(wrong)
    assert isinstance(driver.on(StepResult((6, 7, 1), 2, 4)), QueryLayer)
    stats = driver.stats
    assert (stats.drafted, stats.accepted, stats.tokens) == (3, 2, 3)
    assert stats.evidence["suffix"].output_tokens == 2
    assert driver.verified is not None
    assert (driver.verified.width, driver.verified.accepted) == (4, 2)


def test_two_true_branches_beat_the_better_chain() -> None:
    """In every step one of two layers is right, and it is unknown which: the tree holds both."""
    truth = text(600, seed=9)

    def answer(query: QueryLayer, written: list[int]) -> Draft:
        right = (len(written) // 3 + (query.layer == "suffix")) % 2 == 0
        ahead = truth[len(written) :][: min(4, query.budget)]
        tokens = ahead if right else [(t % 40) + 7 for t in ahead]
        return chain(tokens, 0.6, DraftSource.NAMESPACE)

    mats = []
    for leaves in (1, 2):
        replica = Replica(GenerationStateMachine(DriverConfig(), GPU, [OTHER, SUFFIX]), truth, answer)
        replica.run(branching(begin(500), leaves))
        assert replica.written == truth[:500]
        mats.append(replica.driver.stats.mat)
    assert mats[1] > 1.25 * mats[0]


# -- invalid answers


def test_a_clean_tree_keeps_the_valid_part() -> None:
    def cleaned(
        tokens: list[Any], parents: list[Any], probs: list[Any] | None = None, budget: int = 9
    ) -> Any:
        drafted = tree(tokens, parents, probs or [0.5] * len(tokens))
        answer = valid_draft(drafted, budget, VOCAB, DraftSource.CORPUS, trees=True)
        return answer.token_ids, answer.parents, answer.junk

    assert cleaned([5, 6, 7], [-1, -1, 1]) == ((5, 6, 7), (-1, -1, 1), False)
    assert cleaned([5, 6], [-1, 0]) == ((5, 6), (), False)
    # a token outside the vocabulary and its descendants; forward, self and cyclic references
    assert cleaned([5, 99, 7, 8], [-1, -1, 1, 0]) == ((5, 8), (), True)
    assert cleaned([5, 6, 7, 8], [-1, 2, 1, 0]) == ((5, 8), (), True)
    assert cleaned([5, 6], [-1, 1]) == ((5,), (), True)
    assert cleaned([5, 6], [-5, -1]) == ((6,), (), True)
    # equal siblings: the first stays, and no child of the second
    assert cleaned([5, 5, 6, 7], [-1, -1, 1, 0]) == ((5, 7), (), True)
    assert cleaned([5, 5], [-1, 0]) == ((5, 5), (), False)
    assert cleaned([5, 6, 7], [-1, -1, -1], [0.5, np.nan, 0.1]) == ((5, 7), (-1, -1), True)
    assert cleaned([5, 6, 7], [-1, -1, -1], budget=2) == ((5, 6), (-1, -1), False)
    assert cleaned([5, 6], [-1, -1], budget=0) == ((), (), False)
    long = cleaned([1] * 10_000, [-1, *range(9_999)], budget=64)
    assert (len(long[0]), long[2]) == (64, True)
    assert cleaned([1] * 10_000, [-1] * 10_000) == ((1,), (), True)


@pytest.mark.parametrize("trees", [False, True])
def test_no_content_of_a_draft_raises(trees: bool) -> None:
    """Integers too large for a float and texts as probabilities raised OverflowError and TypeError."""
    nested = np.array([[1, 2], [3, 4]], np.int32)
    siblings = tree([1, 2], [-1, -1], [0.5, 0.5])
    for draft in (
        None,
        "draft",
        Draft(nested, nested, nested.astype(np.float32), nested.astype(np.uint8), nested),
        Draft(nested[0], nested[0], nested[0].astype(np.float32), nested.astype(np.uint8), nested[0]),
        Draft(nested[0].astype(float), nested[0], nested[0], nested[0], nested[0]),  # type: ignore[arg-type]  # that is the point
        replace(siblings, probs=np.array([10**400, 0.5], object)),
        replace(siblings, probs=np.array([0.5, 10**400], object)),
        replace(siblings, probs=np.array(["much", 0.5], object)),
        replace(siblings, parents=np.array([[1], {}], object)),
        replace(siblings, sources=np.array([[1], {}], object)),
    ):
        answer = valid_draft(draft, 5, VOCAB, DraftSource.CORPUS, trees=trees)
        assert len(answer.token_ids) <= 2


@settings(max_examples=rounds(45, full=150), deadline=None)
@given(seed=st.integers(0, 10**6), leaves=st.integers(2, 6), curve=st.sampled_from([TWO_CORES, GPU]))
def test_no_answer_breaks_the_state_machine(seed: int, leaves: int, curve: CostCurve) -> None:
    rng = np.random.default_rng(seed)
    truth = [*text(30, seed=seed % 5), EOG, *text(100)]
    drafter = hostile_tree_drafter(rng, truth, VOCAB)
    layers = [LOOKUP, SUFFIX, replace(MODEL, can_continue=bool(seed % 2))]

    def answer(query: QueryLayer, written: list[int]) -> Draft | None:
        return None if rng.random() < 0.1 else drafter([*written, *query.after], query.budget)

    replica = Replica(
        GenerationStateMachine(DriverConfig(), curve, layers),
        truth,
        answer,
        seconds=float(rng.random() * 0.01),
    )
    original = replica.verify

    def verify(decision: Verify, start: Begin) -> StepResult:
        n = len(decision.token_ids)
        assert all(0 <= t < VOCAB for t in decision.token_ids)
        assert len(decision.sources) == len(decision.probs) == n
        assert all(0.0 <= p <= 1.0 + 1e-9 for p in decision.probs)
        parents = decision.parents or tuple(range(-1, n - 1))
        assert all(-1 <= p < i for i, p in enumerate(parents))
        assert leaf_count(parents) <= leaves
        steps = list(zip(parents, decision.token_ids, strict=True))
        assert len(set(steps)) == n, "siblings differ"
        assert not decision.layers or len(decision.layers) == n
        assert start.prompt_length + len(replica.written) + n <= start.context_size
        return original(decision, start)

    replica.verify = verify  # type: ignore[method-assign]  # watches the decisions on their way
    replica.run(branching(begin(int(rng.integers(1, 40)), 10, int(rng.integers(10, 60))), leaves))
    assert replica.written == truth[: len(replica.written)]
    stats = replica.driver.stats
    assert stats.tokens == len(replica.written) == sum(c.output_tokens for c in stats.evidence.values())
    assert sum(c.sent.drafted for c in stats.layers.values()) == stats.drafted
    assert sum(c.sent.accepted for c in stats.layers.values()) == stats.accepted


# -- sources of trees


def test_the_suffix_layer_requests_trees() -> None:
    """The embedded engine has seen two continuations of the same prefix."""
    with SuffixCache() as cache:
        namespace = cache.namespace("test/forks")
        for end in ([7, 8, 9, 10], [11, 12, 13, 14]) * 6:
            session = namespace.open_session([1, 2])
            session.step([3, 4, 5, 6, *end])
            session.close()
        drafts = {}
        for wants_tree in (False, True):
            session = namespace.open_session([1, 2])
            layer = SuffixLayer(session, tree=wants_tree)
            layer.begin([1, 2], GPU.effective())
            drafts[wants_tree] = layer.draft([3, 4, 5, 6], QueryLayer("x", 16))
            session.close(commit=False)
    roots = {t for t, p in zip(drafts[True].token_ids, drafts[True].parents, strict=True) if p == -1}
    assert roots == {7, 11}
    assert (drafts[False].parents == np.arange(-1, len(drafts[False]) - 1)).all()
    assert first_verify({"suffix": drafts[True]}, branching(begin())).parents


def test_right_chains_are_accepted_entirely() -> None:
    """A target with trees loses nothing with layers that draft chains."""
    truth = text(300)
    for start in (begin(200), branching(begin(200))):
        replica = Replica(GenerationStateMachine(DriverConfig(), TWO_CORES, [SUFFIX]), truth, oracle(truth))
        replica.run(start)
        if start.max_branches == 1:
            widths = replica.widths
    assert replica.widths == widths
