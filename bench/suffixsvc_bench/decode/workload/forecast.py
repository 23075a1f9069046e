"""Speedup that a replay of the same calls predicts: drafts at the measured costs of steps.

A live run has costs that the replay ignores: queries to the service, the driver's own time, wrong cost
estimates, and texts that flip at a near-tie. The cost curve is that of the run itself, learned from the steps
of all variants, not the one that was measured before the run.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np

from suffixsvc_bench.decode.workload.jobs import Job, Workload
from suffixsvc_bench.methods.base import Settings
from suffixsvc_bench.methods.ours import Ours
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import replay_method
from suffixsvc_bench.speculation.paired import Pair
from suffixsvc_driver.cost.curve import CostCurve


def forecast_speedup(workload: Workload, pairs: Sequence[Pair], curve: CostCurve) -> float:
    """Speedup of ``bench replay --cost-curve`` over the texts that a variant wrote in all rounds, with the
    same warm-up before each round.

    A near-tie between two tokens can resolve differently in batches of different width, so these texts can
    differ from plain decoding's.

    Args:
        pairs: of the variant, round by round.
        curve: mean cost curve while the texts were written, learned from the steps of all variants.
    """
    cost, jobs = curve.effective(), workload.jobs
    warmup = [_call(answered.job, answered.token_ids) for answered in workload.warmup]
    tokens = seconds = 0.0
    for at in range(0, len(pairs), len(jobs)):
        texts = [pair.outcome.token_ids for pair in pairs[at : at + len(jobs)]]
        calls = [_call(job, text) for job, text in zip(jobs, texts, strict=True)]
        with closing(Ours(Settings(curve.max_width - 1, cost))) as method:
            replay_method(method, warmup)
            speedup = replay_method(method, calls).speedup(cost)
        round_tokens = sum(map(len, texts))
        tokens += round_tokens
        seconds += round_tokens / speedup if speedup else 0.0
    return tokens / seconds if seconds else 0.0


def _call(job: Job, token_ids: Sequence[int]) -> Call:
    prompt, response = (np.array(ids, np.int32) for ids in (job.prompt_ids, token_ids))
    return Call(prompt=prompt, response=response, agent=job.agent, session=job.key)
