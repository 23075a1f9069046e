"""Penalties, min-p, biases and grammars with drafts: the text is that of plain decoding on every kind of
target (form (c)), checks (a) and (b) hold, and they detect what they should."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import GrammarError, InvalidConfigError, InvalidTokensError
from suffixsvc.types import Draft
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.exactness import check_exactness
from suffixsvc_driver.decode.loop import Result, generate
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_driver.sampling.json_schema import grammar_of_schema
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.grammar import LlamaGrammar
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, chain, hostile_drafter
from support.targets import WIDTH_INDEPENDENT, talkative_prompt
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama
from support.tiny_kinds import KINDS

CARELESS = CostCurve.linear(0.001, 32)
#: bracketed lists of words, quoted texts and lists
LISTS = """
root ::= item ("," " "? item)* "."
item ::= [a-z] [a-z] [a-z]* | "\\"" [^"\\x00-\\x1f]+ "\\"" | "(" root ")"
"""
SAMPLINGS = {
    "penalties": Sampling(repeat_penalty=1.3, frequency_penalty=0.4, presence_penalty=0.2),
    "penalties-sampled": Sampling(1.0, 40, seed=3, repeat_penalty=1.2, penalty_last_n=20),
    "penalties-all": Sampling(0.8, 0, 0.95, 4, frequency_penalty=0.3, penalty_last_n=-1),
    "min-p-bias": Sampling(1.2, min_p=0.1, seed=5, logit_bias={32: -math.inf, 101: 2.0}),
    "grammar": Sampling(grammar=LISTS),
    "grammar-sampled": Sampling(1.0, seed=6, grammar=LISTS),
    "everything": Sampling(1.0, 30, 0.95, 7, 0.02, 1.2, 0.1, 0.1, 30, {120: -1.0}, LISTS),
}


@pytest.fixture(scope="module", params=list(KINDS))
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    path = KINDS[request.param](tmp_path_factory.mktemp(request.param) / "m.gguf", seed=1)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        yield target


def never_sent(target: LlamaTarget, result: Result) -> int:
    """Check that every drafted token was permitted at its position; returns their number."""
    text = result.sampling.grammar
    assert text is not None
    grammar = LlamaGrammar(target.model, text)
    drafted = 0
    for step in result.steps:
        real = [
            t for t, p in zip(step.token_ids[1:], step.decision.probs, strict=True) if p > 0
        ]  # no padding
        assert grammar.allowed(real) == len(real)
        drafted += len(real)
        for token in step.emitted:
            grammar.accept(token)
    return drafted


@pytest.mark.parametrize("name", SAMPLINGS)
def test_hostile_drafts_never_change_the_output(target: LlamaTarget, name: str) -> None:
    rng = np.random.default_rng(len(name))
    sampling = SAMPLINGS[name]
    accepted = rejected = forbidden = 0
    for length, policy in ((1, "first-match"), (30, "expected-gain"), (60, "first-match")):
        prompt = rng.integers(0, 256, size=length).tolist()
        plain = generate(target, prompt, max_tokens=50, sampling=sampling)
        layer = ScriptedLayer(hostile_drafter(rng, [*prompt, *plain.token_ids], target.vocab_size))
        config = DriverConfig(policy=policy)
        result = generate(target, prompt, config, [layer], 50, sampling=sampling, curve=CARELESS)
        assert result.token_ids == plain.token_ids
        assert result.finish == plain.finish
        accepted += result.stats.accepted
        rejected += result.stats.drafted - result.stats.accepted
        if sampling.grammar is not None:
            never_sent(target, result)
            forbidden += result.stats.layer("scripted").forbidden
        report = check_exactness(target, result)
        assert report.ok, report.describe()
        assert report.flips == ()
    assert accepted > 10
    assert rejected > 0 or sampling.grammar is not None
    assert (forbidden > 0) == (sampling.grammar is not None)


def test_each_setting_has_an_effect(tiny_target: LlamaTarget) -> None:
    """Each setting alone changes the text of some prompt."""
    prompt = talkative_prompt(tiny_target, 30)
    greedy = generate(tiny_target, prompt, max_tokens=30).token_ids
    for sampling in (
        Sampling(repeat_penalty=1.5),
        Sampling(frequency_penalty=1.5),
        Sampling(presence_penalty=1.5),
        Sampling(logit_bias={greedy[0]: -math.inf}),
        Sampling(grammar="root ::= [a-z]*"),
    ):
        assert generate(tiny_target, prompt, max_tokens=30, sampling=sampling).token_ids != greedy
    sampled = Sampling(1.5, seed=1)
    text = generate(tiny_target, prompt, max_tokens=30, sampling=sampled).token_ids
    for change in ({"min_p": 0.2}, {"seed": 2}, {"top_k": 5}):
        changed = replace(sampled, **change)  # type: ignore[arg-type]  # fields of different types
        assert generate(tiny_target, prompt, max_tokens=30, sampling=changed).token_ids != text


def test_penalties_see_the_prompt(tiny_target: LlamaTarget) -> None:
    """As in llama.cpp, a token of the prompt is penalised from the first emitted token on."""
    prompt = talkative_prompt(tiny_target, 2)
    first = generate(tiny_target, prompt, max_tokens=1).token_ids[0]
    heavy = Sampling(presence_penalty=1000.0)
    with_it = [first, *prompt]
    base = generate(tiny_target, with_it, max_tokens=1).token_ids[0]
    banned = generate(tiny_target, [*prompt, base], max_tokens=1, sampling=heavy).token_ids[0]
    assert banned not in (*prompt, base)
    short = replace(heavy, penalty_last_n=1)
    again = generate(tiny_target, prompt, max_tokens=40, sampling=short).token_ids
    assert all(a != b for a, b in itertools.pairwise(again))
    assert again[0] != prompt[-1]


def test_a_json_schema_is_matched(tmp_path: Path) -> None:
    """By a random model, greedy and sampled, with drafts."""
    schema = {
        "type": "object",
        "properties": {
            "ok": {"type": "boolean"},
            "kind": {"enum": ["a", "b\n"]},
            "n": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        },
        "required": ["ok", "kind", "n"],
    }
    grammar = grammar_of_schema(schema)
    path = write_tiny_llama(tmp_path / "t.gguf", seed=3, texts=[*byte_texts(), *SPECIAL, '{"', '":', '"ok'])
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        prompt = list(b"Write JSON:")
        forbidden = 0
        for seed in range(6):
            sampling = Sampling(0.0 if seed == 0 else 1.0, seed=seed, grammar=grammar)
            plain = generate(target, prompt, max_tokens=200, sampling=sampling)
            assert plain.finish is FinishReason.STOP
            text = target.model.detokenize(plain.token_ids)
            value = json.loads(text)
            assert list(value) == ["ok", "kind", "n"]
            assert isinstance(value["ok"], bool)
            assert value["kind"] in ("a", "b\n")
            assert len(value["n"]) <= 3
            rng = np.random.default_rng(seed)
            layer = ScriptedLayer(hostile_drafter(rng, [*prompt, *plain.token_ids], target.vocab_size))
            drafted = generate(target, prompt, None, [layer], 200, sampling=sampling, curve=CARELESS)
            assert drafted.token_ids == plain.token_ids
            assert never_sent(target, drafted) > 0
            forbidden += drafted.stats.layer("scripted").forbidden
        assert forbidden > 50


def test_an_end_token_only_where_the_grammar_is_complete(tiny_target: LlamaTarget) -> None:
    """Although the bias prefers it from the first position on; and not later."""
    wants = Sampling(logit_bias={256: 100.0}, grammar='root ::= [a-z]{5} "."{0,9}')
    prompt = list(b"Q:")
    result = generate(tiny_target, prompt, max_tokens=40, sampling=wants)
    assert (len(result.token_ids), result.token_ids[-1], result.finish) == (6, 256, FinishReason.STOP)
    never = replace(wants, logit_bias={256: -100.0, 258: -100.0})
    result = generate(tiny_target, prompt, max_tokens=40, sampling=never)
    assert len(result.token_ids) == 5 + 9 + 1, "in the end nothing else is left"
    drafts = [256, *b"abcde", 256]
    layer = ScriptedLayer(lambda text, budget: chain(drafts[:budget]))
    result = generate(tiny_target, prompt, None, [layer], 40, sampling=wants, curve=CARELESS)
    assert len(result.token_ids) == 6
    assert result.stats.layer("scripted").forbidden > 0


# -- errors


class Untouchable(ScriptedLayer):
    def begin(self, *_: object) -> None:
        raise AssertionError("decoding started")


@pytest.mark.parametrize(
    ("sampling", "error", "message"),
    [
        (Sampling(grammar="root ::= ("), GrammarError, "line 1, column 10"),
        (Sampling(grammar=""), GrammarError, "empty"),
        (Sampling(grammar='root ::= ( | "a")*'), GrammarError, "left recursion detected"),
        (Sampling(logit_bias={264: 1.0}), InvalidConfigError, r"expected 0 \.\. 263; got 264"),
    ],
    ids=["malformed", "empty", "llama.cpp-refuses", "bias"],
)
def test_errors_come_before_decoding_starts(
    tiny_target: LlamaTarget, sampling: Sampling, error: type[Exception], message: str
) -> None:
    prompt = talkative_prompt(tiny_target, 5)
    truth = generate(tiny_target, prompt, max_tokens=5).token_ids
    layer = Untouchable(lambda text, budget: Draft.empty())
    with pytest.raises(error, match=message):
        generate(tiny_target, prompt, None, [layer], 5, sampling=sampling)
    with pytest.raises(InvalidTokensError):
        tiny_target.sampler(GREEDY, [264])
    assert generate(tiny_target, prompt, max_tokens=5).token_ids == truth


@pytest.mark.parametrize("kind", ["llama", "mamba", "lfm2"])
def test_a_dead_end_leaves_the_target_usable(tmp_path: Path, kind: str) -> None:
    """The grammar requires a byte that a bias bans, in the middle of a step with drafts."""
    sampling = Sampling(grammar='root ::= "abcd"', logit_bias={ord("c"): -math.inf})
    with LlamaTarget(KINDS[kind](tmp_path / "m.gguf", seed=1), WIDTH_INDEPENDENT) as target:
        prompt = list(b"hello")
        before = generate(target, prompt, max_tokens=20).token_ids
        layer = ScriptedLayer(lambda text, budget: chain(list(b"abcd")[len(text) - 5 :][:budget]))
        with pytest.raises(GrammarError, match="none of the model's tokens at position 7"):
            generate(target, prompt, None, [layer], 20, sampling=sampling, curve=CARELESS)
        assert target.verify((), Sampling(logit_bias={7: 100.0}), 1).emitted == (7,)
        assert generate(target, prompt, max_tokens=20).token_ids == before


def test_settings_that_need_the_text_need_a_sampler(tiny_target: LlamaTarget) -> None:
    tiny_target.begin([65, 66])
    for sampling in (Sampling(repeat_penalty=1.1), Sampling(grammar='root ::= "a"')):
        with pytest.raises(InvalidConfigError, match="need the text"):
            tiny_target.verify((), sampling, 1)
        assert len(tiny_target.verify((), tiny_target.sampler(sampling, [65, 66]), 1).emitted) == 1


def test_grammars_are_cached_but_not_shared(tiny_target: LlamaTarget) -> None:
    sampling = Sampling(grammar='root ::= "ab" "c"?')
    first, second = (tiny_target.sampler(sampling, [1]) for _ in range(2))
    first.accept(97)
    assert (first.allowed([98]), second.allowed([98]), second.allowed([97, 98, 256])) == (1, 0, 3)
    for n in range(30):
        other = tiny_target.sampler(Sampling(grammar=f'root ::= "{n}"'), [1])
        assert other.allowed([*str(n).encode(), 256]) == len(str(n)) + 1
    assert first.allowed([98, 99]) == 2


# -- the checks can fail


def changed(result: Result, at: int, token: int) -> Result:
    """Replace a token that was emitted by a separate step."""
    written = 0
    steps = list(result.steps)
    for i, step in enumerate(steps):
        if written <= at < written + len(step.emitted):
            inside = at - written
            emitted = (*step.emitted[:inside], token, *step.emitted[inside + 1 :])
            steps[i] = step._replace(emitted=emitted)
        written += len(step.emitted)
    tokens = (*result.token_ids[:at], token, *result.token_ids[at + 1 :])
    return replace(result, steps=tuple(steps), token_ids=tokens)


def lists(target: LlamaTarget, sampling: Sampling) -> Result:
    return generate(target, list(b"list: "), max_tokens=30, sampling=sampling)


def test_a_forbidden_token_is_noticed(tiny_target: LlamaTarget) -> None:
    for sampling in (SAMPLINGS["grammar"], SAMPLINGS["grammar-sampled"]):
        result = lists(tiny_target, sampling)
        report = check_exactness(tiny_target, changed(result, 3, ord("!")))
        assert not report.ok
        assert report.recomputed_equal == 3
        flip = report.flips[-1]
        assert (flip.written, flip.gap) == (ord("!"), math.inf)
        assert not flip.near_tie
        assert check_exactness(tiny_target, result).ok


def test_another_permitted_token_is_noticed(tiny_target: LlamaTarget) -> None:
    """It is permitted, so the text continues, but no number and no logit was near."""
    for name in ("grammar", "grammar-sampled", "everything"):
        result = lists(tiny_target, SAMPLINGS[name])
        sampler = tiny_target.sampler(result.sampling, result.prompt_ids)
        for token in result.token_ids[:3]:
            sampler.accept(token)
        fits = [t for t in range(97, 123) if sampler.allowed([t]) and t != result.token_ids[3]][:8]
        reports = [check_exactness(tiny_target, changed(result, 3, token)) for token in fits]
        assert all(not report.same_shapes_exact for report in reports)
        assert sum(not report.near_ties_only for report in reports) > len(reports) / 2


def test_sampling_without_the_text_is_noticed(tiny_target: LlamaTarget) -> None:
    """A driver that omits a token of the text from the penalties: (a) fails."""
    sampling = Sampling(presence_penalty=5.0, penalty_last_n=12)
    prompt = talkative_prompt(tiny_target, 30)
    result = generate(tiny_target, prompt, max_tokens=30, sampling=replace(sampling, penalty_last_n=11))
    report = check_exactness(tiny_target, replace(result, sampling=sampling))
    assert not report.same_shapes_exact
    assert not report.ok


def test_the_state_of_the_grammar_is_that_of_the_text(tiny_target: LlamaTarget) -> None:
    """A state that is a token late would permit other tokens: (a) and (b) advance it along the text."""
    counting = Sampling(1.0, seed=3, grammar='root ::= ("ab" | "cd" | "ef")+')
    result = generate(tiny_target, list(b"x"), max_tokens=20, sampling=counting)
    assert set(result.token_ids) <= {*b"abcdef", 256, 258}
    pairs: Sequence[int] = [t for t in result.token_ids if t < 256]
    assert all(b == a + 1 for a, b in zip(pairs[::2], pairs[1::2], strict=False))
    report = check_exactness(tiny_target, result)
    assert report.ok
    assert report.positions == len(result.token_ids)
