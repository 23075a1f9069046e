"""Layers in the decoding loop: failing ones, lying ones, real ones over the embedded engine;
sources and statistics."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.types import Draft, DraftSource, Verified
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import StepRecord, generate
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind, LayerSpec
from suffixsvc_driver.targets.single import LlamaTarget
from support.layers import ScriptedLayer, chain
from support.targets import talkative_prompt

CHEAP = CostCurve.linear(0.02, 32)


def test_a_layer_that_raises_is_an_empty_draft(tiny_target: LlamaTarget) -> None:
    prompt = talkative_prompt(tiny_target, 30)
    plain = generate(tiny_target, prompt, max_tokens=30)

    class Broken(ScriptedLayer):
        def begin(self, *args: object) -> None:
            raise OSError("begin")

        def end(self, *args: object) -> None:
            raise OSError("end")

    def fail(text: list[int], budget: int) -> Draft:
        raise RuntimeError("draft")

    good = ScriptedLayer(
        lambda text, budget: chain(plain.token_ids[len(text) - len(prompt) :][:5]), name="good"
    )
    result = generate(tiny_target, prompt, layers=[Broken(fail, "bad"), good], max_tokens=30, curve=CHEAP)
    assert result.token_ids == plain.token_ids
    bad = result.stats.layer("bad")
    assert bad.failures == bad.asked == len(result.steps)
    assert good.ended
    assert result.stats.layer("good").sent.accepted > 20


class Lazy:
    """Draft whose columns raise when they are accessed."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __getattr__(self, name: str) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "answer",
    [
        Lazy(OSError("gone")),
        Lazy(ValueError("torn")),
        Lazy(RuntimeError("busy")),
        replace(chain([1, 2]), probs=np.array([10**400, 0.5], object)),
    ],
    ids=["OSError", "ValueError", "RuntimeError", "huge-probability"],
)
def test_an_answer_that_cannot_be_read_is_an_empty_draft(tiny_target: LlamaTarget, answer: Any) -> None:
    """generate() raised the exception of a lazy draft, and OverflowError for a probability too large for a
    float. The answer counts as junk, and other layers continue."""
    prompt = talkative_prompt(tiny_target, 20)
    plain = generate(tiny_target, prompt, max_tokens=20).token_ids
    bad = ScriptedLayer(lambda text, budget: answer, "bad")
    good = ScriptedLayer(lambda text, budget: chain(plain[len(text) - len(prompt) :][:5]), "good")
    result = generate(tiny_target, prompt, layers=[bad, good], max_tokens=20, curve=CHEAP)
    assert result.token_ids == plain
    counts = result.stats.layer("bad")
    assert counts.junk == counts.asked > 0
    assert result.stats.layer("good").sent.accepted > 10


def test_a_layer_whose_attributes_raise_is_an_empty_draft(tiny_target: LlamaTarget) -> None:
    """The lookup of set_cost() before the first step ended the generation if it raised
    anything but AttributeError."""

    class Broken:
        spec = LayerSpec("bad", LayerKind.SUFFIX)

        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    prompt = talkative_prompt(tiny_target, 10)
    plain = generate(tiny_target, prompt, max_tokens=10)
    layer: Any = Broken()
    result = generate(tiny_target, prompt, layers=[layer], max_tokens=10, curve=CHEAP)
    assert result.token_ids == plain.token_ids
    counts = result.stats.layer("bad")
    assert counts.failures == counts.asked > 0


