"""Steps of a follower beside those of an embedded engine, and of another engine as a control."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from suffixsvc import SuffixCache
from suffixsvc_bench.report.statistics import percentiles
from suffixsvc_bench.rpc.follower_figures import Role
from suffixsvc_bench.rpc.processes import service_process
from suffixsvc_bench.rpc.subjects import NAMESPACE, EngineSteps, FollowerSteps
from suffixsvc_bench.rpc.timing import alternating
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import SuffixClient

_PROMPT_TOKENS: Final = 200
_TEXT_TOKENS: Final = 4_000
_OUTPUT_TOKENS: Final = 500
_OUTPUTS: Final = 200
_WARM_CALLS: Final = 50
_ROUNDS: Final = 48
_MAX_DRAFT_TOKENS: Final = 16
#: sessions of another process that write the followed tokens
_WRITERS: Final = 20
#: pause before a step behind other work, as long as a decode step of a model on a CPU
_PAUSE_S: Final = 0.03


#: followed tokens a second of another process, and mode
_LOADS: Final = tuple((per_second, mode) for per_second in (0, 1000) for mode in ("hot", "behind"))


def follower_steps(
    notify: Callable[[str], None], *, calls: int, seed: int, loads: Sequence[tuple[int, str]] = _LOADS
) -> list[dict[str, Any]]:
    """Time steps of one session of a follower, of an embedded engine, and of another embedded engine.

    Args:
        notify: called with a description before each configuration.
        calls: timed calls of each subject.
        seed: of the texts.
        loads: followed tokens a second, and "hot" or "behind", of each configuration.

    Returns:
        A record for hot calls and for calls behind 30 ms of other work, each without other writers and beside
        1,000 followed tokens a second of another process: "mode", "followed_per_second", "calls"; "follower",
        "engine", "control": microseconds; "p50_ratio", "p99_ratio": follower / engine; "p50_control",
        "p99_control": control / engine, what the ratios are for equal subjects.
    """
    found = []
    for per_second, mode in loads:
        notify(f"follower, {mode}, {per_second} followed tokens/s")
        hot = mode == "hot"
        us = _timed(per_second, 0.0 if hot else _PAUSE_S, calls, Workload(seed))
        ratios = {
            f"{p}_{name}": us[subject][p] / us["engine"][p]
            for p in ("p50", "p99")
            for name, subject in (("ratio", "follower"), ("control", "control"))
        }
        found.append({"mode": mode, "followed_per_second": per_second, "calls": calls, **us, **ratios})
    return found


def _timed(per_second: int, pause_s: float, calls: int, workload: Workload) -> dict[str, dict[str, float]]:
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sfx-"))
        address = stack.enter_context(service_process(Path(folder)))["unix"]
        # caches of their own: sessions of one would draft from each other's text, which is the same
        caches = [stack.enter_context(SuffixCache()) for _ in range(2)]
        known = workload.outputs(NAMESPACE, _OUTPUTS, _OUTPUT_TOKENS)
        for cache in caches:
            cache.namespace(NAMESPACE).add_outputs(known)
        with SuffixClient(address) as client:
            client.namespace(NAMESPACE).add_outputs(known)
        if per_second:
            stack.enter_context(Role("write", address, _WRITERS, per_second))
        prompts, texts = [workload.text(_PROMPT_TOKENS)], [workload.text(_TEXT_TOKENS)]
        follower = stack.enter_context(closing(FollowerSteps(address, prompts, texts, _MAX_DRAFT_TOKENS)))
        engine, control = (
            stack.enter_context(closing(EngineSteps(cache, prompts, texts, _MAX_DRAFT_TOKENS)))
            for cache in caches
        )
        taken = alternating((follower, engine, control), calls, _ROUNDS, pause_s, _WARM_CALLS)
    return dict(zip(("follower", "engine", "control"), map(percentiles, taken), strict=True))
