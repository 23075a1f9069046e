"""The replay itself: every step accepts what agrees with the record, plus one token of the target's own.

That is what greedy verification does: the longest drafted path that agrees with the recorded answer, and the
bonus token behind it. Nodes drafted beyond the end of an answer count as refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from suffixsvc.engine import SuffixCache
from suffixsvc.types import Draft, TokenArray, VerifyCost
from suffixsvc_bench.methods.base import Method, Settings
from suffixsvc_bench.methods.ours import Ours
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.tally import Tally

__all__ = ["Replay", "ReplayOptions", "accepted_path", "replay", "replay_method"]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How a log is replayed through our own engine."""

    #: a float (each drafted token costs the target that many plain steps) or a curve, see Session.step
    verify_cost: VerifyCost = 0.05
    max_draft_tokens: int = 64
    tree: bool | str = False
    #: only the last so many tokens of a prompt are used
    prompt_tokens: int = 3000


@dataclass(frozen=True, slots=True)
class Replay:
    """What our own engine did, priced at the cost it drafted for."""

    tally: Tally
    verify_cost: VerifyCost

    def rates(self) -> dict[str, Any]:
        """:meth:`Tally.rates` and the price."""
        rates = self.tally.rates()
        priced = {
            "priced_speedup": self.tally.speedup(self.verify_cost),
            "microseconds_per_step": rates["microseconds"]["mean"],
        }
        return rates | priced


def accepted_path(draft: Draft, truth: TokenArray) -> list[int]:
    """Indices of the drafted tokens that greedy verification would accept, in order."""
    path: list[int] = []
    node = -1
    tokens, parents = draft.token_ids.tolist(), draft.parents.tolist()
    ahead = truth[: len(tokens)].tolist()
    for i, (token, parent) in enumerate(zip(tokens, parents, strict=True)):
        if len(path) == len(ahead):
            break
        if parent == node and token == ahead[len(path)]:
            node = i
            path.append(i)
    return path


def replay_method(
    method: Method,
    calls: Iterable[Call],
    *,
    prompt_tokens: int = 0,
    progress: Callable[[Call], None] | None = None,
) -> Tally:
    """Replay calls in order.

    Args:
        method: keeps what it learns from them; closing it is the caller's.
        prompt_tokens: only the last so many tokens of a prompt are used; 0 = all.
        progress: called after each call.
    """
    tally = Tally()
    for call in calls:
        method.begin(call.prompt[-prompt_tokens:], call.agent)
        _generate(method, call.response, tally)
        method.end()
        tally.end_call()
        if progress is not None:
            progress(call)
    tally.memory_bytes = method.memory_bytes()
    return tally


def replay(
    calls: Iterable[Call],
    options: ReplayOptions,
    *,
    cache: SuffixCache | None = None,
    progress: Callable[[Call], None] | None = None,
) -> Replay:
    """Replay calls in order through our own engine.

    Args:
        cache: an engine that already knows something (namespace "replay"); None starts cold.
        progress: called after each call.
    """
    method = Ours(Settings(options.max_draft_tokens, options.verify_cost), options.tree, cache)
    try:
        tally = replay_method(method, calls, prompt_tokens=options.prompt_tokens, progress=progress)
    finally:
        method.close()
    return Replay(tally, options.verify_cost)


def _generate(method: Method, response: TokenArray, tally: Tally) -> None:
    at = 0
    clock = time.perf_counter
    while at < len(response):
        started = clock()
        draft = method.draft()
        seconds = clock() - started
        path = accepted_path(draft, response[at:])
        taken = min(len(path) + 1, len(response) - at)
        new = response[at : at + taken]
        started = clock()
        method.accept(new, len(path))
        seconds += clock() - started
        own = method.own_seconds()
        tally.count(draft, path, taken, seconds if own is None else own)
        at += taken
