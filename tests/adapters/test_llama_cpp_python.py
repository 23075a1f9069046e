"""The adapter under a real llama_cpp.Llama: the text stays the model's own, and is remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError, TokenizerMismatchError
from support.tiny_gguf import write_tiny_llama
from support.tiny_kinds import write_tiny_lfm2, write_tiny_mamba

llama_cpp = pytest.importorskip("llama_cpp")

from suffixsvc_adapters import SessionTracker, TrackerConfig  # noqa: E402
from suffixsvc_adapters.llama_cpp_python import SuffixDraftModel, attach, fingerprint  # noqa: E402


def make(path: Path, **settings: Any) -> Any:
    # flash_attn is off by default: with F32 weights and K/V the arithmetic is that of any batch width
    f32 = llama_cpp.GGML_TYPE_F32
    settings = {"n_ctx": 512, "n_batch": 64, "n_threads": 1, "n_threads_batch": 1, **settings}
    return llama_cpp.Llama(str(path), verbose=False, type_k=f32, type_v=f32, **settings)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=7)


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache
        cache.check()


def plain(path: Path, prompts: list[list[int]], tokens: int) -> list[list[int]]:
    llama = make(path)
    texts = []
    for prompt in prompts:
        text = []
        for token in llama.generate(prompt, temp=0.0, reset=True):
            text.append(token)
            if len(text) == tokens:
                break
        texts.append(text)
    llama.close()
    return texts


def generated(llama: Any, prompt: list[int], tokens: int) -> list[int]:
    text = []
    for token in llama.generate(prompt, temp=0.0, reset=True):
        text.append(token)
        if len(text) == tokens:
            break
    return text


PROMPTS = [
    [65, 66, 67, 68],
    list(b"question 3:"),
    list(b"question 4:"),
    [65, 66, 67, 68],
    list(b"question 3:"),
]


def test_tokens_are_those_of_plain_decoding_and_are_drafted_the_second_time(
    tiny_model: Path, cache: SuffixCache
) -> None:
    """More tokens than n_batch, which is what crashes without logits_all; two prompts come again."""
    tokens = 120
    expected = plain(tiny_model, PROMPTS, tokens)
    llama = make(tiny_model, logits_all=True)
    with attach(llama, cache, "tiny") as drafter:
        steps = []
        for prompt, right in zip(PROMPTS, expected, strict=True):
            asked = drafter.stats.asked
            assert generated(llama, prompt, tokens) == right
            steps.append(drafter.stats.asked - asked)
        stats = drafter.stats
    assert stats.failures == 0
    assert stats.opened == len(PROMPTS)
    assert stats.accepted > 0.5 * tokens
    assert steps[3] < steps[0] / 2
    assert steps[4] < steps[1] / 2
    assert cache.namespace("tiny").stats().outputs == len(PROMPTS)
    assert generated(llama, PROMPTS[0], 20) == expected[0][:20]  # closed: plainly again
    llama.close()


def test_a_chat_goes_on_in_its_session(tiny_model: Path, cache: SuffixCache) -> None:
    llama = make(tiny_model, logits_all=True)
    with attach(llama, cache, "tiny") as drafter:
        first = generated(llama, PROMPTS[1], 30)
        generated(llama, [*PROMPTS[1], *first, *b" and now the next one:"], 30)
        assert drafter.stats.opened == 1
        assert drafter.stats.turns == 1
    llama.close()


def test_sampled_text_is_that_of_the_same_seed(tiny_model: Path, cache: SuffixCache) -> None:
    """Temperature: each token is the sampler's own, so the same seed writes the same text with drafts."""
    without, with_drafts = make(tiny_model, seed=5), make(tiny_model, seed=5, logits_all=True)

    def sampled(llama: Any, seed: int) -> str:
        reply = llama.create_completion("question 4:", max_tokens=40, temperature=0.8, seed=seed)
        return str(reply["choices"][0]["text"])

    expected = [sampled(without, seed) for seed in (1, 2, 1)]
    with attach(with_drafts, cache, "tiny") as drafter:
        assert [sampled(with_drafts, seed) for seed in (1, 2, 1)] == expected
        assert drafter.stats.accepted > 0
    without.close()
    with_drafts.close()


