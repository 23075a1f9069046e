"""Drafts do not change the distribution of the emitted text: many seeds with adversarial drafts, compared
text by text with plain decoding, and with the distribution computed from the logits. The statistic can
fail: it detects two incorrect acceptance rules, both of which exist elsewhere."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.types import FloatArray, TokenIds
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.drafts.events import StepResult
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.sampling.settings import Sampling, uniform
from suffixsvc_driver.targets import StopRule
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, chain
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import write_tiny_llama

CARELESS = CostCurve.linear(0.001, 8)
PROMPT = list(b"SELECT ")
SEEDS = 600
#: bound of the chi-square statistic, in standard deviations: exceeded by chance once in a million
ALARM = 6.0
#: what the grammar permits at each position
PERMITTED = (range(ord("a"), ord("z") + 1), range(ord("!"), ord("@") + 1))

SAMPLINGS = {
    "temperature": Sampling(0.7),
    "top-k": Sampling(1.0, top_k=5),
    "top-p-min-p": Sampling(0.9, top_p=0.8, min_p=0.1),
    "penalties": Sampling(1.0, top_k=5, presence_penalty=1.0, penalty_last_n=1),
    "grammar": Sampling(1.0, top_k=40, grammar="root ::= [a-z] [!-@] .*"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Model of low confidence: many tokens are likely."""
    return write_tiny_llama(tmp_path_factory.mktemp("even") / "even.gguf", seed=2, sharpness=2.0)


@pytest.fixture(scope="module")
def target(model: Path) -> Iterator[LlamaTarget]:
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        yield target


def distribution(logits: FloatArray, sampling: Sampling, last: int, index: int) -> dict[int, float]:
    """Return the distribution of the ``index``-th token after the prompt, by the definitions."""
    values = logits.astype(float)
    if sampling.penalizes:
        values[last] -= sampling.presence_penalty
    weights = np.exp((values - values.max()) / sampling.temperature)
    share = weights / weights.sum()
    order = sorted(range(len(share)), key=lambda i: (-share[i], i))
    kept = order[: sampling.top_k or len(order)]
    reached = np.cumsum(share[kept] / share[kept].sum())
    kept = kept[: 1 + int((reached < sampling.top_p).sum())]
    kept = [i for i in kept if share[i] >= sampling.min_p * share[order[0]]]
    if sampling.grammar is not None:
        kept = [i for i in kept if i in PERMITTED[index]]
    assert kept, "with this model something that is kept is always permitted"
    total = sum(share[i] for i in kept)
    return {i: share[i] / total for i in kept}


def pairs(target: LlamaTarget, sampling: Sampling) -> dict[tuple[int, int], float]:
    """Return the distribution of the first two tokens; pairs rarer than one in a hundred are counted
    together."""
    out: dict[tuple[int, int], float] = {}
    target.begin(PROMPT, fresh=True)
    first = distribution(target.compute(PROMPT[-1:])[0], sampling, PROMPT[-1], 0)
    for a, p in first.items():
        target.begin([*PROMPT, a], fresh=True)
        if a in target.eog_ids:
            out[a, -1] = p
            continue
        second = distribution(target.compute([a])[0], sampling, a, 1)
        out.update({(a, b): p * q for b, q in second.items()})
    assert sum(out.values()) == pytest.approx(1)
    return out


def deviation(texts: Sequence[tuple[int, ...]], expected: dict[tuple[int, int], float]) -> float:
    """Return the chi-square statistic, in standard deviations from its mean."""
    counts: dict[tuple[int, int], int] = dict.fromkeys(expected, 0)
    for text in texts:
        counts[text[0], text[1] if len(text) > 1 else -1] += 1  # KeyError: an impossible text
    n = len(texts)
    common = [pair for pair, p in expected.items() if p * n >= 5]
    cells = [(counts[pair], n * expected[pair]) for pair in common]
    rest = sum(n * p for pair, p in expected.items() if p * n < 5)
    if rest >= 5:
        cells.append((n - sum(count for count, _ in cells), rest))
    freedom = len(cells) - 1
    assert freedom >= 5, "too few cells to see anything"
    chi2 = sum((count - mean) ** 2 / mean for count, mean in cells)
    return (chi2 - freedom) / math.sqrt(2 * freedom)


