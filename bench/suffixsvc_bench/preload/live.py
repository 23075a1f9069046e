"""Live measurement of a recipe: held-out questions to a real model by the driver.

Each question is answered plainly, with a cold namespace, and with a cold namespace and the recipe preloaded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from suffixsvc import Namespace, SuffixCache
from suffixsvc_bench.replay.logs import Call
from suffixsvc_caches.recipes import Recipe, preload
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.targets.single import LlamaTarget


class _LiveVariant:
    """One variant: with a namespace for all questions, or without one."""

    def __init__(self, namespace: Namespace | None) -> None:
        self._namespace = namespace
        self._calibrator = Calibrator()
        self.seconds: list[float] = []
        self.steps = 0

    def answer(self, target: LlamaTarget, curve: CostCurve | LiveCurve, call: Call, max_tokens: int) -> int:
        """Answer a question; return the number of tokens."""
        session = None if self._namespace is None else self._namespace.open_session(call.prompt)
        result = generate(
            target,
            call.prompt,
            layers=[] if session is None else [PromptLookupLayer(), SuffixLayer(session)],
            max_tokens=max_tokens,
            curve=curve,
            calibrator=self._calibrator,
        )
        if session is not None:
            session.close()
        self.seconds.append(result.decode_seconds)
        self.steps += result.stats.steps
        return len(result.token_ids)


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
    tokens = []
    with SuffixCache() as empty, SuffixCache() as loaded:
        loaded.read_by_default(preload(loaded, [str(recipe.folder)]))
        plain, cold, warm = (
            _LiveVariant(None),
            *(_LiveVariant(cache.namespace("cold", tokenizer=recipe.tokenizer)) for cache in (empty, loaded)),
        )
        for call in calls:
            written = [variant.answer(target, curve, call, max_tokens) for variant in (plain, cold, warm)]
            tokens.append(written[0])
    return {
        "recipe": recipe.name,
        "tokens": tokens,
        "plain_s": plain.seconds,
        "cold_s": cold.seconds,
        "preloaded_s": warm.seconds,
        "steps": [cold.steps, warm.steps],
    }
