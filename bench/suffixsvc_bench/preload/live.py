"""Live measurement of a recipe: held-out questions to a real model by the driver.

Each question is answered plainly, with a cold namespace, and with a cold namespace and the recipe preloaded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from suffixsvc import Namespace, SuffixCache
from suffixsvc_bench.replay.logs import Call
from suffixsvc_caches.recipes import Recipe, preload
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.loop import Result, generate
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.targets.single import LlamaTarget

__all__ = ["LiveRow", "run_live"]


@dataclass(frozen=True, slots=True)
class LiveRow:
    """Results of one recipe.

    Attributes:
        plain, cold, preloaded: decoding seconds of each question.
        tokens: tokens written for each question.
        steps: steps of the target, cold and preloaded, over all questions.
    """

    recipe: str
    plain: list[float]
    cold: list[float]
    preloaded: list[float]
    tokens: list[int]
    steps: tuple[int, int]

    def speedups(self) -> tuple[float, float, float]:
        """Medians over the questions: cold / plain, preloaded / plain, preloaded / cold."""
        pairs = ((self.plain, self.cold), (self.plain, self.preloaded), (self.cold, self.preloaded))
        cold, warm, both = (median(a / b for a, b in zip(one, other, strict=True)) for one, other in pairs)
        return cold, warm, both


class _LiveVariant:
    """One variant: with a namespace for all questions, or without one."""

    def __init__(self, namespace: Namespace | None) -> None:
        self._namespace = namespace
        self._calibrator = Calibrator()
        self.seconds: list[float] = []
        self.steps = 0

    def answer(
        self, target: LlamaTarget, curve: CostCurve | LiveCurve, call: Call, max_tokens: int
    ) -> Result:
        if self._namespace is None:
            result = generate(target, call.prompt, max_tokens=max_tokens, curve=curve)
        else:
            session = self._namespace.open_session(call.prompt)
            layers: list[Layer] = [PromptLookupLayer(), SuffixLayer(session)]
            result = generate(
                target,
                call.prompt,
                layers=layers,
                max_tokens=max_tokens,
                curve=curve,
                calibrator=self._calibrator,
            )
            session.close()
        self.seconds.append(result.decode_seconds)
        self.steps += result.stats.steps
        return result


def run_live(
    recipe: Recipe,
    target: LlamaTarget,
    curve: CostCurve | LiveCurve,
    calls: Sequence[Call],
    max_tokens: int,
    on_call: Callable[[], None] = lambda: None,
) -> LiveRow:
    """Answer every question three times.

    Args:
        on_call: called after each question.
    """
    tokens = []
    with SuffixCache() as empty, SuffixCache() as loaded:
        loaded.read_by_default(preload(loaded, [str(recipe.folder)]))
        plain, cold, warm = (
            _LiveVariant(None),
            *(_LiveVariant(cache.namespace("cold", tokenizer=recipe.tokenizer)) for cache in (empty, loaded)),
        )
        for call in calls:
            answers = [variant.answer(target, curve, call, max_tokens) for variant in (plain, cold, warm)]
            tokens.append(len(answers[0].token_ids))
            on_call()
    return LiveRow(recipe.name, plain.seconds, cold.seconds, warm.seconds, tokens, (cold.steps, warm.steps))
