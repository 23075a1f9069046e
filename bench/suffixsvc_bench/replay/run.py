"""Replay of calls: every step accepts what agrees with the record, plus one token of the target's own.

This is greedy verification: the longest drafted path that agrees with the recorded answer, and the bonus
token after it. Nodes drafted beyond the end of an answer count as rejected.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from suffixsvc.engine import SuffixCache
from suffixsvc.types import Draft, TokenArray, VerifyCost
from suffixsvc_bench.methods.base import Method, Settings
from suffixsvc_bench.methods.ours import Ours
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.stats import ReplayStats

#: tokens at the end of a prompt that are used by default
PROMPT_TOKENS = 3000


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
    progress: Callable[[], object] = lambda: None,
) -> ReplayStats:
    """Replay calls in order.

    Args:
        method: it keeps its state; the caller closes it.
        prompt_tokens: only this many tokens at the end of a prompt are used; 0 = all.
        progress: called after each call.
    """
    stats = ReplayStats()
    for call in calls:
        method.begin(call.prompt[-prompt_tokens:], call.agent)
        _generate(method, call.response, stats)
        method.end()
        stats.end_call()
        progress()
    stats.memory_bytes = method.memory_bytes()
    return stats


def replay(
    calls: Iterable[Call],
    verify_cost: VerifyCost = 0.05,
    max_draft_tokens: int = 64,
    *,
    tree: bool = False,
    cache: SuffixCache | None = None,
    progress: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Replay calls in order through our own engine.

    Args:
        verify_cost: cost of a drafted token in plain steps, or a curve, see Session.step.
        cache: an engine with contents in the namespace "replay"; None starts cold.
        progress: called after each call.

    Returns:
        :meth:`ReplayStats.rates`, with the speedup and the mean time of a step.
    """
    method = Ours(Settings(max_draft_tokens, verify_cost), tree, cache)
    try:
        stats = replay_method(method, calls, prompt_tokens=PROMPT_TOKENS, progress=progress)
    finally:
        method.close()
    rates = stats.rates()
    return rates | {
        "priced_speedup": stats.speedup(verify_cost),
        "microseconds_per_step": rates["microseconds"]["mean"],
    }


def _generate(method: Method, response: TokenArray, stats: ReplayStats) -> None:
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
        stats.count(draft, path, taken, seconds if own is None else own)
        at += taken
