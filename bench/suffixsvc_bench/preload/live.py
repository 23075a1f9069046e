"""Live measurement of a recipe: held-out questions to a real model by the driver.

Each question is answered plainly, with a cold namespace, and with a cold namespace and the recipe preloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from suffixsvc import SuffixCache
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_caches.recipes import Recipe, preload
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget


def run_live(
    recipe: Recipe,
    target: LlamaTarget,
    curve: CostCurve | LiveCurve,
    calls: Sequence[Call],
    max_tokens: int,
) -> dict[str, Any]:
    """Answer every question three times.

    Returns:
        JSON-able data: "plain_s", "cold_s" and "preloaded_s", the decoding seconds of each question; "tokens"
        written for each; "steps" of the target, cold and preloaded, over all questions.
    """
    tokens: list[int] = []
    seconds: tuple[list[float], ...] = ([], [], [])
    steps = [0, 0, 0]
    with SuffixCache() as empty, SuffixCache() as loaded:
        loaded.read_by_default(preload(loaded, [str(recipe.folder)]))
        cold, warm = (cache.namespace("cold", tokenizer=recipe.tokenizer) for cache in (empty, loaded))
        variants = [Speculator(target, curve, None, lookup=False)]
        variants += [Speculator(target, curve, namespace) for namespace in (cold, warm)]
        for prompt in (call.prompt.tolist() for call in calls):
            results = [each.drafted(prompt, max_tokens, DriverConfig(), {}).result for each in variants]
            tokens.append(len(results[0].token_ids))
            for i, result in enumerate(results):
                seconds[i].append(result.decode_seconds)
                steps[i] += result.stats.steps
    return {
        "recipe": recipe.name,
        "tokens": tokens,
        **dict(zip(("plain_s", "cold_s", "preloaded_s"), seconds, strict=True)),
        "steps": steps[1:],
    }