def drafting(likely: Sequence[tuple[int, int]], seed: int) -> ScriptedLayer:
    """Layer that drafts likely pairs, one of them most of the time."""
    rng = np.random.default_rng(seed)

    def draft(text: list[int], budget: int) -> object:
        favourite = likely[0] if rng.random() < 0.7 else likely[int(rng.integers(len(likely)))]
        return chain([t for t in favourite if t >= 0][len(text) - len(PROMPT) :][:budget])

    return ScriptedLayer(draft)  # type: ignore[arg-type]  # always a draft


def drafted_texts(
    target: LlamaTarget, sampling: Sampling, expected: dict[tuple[int, int], float]
) -> tuple[list[tuple[int, ...]], int]:
    """Return two tokens for each seed, and the number of accepted drafts."""
    likely = sorted(expected, key=lambda pair: -expected[pair])[:8]
    out, accepted = [], 0
    for seed in range(SEEDS):
        its = Sampling(**{**fields_of(sampling), "seed": seed})
        layer = drafting(likely, seed)
        result = generate(target, PROMPT, None, [layer], 3, sampling=its, curve=CARELESS)
        out.append(result.token_ids[:2])
        accepted += result.stats.accepted
    return out, accepted


def fields_of(sampling: Sampling) -> dict[str, object]:
    return {name: getattr(sampling, name) for name in sampling.__slots__}


@pytest.mark.parametrize("name", SAMPLINGS)
def test_drafts_do_not_change_the_distribution(target: LlamaTarget, name: str) -> None:
    sampling = SAMPLINGS[name]
    expected = pairs(target, sampling)
    texts, accepted = drafted_texts(target, sampling, expected)
    assert accepted > SEEDS // 20, "the drafts were of no account"
    for seed in range(0, SEEDS, 4):
        its = Sampling(**{**fields_of(sampling), "seed": seed})
        assert generate(target, PROMPT, max_tokens=3, sampling=its).token_ids[:2] == texts[seed]
    found = deviation(texts, expected)
    assert abs(found) < ALARM, f"{found:.1f} standard deviations"


# -- the statistic can fail


class WrongSampler(Sampler):
    """Sampler that knows the drafted tokens, which no sampler should, and applies a rule."""

    rule: Callable[[dict[int, float], int, int, int], int | None]

    def sample(self, logits: FloatArray, position: int) -> int:
        if position in self.drafted:
            share = distribution(logits, self.sampling, -1, 0)
            token = type(self).rule(share, self.drafted[position], self.sampling.seed, position)
            if token is not None:
                return token
        return super().sample(logits, position)

    drafted: dict[int, int]


def typical_acceptance(share: dict[int, float], drafted: int, seed: int, position: int) -> int | None:
    """Typical acceptance (Medusa): a sufficiently likely token is kept."""
    return drafted if share.get(drafted, 0.0) > 0.1 else None


def without_residual(share: dict[int, float], drafted: int, seed: int, position: int) -> int | None:
    """Incorrect speculative sampling: the token is accepted with its probability, or else sampled from the
    whole distribution instead of the residual one."""
    accepts = uniform(seed + 10**9, position) < share.get(drafted, 0.0)
    return drafted if accepts else None


class WrongTarget(LlamaTarget):
    rule = staticmethod(typical_acceptance)

    def sampler(self, sampling: Sampling, prompt_ids: TokenIds) -> Sampler:
        kind = type("Wrong", (WrongSampler,), {"rule": self.rule})
        sampler: WrongSampler = kind(sampling, self.vocab_size, prompt_ids)
        sampler.drafted = {}
        return sampler

    def verify(
        self,
        drafted: Sequence[int],
        choices: Sampling | Sampler,
        max_emit: int,
        stop: StopRule | None = None,
        parents: Sequence[int] = (),
    ) -> StepResult:
        assert isinstance(choices, WrongSampler)
        choices.drafted = dict(zip(itertools.count(self.position + 1), drafted, strict=False))
        return super().verify(drafted, choices, max_emit, stop, parents)


@pytest.mark.parametrize("rule", [typical_acceptance, without_residual])
def test_an_incorrect_acceptance_rule_is_detected(model: Path, rule: Callable[..., int | None]) -> None:
    sampling = SAMPLINGS["top-k"]
    kind = type("Target", (WrongTarget,), {"rule": staticmethod(rule)})
    with kind(model, WIDTH_INDEPENDENT) as wrong, LlamaTarget(wrong.model, WIDTH_INDEPENDENT) as right:
        expected = pairs(right, sampling)
        texts, _ = drafted_texts(wrong, sampling, expected)
        assert deviation(texts, expected) > ALARM
