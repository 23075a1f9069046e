"""Speedup that a replay of the same calls predicts: drafts at the measured costs of steps.

A live run has costs that the replay ignores: queries to the service, the driver's own time, wrong cost
estimates, and texts that flip at a near-tie. The cost curve is that of the run itself, learned from the steps
of all variants, not the one that was measured before the run.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from suffixsvc_bench.decode.workload.jobs import AnsweredJob
from suffixsvc_bench.methods.base import Method, Settings
from suffixsvc_bench.methods.ours import Ours
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import replay_method
from suffixsvc_driver.cost.curve import CostCurve

__all__ = ["forecast_speedup"]


def forecast_speedup(
    rounds: Sequence[Sequence[AnsweredJob]], warmup: Sequence[AnsweredJob], curve: CostCurve
) -> float:
    """Speedup of ``bench replay --cost-curve`` over the calls of all rounds, with the same warm-up before
    each.
    """
    cost = curve.effective()
    tokens = seconds = 0.0
    for calls in rounds:
        method: Method = Ours(Settings(curve.max_width - 1, cost))
        try:
            replay_method(method, [_call(answered) for answered in warmup])
            speedup = float(replay_method(method, [_call(answered) for answered in calls]).speedup(cost))
        finally:
            method.close()
        round_tokens = sum(len(answered.token_ids) for answered in calls)
        tokens += round_tokens
        seconds += round_tokens / speedup if speedup else 0.0
    return tokens / seconds if seconds else 0.0


def _call(answered: AnsweredJob) -> Call:
    job = answered.job
    prompt, response = (np.array(ids, np.int32) for ids in (job.prompt_ids, answered.token_ids))
    return Call(prompt=prompt, response=response, agent=job.agent, session=job.key, text="")
