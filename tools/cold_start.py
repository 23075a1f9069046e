"""Cost of drafting in the first calls of a server on an empty memory, against plain decoding.

    python tools/cold_start.py MODEL [--workload chat|sql|json|code] [--calls 20] [--tokens 96] [--threads N]

One engine, as ``suffixsvc openai`` opens it, with nothing stored and nothing learned but the prices measured
at its start. Each prompt is answered twice in a row, plain and with drafts, in alternating order. Printed are

* the cost of all verified tokens by the curve that the engine has learned by the end, in plain steps per
  token (1 for plain decoding), and
* the seconds per token of decoding, with drafts relative to plain, with a 95 % interval over the calls.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from pathlib import Path
from typing import Final

import suffixsvc_models as models
from suffixsvc_bench.workloads import WORKLOADS, load_workload
from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_driver.targets.llama.machine import usable_cores
from suffixsvc_openai.engine.call import Ended
from suffixsvc_openai.engine.engine import Engine, EngineSettings
from suffixsvc_openai.engine.plans import Caller, Plan

_SUBJECTS: Final = (
    "the sea", "a bakery", "chess", "volcanoes", "the moon", "bees", "trains", "glass", "tea", "a lighthouse",
    "maps", "winter", "jazz", "bridges", "a desert", "clocks", "salt", "whales", "paper", "a market",
)  # fmt: skip
_FORMS: Final = (
    "Explain {} to a child.",
    "Write a short poem about {}.",
    "What would surprise a visitor about {}?",
    "Give three facts about {}.",
)


def prompts_of(workload: str, count: int) -> list[list[dict[str, str]]]:
    """Messages of the calls."""
    if workload != "chat":
        return [list(task.messages) for task in load_workload(workload)[:count]]
    texts = [_FORMS[i % len(_FORMS)].format(_SUBJECTS[i % len(_SUBJECTS)]) for i in range(count)]
    return [[{"role": "user", "content": text}] for text in texts]


async def answer(engine: Engine, prompt: tuple[int, ...], tokens: int, *, drafts: bool) -> Result:
    """One answer."""
    call = await engine.start([Plan(prompt, tokens, caller=Caller(speculate=drafts, store=drafts))])
    outcome = None
    async for event in call.events():
        if isinstance(event, Ended):
            outcome = event.outcome
    while engine.unfinished:  # what was written is stored before the next call begins
        await asyncio.sleep(0.001)
    if not isinstance(outcome, Result):
        raise SystemExit(f"an answer failed: {outcome}")
    return outcome


async def run(engine: Engine, workload: str, calls: int, tokens: int) -> None:
    """Answer all prompts, and print the figures."""
    costs: list[float] = []
    seconds: list[float] = []
    written: list[int] = []
    results: list[Result] = []
    for at, messages in enumerate(prompts_of(workload, calls)):
        prompt = engine.tokenize(engine.model.chat(messages))
        pair = {
            drafts: await answer(engine, prompt, tokens, drafts=drafts)
            for drafts in (at % 2 > 0, at % 2 == 0)
        }
        taken = {
            drafts: (result.decode_seconds + result.notify_seconds) / len(result.token_ids)
            for drafts, result in pair.items()
        }
        seconds.append(taken[True] / taken[False])
        results.append(pair[True])
    curve = engine.curve.expected()
    for result in results:
        costs.append(sum(curve.cost(len(step.token_ids)) for step in result.steps))
        written.append(len(result.token_ids))
    error = 1.96 * statistics.stdev(seconds) / len(seconds) ** 0.5
    drafted = sum(len(step.token_ids) - 1 for result in results for step in result.steps)
    accepted = sum(step.accepted for result in results for step in result.steps)
    print(
        f"{workload}: {len(results)} calls, {sum(written)} tokens, {drafted} drafted, {accepted} accepted\n"
        f"  verified-token cost  {sum(costs) / sum(written):.3f} plain steps per token\n"
        f"  seconds per token    {statistics.mean(seconds):.3f} +- {error:.3f} of plain decoding",
        flush=True,
    )


def main() -> None:
    """Parse the command line, and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("--workload", choices=["chat", *WORKLOADS], action="append")
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=usable_cores())
    options = parser.parse_args()
    path: Path = models.resolve(options.model)
    for workload in options.workload or ["chat", *WORKLOADS]:
        began = time.perf_counter()
        settings = EngineSettings(path, ContextSettings(2048, 4, options.threads, max_width=32))
        with Engine(settings) as engine:
            started = time.perf_counter() - began
            shown = " ".join(f"{w}:{engine.curve.curve.cost(w):.2f}" for w in (2, 3, 4, 8, 16, 32))
            print(f"start {started:.1f} s; cost by width {shown}")
            asyncio.run(run(engine, workload, options.calls, options.tokens))


if __name__ == "__main__":
    main()
