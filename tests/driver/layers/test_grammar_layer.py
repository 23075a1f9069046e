"""Grammar layer: what it drafts, what of it is accepted, and that everything that counts layers knows it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from suffixsvc import wire
from suffixsvc.types import DraftSource, Verified
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.drafts.events import QueryLayer
from suffixsvc_driver.layers.grammar import GrammarLayer, grammar_layers
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.sampling.structured import JsonSchema, Lark, Regex, Structured
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind, LayerSpec, Policy
from suffixsvc_driver.speculation.state_machine import GenerationStateMachine
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, chain
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama

CHEAP = CostCurve.linear(0.05, 32)
SCHEMA = {
    "type": "object",
    "properties": {"name": {"enum": ["Ada", "Bob"]}, "member_since": {"type": "integer", "maximum": 9}},
    "required": ["name", "member_since"],
    "additionalProperties": False,
}
#: tokens that the tokenizer makes of their characters, by merges of two
WORDS = ["na", "me", "name", '{"', '":']
MERGES = ["n a", "m e", "na me", '{ "', '" :']


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    path = tmp_path_factory.mktemp("forced") / "t.gguf"
    write_tiny_llama(path, seed=3, texts=[*byte_texts(), *SPECIAL, *WORDS], merges=MERGES)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        yield target


def layer_for(target: LlamaTarget, value: Structured) -> GrammarLayer:
    (layer,) = grammar_layers(target, Sampling(grammar=value))
    assert isinstance(layer, GrammarLayer)
    layer.begin([1], 0.0)
    return layer


def texts(target: LlamaTarget, tokens: Any) -> list[str]:
    return [target.model.token_bytes(int(token)).decode() for token in tokens]


def ask(layer: GrammarLayer, new: list[int], budget: int = 32) -> Any:
    return layer.draft(new, QueryLayer("grammar", budget))


def test_forced_text_is_drafted_in_canonical_tokens(target: LlamaTarget) -> None:
    layer = layer_for(target, JsonSchema(SCHEMA))
    draft = ask(layer, [])
    assert "".join(texts(target, draft.token_ids)) == '{"name":"'
    assert texts(target, draft.token_ids)[:2] == ['{"', "name"]
    assert draft.token_ids.tolist() == target.model.tokenize('{"name":"', parse_special=False)
    assert set(draft.sources.tolist()) == {DraftSource.GRAMMAR}
    assert draft.probs[0] == 1.0
    assert sorted(draft.probs.tolist(), reverse=True) == draft.probs.tolist(), "the certain ones come first"
    assert ask(layer, draft.token_ids.tolist()).token_ids.tolist() == [], "a choice of two names"
    assert "".join(texts(target, ask(layer, [ord("B")]).token_ids)) == 'ob","member_since":'


def test_other_tokens_of_the_same_bytes_are_followed(target: LlamaTarget) -> None:
    """The model may write forced text in tokens of its own choice; the rest is drafted from there."""
    layer = layer_for(target, Lark('start: "name" /[0-9]/ "end"'))
    assert texts(target, ask(layer, []).token_ids) == ["name"]
    for written, rest in (("n", "ame"), ("a", "me"), ("m", "e")):
        assert "".join(texts(target, ask(layer, [ord(written)]).token_ids)) == rest
    assert not len(ask(layer, [ord("e")]))
    draft = ask(layer, [ord("7")])
    assert texts(target, draft.token_ids)[:3] == ["e", "n", "d"]


def test_an_end_that_is_forced_is_drafted_as_probable(target: LlamaTarget) -> None:
    layer = layer_for(target, Regex("ab"))
    draft = ask(layer, [])
    assert draft.token_ids.tolist() == [97, 98, target.model.vocabulary.eos_id]
    assert draft.probs.tolist() == pytest.approx([1.0, 1.0, 0.9])
    assert ask(layer, [97, 98]).token_ids.tolist() == [target.model.vocabulary.eos_id]
    open_end = layer_for(target, Regex("ab?"))
    assert ask(open_end, []).token_ids.tolist() == [97], "an end that is not the only choice is not forced"


def test_budgets_and_generations(target: LlamaTarget) -> None:
    layer = layer_for(target, Regex("abcdefgh"))
    assert ask(layer, [], 3).token_ids.tolist() == [97, 98, 99]
    assert not len(ask(layer, [97, 98], 0))
    assert ask(layer, [99], 2).token_ids.tolist() == [100, 101]
    layer.end([100], None)
    assert not len(ask(layer, []))
    layer.begin([1], 0.0)
    assert ask(layer, [], 1).token_ids.tolist() == [97], "the next generation starts at the start"


def test_a_layer_that_has_lost_the_text_drafts_nothing(target: LlamaTarget) -> None:
    layer = layer_for(target, Regex("abc"))
    with pytest.raises(Exception, match="must permit the token"):
        ask(layer, [99])
    assert not len(ask(layer, [97]))


def test_only_structured_grammars_force_text(target: LlamaTarget) -> None:
    for sampling in (GREEDY, Sampling(grammar='root ::= "abc"')):
        assert grammar_layers(target, sampling) == []
    assert target.sampler(Sampling(grammar='root ::= "abc"'), [1]).forcing() is None


def test_a_long_forced_text_is_tokenized_once(target: LlamaTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = layer_for(target, JsonSchema({"const": "x" * 5000}))
    assert layer._start is not None
    kind, calls = type(layer._start), [0]
    real = kind.forced

    def counted(self: Any) -> Any:
        calls[0] += 1
        return real(self)

    monkeypatch.setattr(kind, "forced", counted)
    draft = ask(layer, [])
    for _ in range(100):
        draft = ask(layer, draft.token_ids.tolist())
        assert len(draft) == 32
    assert calls[0] == 1


@pytest.mark.parametrize("policy", list(Policy))
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_steps_are_saved_and_counted(target: LlamaTarget, policy: Policy, temperature: float) -> None:
    sampling = Sampling(temperature, seed=3, grammar=JsonSchema(SCHEMA))
    prompt = list(b"Write JSON:")
    plain = generate(target, prompt, max_tokens=100, sampling=sampling)
    layers = grammar_layers(target, sampling)
    drafted = generate(
        target, prompt, DriverConfig(policy=policy), layers, 100, sampling=sampling, curve=CHEAP
    )
    assert drafted.token_ids == plain.token_ids
    assert drafted.stats.steps * 3 < plain.stats.steps
    counts = drafted.stats.layer("grammar")
    assert counts.sent.accepted > len(plain.token_ids) // 2
    assert counts.forbidden == counts.failures == counts.junk == 0
    assert drafted.stats.evidence["grammar"].accepted == counts.sent.accepted
    assert drafted.sources.count(DraftSource.GRAMMAR) == counts.sent.output_tokens > 0
    seen = {c.layer for step in drafted.steps for c in step.decision.considered}
    assert seen == {"grammar"}, "--explain prints what was considered"


def test_it_is_queried_first_and_in_every_step() -> None:
    """A text without forced tokens for a long time does not stop the queries; they cost next to nothing."""
    specs = [LayerSpec("suffix", LayerKind.SUFFIX), LayerSpec("grammar", LayerKind.GRAMMAR, 0.01)]
    for policy in Policy:
        machine = GenerationStateMachine(DriverConfig(policy=policy), CHEAP, specs)
        assert [layer.spec.name for layer in machine._queries.layers] == ["grammar", "suffix"]


def test_it_is_queried_after_long_runs_of_free_text(target: LlamaTarget) -> None:
    sampling = Sampling(1.0, seed=1, grammar=Regex("[0-9]{150}, and that is the end"))
    layers = grammar_layers(target, sampling)
    result = generate(target, list(b"x"), None, layers, 200, sampling=sampling, curve=CHEAP)
    assert len(result.token_ids) == 150 + len(", and that is the end") + 1
    assert result.stats.layer("grammar").asked == result.stats.steps
    assert result.stats.steps < 160


def test_other_layers_draft_beside_it(target: LlamaTarget) -> None:
    sampling = Sampling(grammar=JsonSchema(SCHEMA))
    prompt = list(b"Write JSON:")
    plain = generate(target, prompt, max_tokens=100, sampling=sampling)
    right = ScriptedLayer(
        lambda text, budget: chain(plain.token_ids[len(text) - len(prompt) :][:budget], 0.99)
    )
    layers = [*grammar_layers(target, sampling), right]
    both = generate(target, prompt, None, layers, 100, sampling=sampling, curve=CHEAP)
    assert both.token_ids == plain.token_ids
    assert both.stats.layer("scripted").sent.accepted > 0
    assert both.stats.steps <= 3


def test_the_source_is_not_sent_to_services_that_do_not_know_it() -> None:
    """Services before this source refuse the number 6, and none uses the field."""
    message = wire.verified_to_proto(Verified(5, 4, DraftSource.GRAMMAR))
    assert (message.width, message.accepted, message.source) == (5, 4, 0)
    assert wire.verified_to_proto(Verified(5, 4, DraftSource.PROMPT_LOOKUP)).source == 5
    assert (
        wire.verified_from_proto(message.__class__(width=2, accepted=1, source=6)).source
        == DraftSource.GRAMMAR
    )


ORDER = {
    "type": "object",
    "properties": {
        "customer_name": {"type": "string", "maxLength": 30},
        "order_number": {"type": "integer", "minimum": 1, "maximum": 99999},
        "shipping_method": {"enum": ["standard delivery", "express delivery", "pick up at the store"]},
        "items": {
            "type": "array",
            "minItems": 2,
            "maxItems": 3,
            "items": {
                "type": "object",
                "properties": {
                    "product_name": {"type": "string", "maxLength": 20},
                    "quantity_ordered": {"type": "integer", "minimum": 1, "maximum": 99},
                },
                "required": ["product_name", "quantity_ordered"],
                "additionalProperties": False,
            },
        },
        "is_paid": {"type": "boolean"},
    },
    "required": ["customer_name", "order_number", "shipping_method", "items", "is_paid"],
    "additionalProperties": False,
}
ORDER_REQUEST = "Write an order of two chairs and a table for Mary Jones as JSON."


@pytest.mark.model
def test_strict_json_of_a_real_model_takes_half_the_steps(real_model: Path) -> None:
    """Counts of docs/sampling.md: steps and accepted tokens with the layer on and off. No times."""
    settings = ContextSettings(context_size=512, threads=1, max_width=32)
    rows: list[tuple[str, int, int, int, int]] = []
    with LlamaTarget(real_model, settings) as target:
        model = target.model
        prompt = model.tokenize(model.chat([{"role": "user", "content": ORDER_REQUEST}]))
        sampling = Sampling(grammar=JsonSchema(ORDER))
        free = generate(target, prompt, max_tokens=100, curve=CHEAP)
        rows.append(("without a schema", free.stats.steps, len(free.token_ids), 0, 0))
        steps = {}
        for name, forced, lookup in (("off", 0, 0), ("grammar", 1, 0), ("lookup", 0, 1), ("both", 1, 1)):
            layers = grammar_layers(target, sampling) if forced else []
            layers += [PromptLookupLayer()] if lookup else []
            result = generate(target, prompt, None, layers, 250, sampling=sampling, curve=CHEAP)
            text = b"".join(map(model.token_bytes, result.token_ids[:-1])).decode()
            jsonschema.validate(json.loads(text), ORDER)
            steps[name] = result.stats.steps
            sent = result.stats.layer("grammar").sent
            rows.append((name, result.stats.steps, len(result.token_ids), sent.drafted, sent.accepted))
            if forced:
                assert sent.acceptance_rate > 0.8
    print("\n".join(f"{n:<18} {s:4} steps {t:4} tokens, drafted {d}, accepted {a}" for n, s, t, d, a in rows))
    assert steps["grammar"] * 2 < steps["off"]
    assert steps["both"] <= steps["lookup"]
