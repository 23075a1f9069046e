"""The adapter under the real transformers: generate() writes what it writes alone, token for token.

The models are tiny, random and of float64: the gap between two logits is never within what another batch
width changes.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError, InvalidInputError

pytestmark = pytest.mark.adapters

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from suffixsvc_adapters import TrackerConfig  # noqa: E402
from suffixsvc_adapters.huggingface import SuffixCandidates, SuffixDecoding  # noqa: E402
from support.engine_parts import parts_of  # noqa: E402

VOCAB = 61
PROMPTS = ([3, 4, 5], [7, 8, 9, 7, 8], [3, 4, 5], [7, 8, 9, 7, 8])


def tiny(seed: int = 0, **settings: Any) -> Any:
    torch.manual_seed(seed)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=512,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=None,
        pad_token_id=0,
        **settings,
    )
    return transformers.LlamaForCausalLM(config).double().eval()


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny()


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache
        cache.check()


@pytest.fixture
def decoding(cache: SuffixCache) -> Iterator[SuffixDecoding]:
    with SuffixDecoding(cache.namespace("tiny")) as decoding:
        yield decoding
        assert decoding.stats.failures == 0


def generate(model: Any, prompt: list[int], **settings: Any) -> list[int]:
    settings = {"max_new_tokens": 60, "do_sample": False, **settings}
    written = model.generate(torch.tensor([prompt]), **settings)
    return [int(token) for token in written[0]]


def test_tokens_are_those_of_plain_generate(model: Any, cache: SuffixCache, decoding: SuffixDecoding) -> None:
    for prompt in PROMPTS:
        assert generate(model, prompt, custom_generate=decoding) == generate(model, prompt)
    stats = decoding.stats
    assert stats.opened == len(PROMPTS)
    assert stats.accepted > 100  # of 240: the second half is the first half again
    decoding.tracker.flush()
    kept = [stored.output.token_ids.tolist() for stored in parts_of(cache).store.scan("tiny")]
    assert kept == [generate(model, prompt)[len(prompt) :] for prompt in PROMPTS]  # to the last token


@pytest.mark.parametrize("max_new_tokens", [1, 2, 3, 7])
def test_no_more_is_written_than_may_be(max_new_tokens: int, model: Any, decoding: SuffixDecoding) -> None:
    generate(model, PROMPTS[0], custom_generate=decoding)
    for prompt in PROMPTS:
        limit = {"max_new_tokens": max_new_tokens}
        assert generate(model, prompt, custom_generate=decoding, **limit) == generate(model, prompt, **limit)


def test_an_end_of_text_inside_a_draft_ends_the_text(model: Any, decoding: SuffixDecoding) -> None:
    """transformers#31301: a block in which the end was accepted went on behind it. Every token of the text
    is made the end once, so that it falls everywhere in what is drafted."""
    text = generate(model, PROMPTS[1])
    generate(model, PROMPTS[1], custom_generate=decoding)
    for end in sorted(set(text[len(PROMPTS[1]) :])):
        for ends in (end, [end, VOCAB - 1]):
            settings = {"eos_token_id": ends, "pad_token_id": 0}
            drafted = generate(model, PROMPTS[1], custom_generate=decoding, **settings)
            assert drafted == generate(model, PROMPTS[1], **settings)
            assert drafted[-1] == end
    assert decoding.stats.accepted > 0


def test_a_model_without_an_end_is_no_trouble(model: Any, decoding: SuffixDecoding) -> None:
    """transformers#46790: candidates were compared with an end that was not there."""
    assert model.generation_config.eos_token_id is None
    assert generate(model, PROMPTS[0], custom_generate=decoding) == generate(model, PROMPTS[0])


def test_a_sampled_text_is_the_models(model: Any, decoding: SuffixDecoding) -> None:
    """Drafts come without probabilities: what is accepted is what was sampled at that position. With all of
    the probability on one token, sampling with drafts has to give the greedy text."""
    sampled = {"do_sample": True, "top_k": 1}
    for prompt in PROMPTS:
        assert generate(model, prompt, custom_generate=decoding, **sampled) == generate(model, prompt)


def test_processors_of_logits_rule_with_drafts_as_without(model: Any, decoding: SuffixDecoding) -> None:
    for settings in ({"repetition_penalty": 1.7}, {"bad_words_ids": [[5], [9]]}, {"min_new_tokens": 20}):
        for prompt in PROMPTS[:2]:
            expected = generate(model, prompt, **settings)
            assert generate(model, prompt, custom_generate=decoding, **settings) == expected


