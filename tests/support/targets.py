"""Settings of targets for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from suffixsvc_driver.decode.exactness import Exactness
from suffixsvc_driver.decode.loop import Result, generate
from suffixsvc_driver.sampling.rounding_tolerance import near_tie_distance
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget

#: what makes arithmetic independent of the batch's width
WIDTH_INDEPENDENT = ContextSettings(
    context_size=512, slots=3, threads=1, max_width=32, flash_attention=False, kv_type="f32"
)


def talkative_prompt(target: LlamaTarget, tokens: int) -> list[int]:
    """A prompt behind which the target writes at least so many tokens, greedily."""
    for n in range(200):
        prompt = target.model.tokenize(f"question {n}:")
        if len(generate(target, prompt, max_tokens=tokens).token_ids) == tokens:
            return prompt
    raise AssertionError("this random model always stops early; take another seed")


#: where cells of the KV lie decides in which order sums are taken, which moves tiny F32 logits by less than
#: this
_NOISE = 5e-3


def same_texts(target: LlamaTarget, got: Iterable[Result], expected: Iterable[Result]) -> None:
    """Each text is the expected one. One of all may leave it where rounding decides: at two tokens that are
    as good as equal, or at the very edge of the interval that a position's number falls into. (On tiny models
    that happens once in some thousand sampled tokens, elsewhere on every machine.)"""
    ties = 0
    for a, b in zip(got, expected, strict=True):
        if a.token_ids == b.token_ids:
            assert a.finish == b.finish
            continue
        k = next(
            i for i, pair in enumerate(zip(a.token_ids, b.token_ids, strict=False)) if pair[0] != pair[1]
        )
        text = [*a.prompt_ids, *a.token_ids[:k]]
        target.begin(text, fresh=True)
        logits = target.compute((text[-1],))[0]
        token, position = a.token_ids[k], len(text)
        if a.sampling.greedy:
            distance = abs(float(logits[b.token_ids[k]] - logits[token]))
        else:
            sampler = target.sampler(a.sampling, a.prompt_ids)
            for written in a.token_ids[:k]:
                sampler.accept(written)
            distance = near_tie_distance(logits, sampler, position, token, gap=_NOISE, share=_NOISE)
        assert distance <= _NOISE, f"position {position}: {token} for {b.token_ids[k]}, {distance}"
        ties += 1
    assert ties <= 1


def nearly_no_flips(report: Exactness) -> bool:
    """As :func:`same_texts`, of a report of the exactness checks."""
    sizes = [flip.gap if flip.distance is None else flip.distance for flip in report.flips]
    return len(sizes) <= 1 and all(size <= _NOISE for size in sizes)


def shared_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix, token by token."""
    n = 0
    while n < min(len(a), len(b)) and a[n] == b[n]:
        n += 1
    return n
