"""llama.cpp as a target: end tokens, full contexts, prompts kept between calls, damaged files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.errors import (
    InvalidConfigError,
    InvalidTokensError,
    LimitExceededError,
    ModelCorruptError,
    ModelError,
    ModelNotFoundError,
)
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.drafts.events import FinishReason
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.targets.llama import binding as llama_binding
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_models.gguf_header import check_gguf
from support.layers import ScriptedLayer, chain
from support.targets import WIDTH_INDEPENDENT, talkative_prompt

CARELESS = CostCurve.linear(0.001, 32)


def stopping_prompt(target: LlamaTarget) -> tuple[list[int], tuple[int, ...]]:
    """A prompt whose answer ends with an end token after some tokens."""
    for n in range(300):
        prompt = target.model.tokenize(f"stop {n}")
        plain = generate(target, prompt, max_tokens=40)
        if plain.finish is FinishReason.STOP and 4 <= len(plain.token_ids) <= 20:
            return prompt, plain.token_ids
    raise AssertionError("this random model never stops; take another seed")


def test_nothing_is_emitted_after_an_end_token_inside_an_accepted_block(tiny_target: LlamaTarget) -> None:
    """The draft contains the whole output and more: all of it is accepted, and nothing else is emitted."""
    prompt, answer = stopping_prompt(tiny_target)
    assert answer[-1] in tiny_target.eog_ids
    longer = [*answer, 65, 66, 67]
    layer = ScriptedLayer(lambda text, budget: chain(longer[len(text) - len(prompt) :]))
    result = generate(tiny_target, prompt, layers=[layer], max_tokens=40, curve=CARELESS)
    assert result.token_ids == answer
    assert result.finish is FinishReason.STOP
    assert len(result.steps) == 1
    assert result.steps[0].accepted == len(answer)
    # the slot holds all but the end token, so the next turn starts right there
    again = generate(tiny_target, [*prompt, *answer, 10, 11], max_tokens=3)
    assert again.prefill.reused == len(prompt) + len(answer) - 1


def test_a_stop_rule_ends_where_it_holds(tiny_target: LlamaTarget) -> None:
    prompt = talkative_prompt(tiny_target, 30)
    plain = generate(tiny_target, prompt, max_tokens=30).token_ids
    stop_at = plain[11]
    first = plain.index(stop_at)
    layer = ScriptedLayer(lambda text, budget: chain(plain[len(text) - len(prompt) :]))
    for layers in ([], [layer]):
        result = generate(
            tiny_target,
            prompt,
            layers=layers,
            max_tokens=30,
            curve=CARELESS,
            stop=lambda written: written[-1] == stop_at,
        )
        assert result.token_ids == plain[: first + 1]
        assert result.finish is FinishReason.STOP
        assert len(result.sources) == len(result.token_ids)


def fails_at(place: int) -> Callable[[object], bool]:
    """A stop rule that raises when it is asked for this time."""
    calls = itertools.count()
    return lambda text: 1 // (place - next(calls)) > 9


@pytest.mark.parametrize("place", [0, 1, 3])
def test_a_failed_step_rolls_its_sampler_back(tiny_target: LlamaTarget, place: int) -> None:
    """A stop rule that raised in the middle of a step left the tokens before it in penalties and grammar: the
    same step, asked for again, chose others, or the grammar ended with text that was never written."""
    sampling = Sampling(repeat_penalty=1.5, frequency_penalty=0.7, grammar='root ::= [a-z]{40} "."')
    prompt = tiny_target.model.tokenize("once")

    def write(drafts: Sequence[tuple[int, ...]], broken: int = -1) -> list[int]:
        tiny_target.begin(prompt)
        sampler = tiny_target.sampler(sampling, prompt)
        written: list[int] = []
        for step, drafted in enumerate(drafts):
            if step == broken:
                with pytest.raises(ZeroDivisionError):
                    tiny_target.verify(drafted, sampler, 5, fails_at(place))
            written += tiny_target.verify(drafted, sampler, 5).emitted
        return written

    plain = write([()] * 20)
    drafts = [tuple(plain[at : at + 4]) for at in range(0, 20, 5)]
    assert write(drafts) == plain, "each step accepts four tokens and writes one more"
    for broken in range(4):
        assert write(drafts, broken) == plain


def test_a_full_context_is_a_clear_end(tiny_target: LlamaTarget) -> None:
    assert tiny_target.context_size == 512
    prompt = ([*talkative_prompt(tiny_target, 30)] * 60)[-500:]
    for layers in ([], [ScriptedLayer(lambda text, budget: chain([text[-1]] * budget))]):
        result = generate(tiny_target, prompt, layers=layers, max_tokens=100, curve=CARELESS)
        if result.finish is not FinishReason.STOP:
            assert result.finish is FinishReason.CONTEXT
            # the last token needs no room of its own: it is never fed back
            assert len(result.token_ids) == 512 - 500 + 1
    whole = generate(tiny_target, [5] * 512, max_tokens=4)
    assert len(whole.token_ids) == 1


def test_prompts_that_cannot_be(tiny_target: LlamaTarget) -> None:
    with pytest.raises(LimitExceededError, match="513"):
        generate(tiny_target, [5] * 513)
    for wrong in ([], [-1], [tiny_target.vocab_size], [[1, 2]], [0.5], np.zeros((2, 2), int)):
        with pytest.raises(InvalidTokensError):
            generate(tiny_target, wrong)  # type: ignore[arg-type]  # that is the point
    tiny_target.begin([1])
    with pytest.raises(LimitExceededError, match="too wide"):
        tiny_target.verify([1] * 40, GREEDY, 5)
    with pytest.raises(InvalidConfigError, match="wider"):
        generate(tiny_target, [1], curve=CostCurve.linear(0.1, 33))
    # and it still works
    assert len(generate(tiny_target, talkative_prompt(tiny_target, 5), max_tokens=5).token_ids) == 5


def test_prompts_are_not_prefilled_twice(tiny_target: LlamaTarget) -> None:
    """Three agents share a system prompt; each keeps its own text, two more than there are slots come."""
    system = tiny_target.model.tokenize("You are one of several agents. " * 4)
    prompts = [[*system, *tiny_target.model.tokenize(f"Agent {n}: " * 5)] for n in range(5)]
    with LlamaTarget(tiny_target.model, WIDTH_INDEPENDENT) as fresh:
        expected = [generate(fresh, p, max_tokens=8).token_ids for p in prompts]
    reused = []
    for _ in range(2):
        for prompt, tokens in zip(prompts[:3], expected, strict=False):
            result = generate(tiny_target, prompt, max_tokens=8)
            assert result.token_ids == tokens
            reused.append(result.prefill.reused)
    assert reused[0] == 0
    assert min(reused[1:3]) >= len(system), "the system prompt is copied, not computed again"
    assert [r - len(p) for r, p in zip(reused[3:], prompts, strict=False)] == [-1, -1, -1]
    for prompt, tokens in zip(prompts[3:], expected[3:], strict=True):
        result = generate(tiny_target, prompt, max_tokens=8)
        assert result.token_ids == tokens
        assert result.prefill.reused >= len(system)


def test_slots_do_not_leak_into_each_other(tiny_model: Path) -> None:
    """Random prompts over common prefixes, many more than slots: always what a fresh target writes."""
    rng = np.random.default_rng(3)
    stems = [rng.integers(0, 256, 60).tolist() for _ in range(3)]
    with (
        LlamaTarget(tiny_model, WIDTH_INDEPENDENT) as target,
        LlamaTarget(tiny_model, WIDTH_INDEPENDENT) as other,
    ):
        for _ in range(40):
            stem = stems[rng.integers(3)]
            prompt = [*stem[: rng.integers(1, 60)], *rng.integers(0, 256, rng.integers(0, 50)).tolist()]
            other.begin(prompt, fresh=True)
            expected = other.verify((), GREEDY, 1).emitted
            target.begin(prompt)
            assert target.verify((), GREEDY, 1).emitted == expected


def test_text_and_tokens(tiny_target: LlamaTarget) -> None:
    model = tiny_target.model
    for text in ("", "SELECT 'ü' -- 漢字\n", "a" * 1000):
        assert model.detokenize(model.tokenize(text)) == text
    chat = model.chat([{"role": "system", "content": "s"}, {"role": "user", "content": "ü"}])
    assert chat == "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nü<|im_end|>\n<|im_start|>assistant\n"
    ids = model.tokenize(chat)
    assert ids[0] == 257
    assert model.detokenize(ids, special=True) == chat
    assert model.token_bytes(65) == b"A"
    assert model.token_bytes(model.vocab_size - 1) == b"", "padding stands for nothing"


@pytest.mark.parametrize("keep", [0, 3, 4, 20, 300, 0.5, 0.999])
def test_a_truncated_file_is_refused_before_llama_cpp_sees_it(
    tiny_model: Path, tmp_path: Path, keep: float
) -> None:
    data = tiny_model.read_bytes()
    path = tmp_path / "torn.gguf"
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(ModelCorruptError):
        LlamaModel(path)


def test_files_that_are_no_models(tmp_path: Path, tiny_model: Path) -> None:
    assert check_gguf(tiny_model).needed_bytes <= tiny_model.stat().st_size
    with pytest.raises(ModelNotFoundError):
        LlamaModel(tmp_path / "none.gguf")
    with pytest.raises(ModelNotFoundError):
        LlamaModel(tmp_path)
    (tmp_path / "text").write_text("just text")
    with pytest.raises(ModelCorruptError, match="not a GGUF"):
        LlamaModel(tmp_path / "text")
    data = bytearray(tiny_model.read_bytes())
    data[4] = 77
    (tmp_path / "version").write_bytes(data)
    with pytest.raises(ModelCorruptError, match="version"):
        LlamaModel(tmp_path / "version")


def test_random_damage_to_the_header_never_escapes_untyped(tiny_model: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(8)
    data = tiny_model.read_bytes()
    path = tmp_path / "damaged.gguf"
    refused = 0
    for _ in range(300):
        damaged = bytearray(data)
        for at in rng.integers(4, 3000, 3):
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            check_gguf(path)
        except ModelCorruptError:
            refused += 1
    assert refused > 10


def test_an_unknown_architecture_is_a_typed_error(tiny_model: Path, tmp_path: Path) -> None:
    path = tmp_path / "foreign.gguf"
    path.write_bytes(tiny_model.read_bytes().replace(b"llama.", b"lxxma.").replace(b"\0llama", b"\0lxxma"))
    with pytest.raises(ModelError, match=r"llama\.cpp cannot load"):
        LlamaModel(path)


def test_another_version_of_the_binding_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    import llama_cpp

    monkeypatch.setattr(llama_binding, "_module", None)
    monkeypatch.setattr(llama_cpp, "__version__", "0.3.37")
    with pytest.raises(ModelError, match=r"pip install llama-cpp-python==0\.3\.36"):
        llama_binding.llama()


def test_a_shifted_struct_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library returns its defaults through a struct that has one field less in front."""
    import ctypes

    import llama_cpp.llama_cpp as binding

    real = binding.llama_context_default_params()

    class Shifted(ctypes.Structure):
        _fields_ = binding.llama_context_params._fields_[1:]

    shifted = Shifted.from_buffer_copy(bytes(real))
    monkeypatch.setattr(llama_binding, "_module", None)
    monkeypatch.setattr(binding, "llama_context_default_params", lambda: shifted)
    with pytest.raises(ModelError, match="unknown layout of"):
        llama_binding.llama()


def test_closing_twice_and_use_after_close(tiny_model: Path) -> None:
    target = LlamaTarget(tiny_model, ContextSettings(threads=1))
    target.close()
    target.close()
    with pytest.raises(ModelError, match="closed"):
        LlamaTarget(target.model)
    with pytest.raises(InvalidConfigError):
        ContextSettings(kv_type="q4")
    with pytest.raises(InvalidConfigError):
        ContextSettings(max_width=600)
