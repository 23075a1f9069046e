"""The prediction layer: followed from its beginning, found again after a difference, always verified."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import InvalidTokensError
from suffixsvc.types import DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.prediction import PredictionLayer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.targets.single import LlamaTarget
from support.targets import WIDTH_INDEPENDENT, talkative_prompt

CHEAP = CostCurve.linear(0.02, 32)
TEXT = list(range(100, 200))


def drafted(layer: PredictionLayer, new: Sequence[int], budget: int = 4) -> list[int]:
    draft = layer.draft(new, QueryLayer("prediction", budget))
    assert set(draft.sources.tolist()) <= {DraftSource.PREDICTION}
    assert all(0 < p < 1 for p in draft.probs.tolist())
    tokens: list[int] = draft.token_ids.tolist()
    return tokens


def begun(tokens: Sequence[int] = TEXT) -> PredictionLayer:
    layer = PredictionLayer(tokens)
    layer.begin([1, 2, 3], 0.0)
    return layer


def test_it_is_drafted_from_its_beginning() -> None:
    layer = begun()
    assert drafted(layer, []) == TEXT[:4]
    assert drafted(layer, TEXT[:3]) == TEXT[3:7]
    assert drafted(layer, TEXT[3:98]) == TEXT[98:]
    assert drafted(layer, TEXT[98:]) == []
    assert layer.found == layer.length == 100


def test_the_budget_is_kept() -> None:
    assert drafted(begun(), [], 0) == []
    assert drafted(begun(), [], 1000) == TEXT


@pytest.mark.parametrize(
    ("written", "follows"),
    [
        ([*TEXT[:10], 7, *TEXT[11:12]], 12),  # another token
        ([*TEXT[:10], 7, 8, 9, TEXT[10]], 11),  # more tokens
        ([*TEXT[:10], TEXT[15]], 16),  # fewer tokens
        ([*TEXT[:10], 7, TEXT[90], TEXT[91], TEXT[92]], 93),  # much fewer
        ([7, 8, TEXT[0]], 1),  # something before it
        ([*TEXT[:40], 7, *TEXT[:3]], 3),  # back to the beginning
    ],
)
def test_it_is_found_again_after_a_departure(written: list[int], follows: int) -> None:
    layer = begun()
    assert drafted(layer, written) == TEXT[follows : follows + 4]
    one_by_one = begun()
    for token in written[:-1]:
        drafted(one_by_one, [token])
    assert drafted(one_by_one, written[-1:]) == TEXT[follows : follows + 4]


def test_one_equal_token_far_away_is_no_match() -> None:
    assert drafted(begun(), [*TEXT[:10], 7, TEXT[80]]) == []


def test_of_equal_places_the_next_one_counts() -> None:
    line = [1, 2, 3]
    layer = begun([10, *line, 20, *line, 30, *line, 40])
    assert drafted(layer, [10, *line, 20, 99, *line], 1) == [30]


def test_longer_agreement_is_more_probable() -> None:
    layer = begun()
    first = layer.draft([7, TEXT[0]], QueryLayer("prediction", 3)).probs
    later = layer.draft(TEXT[1:30], QueryLayer("prediction", 3)).probs
    assert all(np.diff(first) > 0)
    assert first[0] < later[0] < 1


def test_tokens_that_appeared_are_counted_once() -> None:
    layer = begun([1, 2, 3, 4, 5, 6, 7, 8])
    drafted(layer, [1, 2, 3, 99, 6, 7, 98, 6, 7])
    assert layer.found == 5  # 1 2 3, 6 7
    layer.end([8], None)
    assert layer.found == 6
    layer.begin([], 0.0)
    assert layer.found == 0


def test_a_single_equal_token_did_not_appear() -> None:
    layer = begun(TEXT)
    drafted(layer, [5, TEXT[3], 6, TEXT[9], 7])
    assert layer.found == 0


@pytest.mark.parametrize(
    ("written", "found"),
    [
        ([1, 9, 9, 9], 1),  # a beginning of one token
        ([9, 1, 9, 9], 0),
        ([7, 7, 4, 5, 1, 2, 3], 5),  # another order
        ([1, 2, 9, 1, 2, 9], 2),  # twice
    ],
)
def test_tokens_that_appeared_in_runs_or_at_the_beginning(written: list[int], found: int) -> None:
    layer = begun([1, 2, 3, 4, 5])
    drafted(layer, written)
    assert layer.found == found


def test_a_run_of_two_that_one_token_did_not_find_appeared() -> None:
    """Its first token is too far from the departure to be a match alone."""
    layer = begun(TEXT)
    drafted(layer, [7, TEXT[60], TEXT[61], 8])
    assert layer.found == 2


@given(st.lists(st.integers(0, 4), min_size=1, max_size=40), st.lists(st.integers(0, 4), max_size=60))
def test_any_two_texts(prediction: list[int], written: list[int]) -> None:
    layer = begun(prediction)
    for at, token in enumerate(written):
        draft = layer.draft([token], QueryLayer("prediction", 8))
        found = draft.token_ids.tolist()
        text = ",".join(map(str, prediction))
        assert ",".join(map(str, found)) in text
        assert 0 <= layer.found <= min(len(prediction), len(prediction) if at else 1)
    if written == prediction:
        assert layer.found == len(prediction)


@pytest.mark.parametrize("tokens", [[-1], [2**31], ["a"], [1.5]])
def test_what_is_no_token_is_refused(tokens: list[int]) -> None:
    with pytest.raises(InvalidTokensError):
        PredictionLayer(tokens)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.2, seed=4)], ids=["greedy", "hot"])
def test_no_prediction_changes_the_output(tiny_model: Path, sampling: Sampling) -> None:
    rng = np.random.default_rng(2)
    with LlamaTarget(tiny_model, WIDTH_INDEPENDENT) as target:
        prompt = talkative_prompt(target, 60)
        plain = generate(target, prompt, max_tokens=60, sampling=sampling)
        truth = list(plain.token_ids)
        edited = [*truth[:9], 3, *truth[12:30], 4, 5, 6, *truth[30:]]
        noise = rng.integers(0, target.vocab_size + 99, 50).tolist()
        for text, steps in ((truth, 6), (edited, 16), (noise, 60), ([*noise, *truth], 40)):
            layers = [PredictionLayer(text), PromptLookupLayer()]
            result = generate(target, prompt, None, layers, 60, sampling=sampling, curve=CHEAP)
            assert result.token_ids == plain.token_ids
            assert result.stats.steps <= steps
            counts = result.stats.layer("prediction").sent
            assert counts.output_tokens == result.sources.count(DraftSource.PREDICTION)
        assert result.stats.evidence["prediction"].accepted > 10
