"""Steps of one session beside a noisy neighbour: a principal that loads the same service."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

from suffixsvc_bench.report.statistics import percentiles
from suffixsvc_bench.rpc.neighbours import KINDS, Neighbour
from suffixsvc_bench.rpc.processes import service_process
from suffixsvc_bench.rpc.subjects import NAMESPACE, StreamSteps
from suffixsvc_bench.rpc.timing import alternating
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import SuffixClient

_PROMPT_TOKENS: Final = 200
_TEXT_TOKENS: Final = 4_000
_OUTPUT_TOKENS: Final = 500
_OUTPUTS: Final = 200
_MAX_DRAFT_TOKENS: Final = 16
_WARM_CALLS: Final = 50
#: idle and noisy phases of each load, in turn
_ROUNDS: Final = 6
#: pause before a step, as of a decode step
_PAUSE_S: Final = 0.002
#: bounds of a neighbour's effect: either holds
MOST_RATIO: Final = 2.0
MOST_ADDED_MS: Final = 5.0


def neighbour_steps(
    notify: Callable[[str], None],
    *,
    calls: int,
    seed: int,
    kinds: Sequence[str] = KINDS,
    pause_s: float = _PAUSE_S,
) -> list[dict[str, Any]]:
    """Time steps of one session while a neighbour is idle, works, and is idle again, in alternating phases.

    The neighbour's own process has the lowest priority: it stands for clients on other machines.

    Args:
        notify: called with a description before each load.
        calls: timed calls of each of the three.
        seed: of the texts.
        kinds: loads, see :mod:`suffixsvc_bench.rpc.neighbours`.
        pause_s: CPU-bound pause before each call, seconds.

    Returns:
        A record for each load: "kind", "calls", "done": what the neighbour did; "idle", "noisy", "control":
        microseconds, where control is the second idle phase of a round; "p99_ratio", "p99_control": noisy and
        control / idle; "p99_added_ms": noisy - idle; "within": whether one of the two is within its bound.
    """
    found = []
    for kind in kinds:
        notify(f"neighbour: {kind}")
        found.append({"kind": kind, "calls": calls, **_beside(kind, calls, pause_s, Workload(seed))})
    return found


def _beside(kind: str, calls: int, pause_s: float, workload: Workload) -> dict[str, Any]:
    done: Counter[str] = Counter()
    taken: dict[str, list[float]] = {"idle": [], "noisy": [], "control": []}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="sfx-"))
        address = stack.enter_context(service_process(Path(folder)))["unix"]
        with SuffixClient(address) as client:
            client.namespace(NAMESPACE).add_outputs(workload.outputs(NAMESPACE, _OUTPUTS, _OUTPUT_TOKENS))
        neighbour = stack.enter_context(Neighbour(kind, address, "noise/load", niceness=19))
        prompts, texts = [workload.text(_PROMPT_TOKENS)], [workload.text(_TEXT_TOKENS)]
        steps = stack.enter_context(closing(StreamSteps(address, prompts, texts, _MAX_DRAFT_TOKENS)))
        alternating((steps,), _WARM_CALLS, 1, pause_s, 0)
        each = max(1, calls // _ROUNDS)
        for _ in range(_ROUNDS):
            for phase in taken:
                if phase == "noisy":
                    neighbour.begin()
                taken[phase] += alternating((steps,), each, 1, pause_s, 0)[0]
                if phase == "noisy":
                    done.update(neighbour.end())
    us = {phase: percentiles(seconds) for phase, seconds in taken.items()}
    return {**us, "done": dict(done), **_effect(us)}


def _effect(us: dict[str, dict[str, float]]) -> dict[str, Any]:
    idle, noisy, control = (us[phase]["p99"] for phase in ("idle", "noisy", "control"))
    added_ms = (noisy - idle) / 1e3
    return {
        "p99_ratio": noisy / idle,
        "p99_control": control / idle,
        "p99_added_ms": added_ms,
        "within": noisy / idle <= MOST_RATIO or added_ms <= MOST_ADDED_MS,
    }
