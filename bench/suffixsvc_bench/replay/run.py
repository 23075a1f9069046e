"""The replay itself: every call becomes a session, every step accepts what agrees with the record.

A step accepts the longest drafted path that agrees with the recorded answer, plus one bonus token: what
greedy verification does. A layer is "prompt" (evidence in the session's own
text) or "suffix" (evidence in another session's output).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from suffixsvc.engine import Session, SuffixCache
from suffixsvc.types import Draft, DraftSource, TokenArray, VerifyCost
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.replay.logs import Call

__all__ = ["LayerRates", "Replay", "ReplayOptions", "accepted_path", "replay"]

LAYERS = {
    "prompt": frozenset({DraftSource.SESSION, DraftSource.PROMPT_LOOKUP}),
    "suffix": frozenset({DraftSource.NAMESPACE, DraftSource.CORPUS}),
}


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a log is replayed."""

    #: a float (each drafted token costs the target that many plain steps) or a curve, see Session.step
    verify_cost: VerifyCost = 0.05
    max_draft_tokens: int = 64
    tree: bool | str = False
    #: only the last so many tokens of a prompt are used
    prompt_tokens: int = 3000


@dataclass(slots=True)
class LayerRates:
    """What one layer did: counts of steps and tokens."""

    num_steps_with_draft: int = 0
    num_steps_with_hit: int = 0
    num_drafted: int = 0
    num_accepted: int = 0


@dataclass(slots=True)
class Replay:
    """What a replay counted."""

    calls: int = 0
    tokens: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    cost: float = 0.0  #: of all target steps, in plain decode steps
    seconds: float = 0.0  #: inside the engine
    steps_with_draft: int = 0
    steps_with_hit: int = 0
    layers: dict[str, LayerRates] = field(default_factory=lambda: {name: LayerRates() for name in LAYERS})

    def rates(self) -> dict[str, Any]:
        """The figures people look at: shares between 0 and 1, means, and the counts behind them."""

        def share(part: float, whole: float) -> float:
            return part / whole if whole else 0.0

        return {
            "calls": self.calls,
            "tokens": self.tokens,
            "steps": self.steps,
            "mean_accepted_tokens": share(self.tokens, self.steps),
            "drafted_per_step": share(self.drafted, self.steps),
            "acceptance_rate": share(self.accepted, self.drafted),
            "steps_with_draft": share(self.steps_with_draft, self.steps),
            "steps_with_hit": share(self.steps_with_hit, self.steps),
            "tokens_accepted": share(self.accepted, self.tokens),
            "priced_speedup": share(self.tokens, self.cost),
            "microseconds_per_step": share(self.seconds * 1e6, self.steps),
            "layers": {
                name: {
                    "steps_with_draft": share(layer.num_steps_with_draft, self.steps),
                    "steps_with_hit": share(layer.num_steps_with_hit, self.steps),
                    "tokens_accepted": share(layer.num_accepted, self.tokens),
                    "acceptance_rate": share(layer.num_accepted, layer.num_drafted),
                    **asdict(layer),
                }
                for name, layer in self.layers.items()
            },
        }


def accepted_path(draft: Draft, truth: TokenArray) -> list[int]:
    """Indices of the drafted tokens that greedy verification would accept, in order."""
    path: list[int] = []
    node = -1
    for i in range(len(draft)):
        if len(path) == len(truth):
            break
        if draft.parents[i] == node and draft.token_ids[i] == truth[len(path)]:
            node = i
            path.append(i)
    return path


def replay(
    calls: Iterable[Call],
    options: ReplayOptions,
    *,
    cache: SuffixCache | None = None,
    progress: Callable[[Call], None] | None = None,
) -> Replay:
    """Replay calls in order through one namespace.

    Args:
        cache: an engine that already knows something (namespace "replay"); None starts cold.
        progress: called after each call.
    """
    result = Replay()
    with SuffixCache() if cache is None else _Borrowed(cache) as engine:
        namespace = engine.namespace("replay")
        for call in calls:
            labels = {"agent": call.agent[:256]} if call.agent else None
            session = namespace.open_session(call.prompt[-options.prompt_tokens :], labels=labels)
            _generate(session, call.response, options, result)
            session.close()
            result.calls += 1
            if progress is not None:
                progress(call)
    return result


def _generate(session: Session, response: TokenArray, options: ReplayOptions, result: Replay) -> None:
    curve = as_cost_curve(options.verify_cost, options.max_draft_tokens)
    new: TokenArray = response[:0]
    at = 0
    while at < len(response):
        started = time.perf_counter()
        draft = session.step(new, options.max_draft_tokens, options.verify_cost, options.tree)
        result.seconds += time.perf_counter() - started
        path = accepted_path(draft, response[at:])
        taken = min(len(path) + 1, len(response) - at)
        new = response[at : at + taken]
        at += taken
        result.steps += 1
        result.tokens += taken
        result.cost += float(curve[len(draft)])
        _account(draft, path, result)
    session.step(new, max_draft_tokens=0)


def _account(draft: Draft, path: list[int], result: Replay) -> None:
    if len(draft) == 0:
        return
    result.drafted += len(draft)
    result.accepted += len(path)
    result.steps_with_draft += 1
    result.steps_with_hit += bool(path)
    for name, sources in LAYERS.items():
        mine = np.isin(draft.sources, [int(s) for s in sources])
        drafted, accepted = int(mine.sum()), int(mine[path].sum())
        layer = result.layers[name]
        layer.num_drafted += drafted
        layer.num_accepted += accepted
        layer.num_steps_with_draft += drafted > 0
        layer.num_steps_with_hit += accepted > 0


class _Borrowed:
    """A cache that is not ours to close."""

    def __init__(self, cache: SuffixCache) -> None:
        self._cache = cache

    def __enter__(self) -> SuffixCache:
        return self._cache

    def __exit__(self, *_: object) -> None:
        pass
