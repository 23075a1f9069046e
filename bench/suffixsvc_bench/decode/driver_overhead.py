"""Overhead of the driver: decoding with every layer off, against a bare llama_decode loop.

    python -m suffixsvc_bench.decode.driver_overhead MODEL.gguf

Both write the same greedy tokens after the same prompt on the same context. Short runs alternate (A B B A
...), each pair gives one ratio, and the median is reported with a bootstrap interval, because a machine's
speed can drift by a fifth within minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from suffixsvc_bench.report.statistics import bootstrap_interval
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.targets.llama.binding import llama
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


class _BareLoop:
    """A minimal decode loop over llama.cpp's C API."""

    def __init__(self, target: LlamaTarget) -> None:
        self._lib = llama()
        self._context: Any = target.context._handle  # the same context makes the runs comparable
        self._memory = self._lib.llama_get_memory(self._context)
        self._row = ctypes.c_float * target.vocab_size
        self._batch = self._lib.llama_batch_init(1, 0, 1)
        self._batch.n_tokens = 1
        self._batch.n_seq_id[0] = 1
        self._batch.logits[0] = 1

    def run(
        self, last: int, position: int, tokens: int, clock: Callable[[], float]
    ) -> tuple[list[int], float]:
        """Write tokens after a KV cache of ``position`` tokens; return the tokens and the seconds."""
        lib, context, batch = self._lib, self._context, self._batch
        batch.seq_id[0][0] = 0
        written = []
        before = clock()
        for i in range(tokens):
            batch.token[0] = last
            batch.pos[0] = position + i
            if lib.llama_decode(context, batch) != 0:
                raise RuntimeError("llama_decode failed")
            row = lib.llama_get_logits_ith(context, 0)
            address: Any = self._row.from_address(ctypes.addressof(row.contents))
            last = int(np.frombuffer(address, np.float32).argmax())
            written.append(last)
        seconds = clock() - before
        lib.llama_memory_seq_rm(self._memory, 0, position, -1)
        return written, seconds

    def close(self) -> None:
        """Free the batch."""
        self._lib.llama_batch_free(self._batch)


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
        loop = _BareLoop(target)

        def bare() -> tuple[list[int], float]:
            target.begin(prompt)
            return loop.run(prompt[-1], len(prompt) - 1, tokens, clock)

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
        loop.close()
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


def main() -> None:
    """Parse the command line, measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--tokens", type=int, default=16, help="tokens per run")
    parser.add_argument("--cpu-time", action="store_true", help="CPU time instead of wall time")
    args = parser.parse_args()
    found = measure_overhead(
        args.model,
        threads=args.threads,
        pairs=args.pairs,
        tokens=args.tokens,
        clock=time.process_time if args.cpu_time else time.perf_counter,
    )
    print(f"bare llama_decode loop   {found.bare_ms:8.3f} ms a token (median of {found.pairs} runs)")
    print(f"driver, every layer off  {found.driver_ms:8.3f} ms a token")
    print(f"ratio, paired            {found.ratio:8.4f}    95 % interval {found.low:.4f} .. {found.high:.4f}")
    print(f"ratio, 10th percentiles  {found.quiet_ratio:8.4f}")
    print(f"driver outside the target {found.own_ms:7.4f} ms a step")
    print("same tokens: " + ("yes" if found.identical else "NO"))


if __name__ == "__main__":
    main()
