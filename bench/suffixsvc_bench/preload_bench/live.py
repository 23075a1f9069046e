"""The same questions asked of the real model, by the driver: plain, from a cold namespace, and from a cold
namespace with the recipe preloaded, one after the other for each question."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from suffixsvc_caches.recipes import Recipe, preload
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.loop import Result, generate
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.trust import Trust

from suffixsvc import Namespace, SuffixCache
from suffixsvc_bench.replay.logs import Call

__all__ = ["LiveRow", "run_live"]


@dataclass(frozen=True, slots=True)
class LiveRow:
    """One recipe.

    Attributes:
        plain, cold, preloaded: seconds of each question's decoding.
        tokens: written, of each question.
        steps: of the target, cold and preloaded, over all questions.
    """

    recipe: str
    plain: list[float]
    cold: list[float]
    preloaded: list[float]
    tokens: list[int]
    steps: tuple[int, int]

    def speedups(self) -> tuple[float, float, float]:
        """Medians over the questions: cold against plain, preloaded against plain, preloaded against cold."""
        pairs = ((self.plain, self.cold), (self.plain, self.preloaded), (self.cold, self.preloaded))
        cold, warm, both = (median(a / b for a, b in zip(one, other, strict=True)) for one, other in pairs)
        return cold, warm, both


class _Way:
    """One way to answer: with a memory of its own that lives for all questions, or with none."""

    def __init__(self, namespace: Namespace | None) -> None:
        self._namespace = namespace
        self._trust = Trust()
        self.seconds: list[float] = []
        self.steps = 0

    def ask(self, target: LlamaTarget, curve: CostCurve | LiveCurve, call: Call, max_tokens: int) -> Result:
        if self._namespace is None:
            result = generate(target, call.prompt, max_tokens=max_tokens, curve=curve)
        else:
            session = self._namespace.open_session(call.prompt)
            layers: list[Layer] = [PromptLookupLayer(), SuffixLayer(session)]
            result = generate(
                target, call.prompt, layers=layers, max_tokens=max_tokens, curve=curve, trust=self._trust
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
    """Ask every question three times."""
    tokens = []
    with SuffixCache() as empty, SuffixCache() as loaded:
        loaded.read_by_default(preload(loaded, [str(recipe.folder)]))
        plain, cold, warm = (
            _Way(None),
            *(_Way(cache.namespace("cold", tokenizer=recipe.tokenizer)) for cache in (empty, loaded)),
        )
        for call in calls:
            answers = [way.ask(target, curve, call, max_tokens) for way in (plain, cold, warm)]
            tokens.append(len(answers[0].token_ids))
            on_call()
    return LiveRow(recipe.name, plain.seconds, cold.seconds, warm.seconds, tokens, (cold.steps, warm.steps))