def test_what_cannot_verify_drafts_is_refused(tiny_model: Path, cache: SuffixCache) -> None:
    llama = make(tiny_model)
    with pytest.raises(InvalidConfigError, match="logits_all=True"):
        attach(llama, cache, "tiny")
    assert llama.draft_model is None
    llama.close()
    other = make(tiny_model, draft_model=SuffixDraftModel(SessionTracker(cache.namespace("x"))))
    with pytest.raises(InvalidConfigError, match="room for 512 tokens; got 64 tokens"):
        attach(other, cache, "tiny")
    other.close()


@pytest.mark.parametrize("write", [write_tiny_mamba, write_tiny_lfm2])
def test_a_model_whose_state_cannot_be_rolled_back_is_refused(
    write: Callable[[Path], Path], tmp_path: Path, cache: SuffixCache
) -> None:
    """llama-cpp-python would stop with "llama_decode returned -1" at the first rejected token."""
    llama = make(write(tmp_path / "m.gguf"), logits_all=True)
    with pytest.raises(InvalidConfigError, match="recurrent state"):
        attach(llama, cache, "tiny")
    llama.close()


def test_the_namespace_belongs_to_the_models_tokenizer(
    tiny_model: Path, tmp_path: Path, cache: SuffixCache
) -> None:
    llama = make(tiny_model, logits_all=True)
    with attach(llama, cache, "tiny"):
        pass
    from suffixsvc_driver.targets.llama.model import LlamaModel

    with LlamaModel(tiny_model, vocab_only=True) as model:
        assert fingerprint(llama) == model.vocabulary.fingerprint
    llama.close()
    texts = [f"w{i}" for i in range(40)] + ["x" * 300]
    other = make(write_tiny_llama(tmp_path / "o.gguf", texts=texts, eos_id=0), logits_all=True)
    with pytest.raises(TokenizerMismatchError):
        attach(other, cache, "tiny")
    other.close()


def test_a_drafter_that_is_handed_in_copies_what_it_sees(cache: SuffixCache) -> None:
    """``Llama(draft_model=...)`` by hand, as documented; the view that it gets is written to again."""
    with SessionTracker(cache.namespace("tiny"), TrackerConfig(verify_cost=0.2)) as tracker:
        drafter = SuffixDraftModel(tracker)
        buffer = np.array([1, 2, 3, 1, 2], np.intc)
        draft = drafter(buffer)
        assert draft.dtype == np.intc
        assert draft.tolist()[:1] == [3]
        draft[:] = 0  # the caller's own
        buffer[:] = 9
        again = drafter(np.array([1, 2, 3, 1, 2], np.intc))
        assert again.tolist()[:1] == [3]
        assert tracker.stats.opened == 1
        assert drafter(np.array([-5], np.intc)).tolist() == []


@pytest.mark.model
def test_a_real_model_writes_what_it_writes_alone(real_model: Path, cache: SuffixCache) -> None:
    """Quantised: another batch width may round a near-tie the other way, so only the beginning is compared
    token by token; the second time nearly everything was drafted."""
    llama = llama_cpp.Llama(
        str(real_model), n_ctx=256, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False
    )
    prompt = llama.tokenize(b"def fibonacci(n):\n", add_bos=False)
    alone = generated(llama, prompt, 24)
    with attach(llama, cache, "smollm2") as drafter:
        first = generated(llama, prompt, 24)
        before = drafter.stats
        second = generated(llama, prompt, 24)
        after = drafter.stats
    llama.close()
    assert first[:8] == alone[:8]
    assert second[:8] == alone[:8]
    assert after.accepted - before.accepted >= 12
    assert after.asked - before.asked <= 12
    assert after.failures == 0
