"""Overhead of the driver: decoding with every layer off, against a bare loop over llama.cpp's context.

Both write the same greedy tokens after the same prompt on the same context. Short runs alternate (A B B A
...), each pair gives one ratio, and the median is reported with a bootstrap interval, because a machine's
speed can drift by a fifth within minutes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from suffixsvc_bench.report.statistics import bootstrap_interval
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.single import LlamaTarget

__all__ = ["Overhead", "measure_overhead"]

_PROMPT = "Write an SQL query that lists the ten customers with the highest revenue."


@dataclass(frozen=True, slots=True)
class Overhead:
    """Ratios driver / bare loop of seconds per token.

    Attributes:
        ratio: median of the pairs. low, high: its 95 % bootstrap interval.
        quiet_ratio: ratio of the 10th percentiles, where other processes disturbed the loops least.
        pairs: number of pairs.
        bare_ms, driver_ms: medians, milliseconds per token.
        own_ms: time of the driver outside the target, milliseconds per step.
        identical: both loops wrote the same tokens.
    """

    ratio: float
    low: float
    high: float
    quiet_ratio: float
    pairs: int
    bare_ms: float
    driver_ms: float
    own_ms: float
    identical: bool


def measure_overhead(
    model: str,
    *,
    threads: int = 1,
    pairs: int = 40,
    tokens: int = 16,
    clock: Callable[[], float] = time.perf_counter,
) -> Overhead:
    """Measure the pairs.

    Args:
        model: path of a GGUF file.
        threads: threads of the target.
        pairs: number of pairs.
        tokens: tokens per run; few, so that both runs of a pair see the same machine.
        clock: ``time.process_time`` is the better clock where other processes keep the cores busy.
    """
    settings = ContextSettings(context_size=512, slots=1, threads=threads)
    ratios: list[float] = []
    bare_ms: list[float] = []
    driver_ms: list[float] = []
    own: list[float] = []
    identical = True
    with LlamaTarget(model, settings) as target:
        prompt = target.model.tokenize(target.model.chat([{"role": "user", "content": _PROMPT}]))

        def bare() -> tuple[list[int], float]:
            target.begin(prompt)
            context, written, last = target.context, list[int](), prompt[-1]
            before = clock()
            for position in range(len(prompt) - 1, len(prompt) - 1 + tokens):
                context.decode([last], position, 0, logits=True)
                last = int(context.logits(0).argmax())
                written.append(last)
            seconds = clock() - before
            context.cut(0, len(prompt) - 1)
            return written, seconds

        def driven() -> tuple[list[int], float]:
            result = generate(target, prompt, max_tokens=tokens, clock=clock)
            inside = sum(step.target_seconds for step in result.steps)
            own.append(1000 * (result.decode_seconds - inside) / len(result.steps))
            return list(result.token_ids), result.decode_seconds

        bare(), driven()
        for turn in range(pairs):
            if turn % 2:
                (b, b_seconds), (a, a_seconds) = driven(), bare()
            else:
                (a, a_seconds), (b, b_seconds) = bare(), driven()
            identical &= a[: len(b)] == b
            bare_ms.append(1000 * a_seconds / len(a))
            driver_ms.append(1000 * b_seconds / len(b))
            ratios.append(driver_ms[-1] / bare_ms[-1])
    low, high = bootstrap_interval(np.array(ratios), lambda drawn: np.median(drawn, axis=1))
    return Overhead(
        statistics.median(ratios),
        low,
        high,
        float(np.percentile(driver_ms, 10) / np.percentile(bare_ms, 10)),
        pairs,
        statistics.median(bare_ms),
        statistics.median(driver_ms),
        statistics.median(own),
        identical,
    )
