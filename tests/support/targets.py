"""Settings of targets for tests."""

from __future__ import annotations

from suffixsvc_driver.loop import generate
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.llama_context import ContextSettings

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