def test_every_step_is_sent_exactly_once(tiny_target: LlamaTarget) -> None:
    """A session receives each emitted token once, at its position, with what was sent."""
    prompt = talkative_prompt(tiny_target, 40)
    plain = generate(tiny_target, prompt, max_tokens=40).token_ids

    class Recorder:
        def __init__(self) -> None:
            self.text = list(prompt)
            self.verified: list[Verified | None] = []
            self.fail_at = 4

        def step(self, new: list[int], max_draft_tokens: int, verify_cost: object, **more: object) -> Draft:
            at = more["at"]
            assert isinstance(at, int)
            assert at <= len(self.text)
            assert self.text[at : at + len(new)] == list(new)[: len(self.text) - at]
            self.text = [*self.text[:at], *new]
            self.verified.append(more["verified"])  # type: ignore[arg-type]  # what the layer passes
            if len(self.verified) == self.fail_at:
                raise TimeoutError("appended, but the answer was lost")
            ahead = plain[len(self.text) - len(prompt) :][: min(3, max_draft_tokens)]
            return chain(list(ahead)) if ahead else Draft.empty()

    session = Recorder()
    layer = SuffixLayer(session)  # type: ignore[arg-type]  # only step() is called
    result = generate(tiny_target, prompt, layers=[layer], max_tokens=40, curve=CHEAP)
    assert result.token_ids == plain
    assert session.text == [*prompt, *plain]
    assert result.stats.layer("suffix").failures == 1
    widths = [len(s.token_ids) for s in result.steps]
    widths_sent = [v.width for v in session.verified[1:] if v is not None]
    assert widths_sent == widths, "one message a step, and one for the last"


def test_suffix_and_prompt_lookup_over_the_embedded_engine(tiny_target: LlamaTarget) -> None:
    """Another session wrote the same text, so tokens come from the namespace; the same text again in one
    session comes from the prompt."""
    prompt = talkative_prompt(tiny_target, 50)
    plain = generate(tiny_target, prompt, max_tokens=50)
    fingerprint = tiny_target.model.vocabulary.fingerprint
    with SuffixCache() as cache:
        namespace = cache.namespace("test/tiny", tokenizer=fingerprint)
        for _ in range(3):
            session = namespace.open_session(prompt)
            layers = [PromptLookupLayer(), SuffixLayer(session)]
            result = generate(tiny_target, prompt, layers=layers, max_tokens=50, curve=CHEAP)
            assert result.token_ids == plain.token_ids
            assert session.close() is not None
    stats = result.stats
    drafts, hits, share = stats.hit_rates("suffix")
    assert share > 0.5
    assert 0 < hits <= drafts <= 1
    assert stats.mat > 2
    assert set(result.sources) >= {DraftSource.NONE, DraftSource.NAMESPACE}
    kinds = {kind: counts.output_tokens for kind, counts in stats.evidence.items()}
    assert sum(kinds.values()) == 50
    assert kinds["suffix"] == sum(s in (DraftSource.NAMESPACE, DraftSource.CORPUS) for s in result.sources)

    repeated = [*prompt, *plain.token_ids, *prompt, *plain.token_ids[:20]]
    alone = generate(tiny_target, repeated, max_tokens=20)
    looked_up = generate(tiny_target, repeated, layers=[PromptLookupLayer()], max_tokens=20, curve=CHEAP)
    assert looked_up.token_ids == alone.token_ids
    assert looked_up.stats.layer("prompt-lookup").answered > 0


def test_sources_and_steps_agree(tiny_target: LlamaTarget) -> None:
    prompt = talkative_prompt(tiny_target, 40)
    plain = generate(tiny_target, prompt, max_tokens=40).token_ids
    seen: list[StepRecord] = []
    layer = ScriptedLayer(
        lambda text, budget: chain([*plain[len(text) - len(prompt) :][:4], 3, 3][: max(budget, 0)])
    )
    result = generate(
        tiny_target,
        prompt,
        DriverConfig(policy="first-match"),
        [layer],
        max_tokens=40,
        curve=CHEAP,
        on_step=seen.append,
    )
    assert tuple(seen) == result.steps
    assert len(result.sources) == len(result.token_ids) == 40
    at = 0
    for step in result.steps:
        assert step.start == len(prompt) + at - 1
        from_draft = result.sources[at : at + len(step.emitted)]
        assert sum(s != DraftSource.NONE for s in from_draft) == min(step.accepted, len(step.emitted))
        at += len(step.emitted)
    assert result.stats.tokens == at == 40
    assert result.stats.accepted == sum(s.accepted for s in result.steps)
    data = result.stats.to_json()
    assert data["mat"] == pytest.approx(40 / len(result.steps))
    doubled = type(result.stats)()
    doubled.add(result.stats)
    doubled.add(result.stats)
    assert doubled.tokens == 80
    assert doubled.mat == result.stats.mat
    assert doubled.layer_hit_rates("scripted") == result.stats.layer_hit_rates("scripted")