def test_generations_in_several_threads(model: Any, decoding: SuffixDecoding) -> None:
    prompts = [[2 + n, 3, 4] for n in range(6)]
    expected = [generate(model, prompt) for prompt in prompts]
    with ThreadPoolExecutor(3) as pool:
        got = list(pool.map(lambda prompt: generate(model, prompt, custom_generate=decoding), prompts))
    assert got == expected


def test_a_sliding_window_is_rolled_back(cache: SuffixCache) -> None:
    torch.manual_seed(3)
    config = transformers.MistralConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        sliding_window=8,
        initializer_range=0.3,
        eos_token_id=None,
        pad_token_id=0,
    )
    model = transformers.MistralForCausalLM(config).double().eval()
    with SuffixDecoding(cache.namespace("window")) as decoding:
        for prompt in PROMPTS:
            assert generate(model, prompt, custom_generate=decoding) == generate(model, prompt)
        assert decoding.stats.accepted > 0


def test_the_model_is_left_as_it_was(model: Any, decoding: SuffixDecoding) -> None:
    kind, before = type(model), dict(model.__dict__)
    generate(model, PROMPTS[0], custom_generate=decoding)
    assert type(model) is kind
    assert model.__dict__.keys() == before.keys()
    assert "_get_candidate_generator" not in vars(kind)


def test_one_sequence_at_a_time(model: Any, decoding: SuffixDecoding) -> None:
    ids = torch.tensor([[3, 4, 5], [6, 7, 8]])
    with pytest.raises(InvalidInputError, match=r"one sequence at a time.*got shape \(2, 3\)"):
        model.generate(ids, custom_generate=decoding, max_new_tokens=4)
    with pytest.raises(InvalidInputError, match="num_beams=1; got 2"):
        generate(model, PROMPTS[0], custom_generate=decoding, num_beams=2)
    with pytest.raises(InvalidInputError, match="one sequence at a time"):
        generate(model, PROMPTS[0], custom_generate=decoding, do_sample=True, num_return_sequences=2)
    with pytest.raises(InvalidInputError, match="one sequence at a time"):
        SuffixCandidates(decoding.tracker).get_candidates(ids)


def test_a_state_that_cannot_be_cropped_is_refused(decoding: SuffixDecoding) -> None:
    config = transformers.MambaConfig(
        vocab_size=VOCAB, hidden_size=16, num_hidden_layers=1, eos_token_id=None
    )
    model = transformers.MambaForCausalLM(config).eval()
    with pytest.raises(InvalidInputError, match="MambaForCausalLM"):
        generate(model, PROMPTS[0], custom_generate=decoding, max_new_tokens=4)


def test_a_release_that_is_built_differently_is_named(model: Any, decoding: SuffixDecoding) -> None:
    class Other:
        config = model.config
        generation_config = model.generation_config

    with pytest.raises(InvalidConfigError, match=f"transformers {transformers.__version__}"):
        decoding(Other(), torch.tensor([[1]]), None, None, model.generation_config)


def test_a_cache_that_fails_costs_drafts_only(model: Any) -> None:
    cache = SuffixCache()
    with SuffixDecoding(cache.namespace("a"), TrackerConfig(max_draft_tokens=4)) as decoding:
        generate(model, PROMPTS[0], custom_generate=decoding)
        cache.close()
        assert generate(model, PROMPTS[0], custom_generate=decoding) == generate(model, PROMPTS[0])
        assert decoding.stats.failures > 0


def test_candidates_are_shaped_as_transformers_wants_them(
    cache: SuffixCache, decoding: SuffixDecoding
) -> None:
    candidates = SuffixCandidates(decoding.tracker, max_length=8, vocab_size=VOCAB)
    assert isinstance(candidates, transformers.generation.candidate_generator.CandidateGenerator)
    ids = torch.tensor([[3, 4, 3, 4, 3]])
    longer, logits = candidates.get_candidates(ids)
    assert logits is None
    assert longer.dtype == ids.dtype
    assert longer.tolist() == [[3, 4, 3, 4, 3, 4, 3]]  # one of the eight is the model's own
    assert candidates.update_candidate_strategy(longer, torch.zeros(1, 3, VOCAB), 2) is None
    candidates.end()
