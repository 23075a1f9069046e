"""What the replay says that the same calls would give: drafts priced by what steps took, nothing else.

A live run can only fall short of it by what the replay leaves out: asking the service, the driver's own
time, prices that it believed and that were not so, and text that flips at a near-tie. So the curve is that of
the run itself, as all its steps together show it, not the one that was measured before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from suffixsvc_driver.curve import CostCurve

from suffixsvc_bench.decode.jobs import Written
from suffixsvc_bench.methods.base import Method, Settings
from suffixsvc_bench.methods.ours import Ours
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import replay_method

__all__ = ["forecast_speedup"]


def forecast_speedup(
    rounds: Sequence[Sequence[Written]], warming: Sequence[Written], curve: CostCurve
) -> float:
    """Priced speedup of ``bench replay --cost-curve`` over the calls of all rounds, the memory warmed
    likewise before each."""
    cost = curve.effective()
    tokens = seconds = 0.0
    for calls in rounds:
        method: Method = Ours(Settings(curve.max_width - 1, cost))
        try:
            replay_method(method, [_call(written) for written in warming])
            speedup = float(replay_method(method, [_call(written) for written in calls]).speedup(cost))
        finally:
            method.close()
        written_now = sum(len(written.token_ids) for written in calls)
        tokens += written_now
        seconds += written_now / speedup if speedup else 0.0
    return tokens / seconds if seconds else 0.0


def _call(written: Written) -> Call:
    prompt, response = (np.array(ids, np.int32) for ids in (written.job.prompt_ids, written.token_ids))
    return Call(prompt=prompt, response=response, agent=written.job.agent, session=written.job.key, text="")
