"""Replay of a recipe's held-out answers, without a model.

llama.cpp's rules are simulated with its static cache and without, our engine in a cold namespace with the
recipe preloaded and without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from suffixsvc import SuffixCache
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import Replay, ReplayOptions, replay
from suffixsvc_caches.logs import ReadReport, find_logs, read_calls
from suffixsvc_caches.lookup import LookupTable, read_lookup
from suffixsvc_caches.lookup.replay import LookupReplayer, Program, ReplayStats, TokenCall
from suffixsvc_caches.recipes import Recipe, preload

__all__ = ["ReplayRow", "held_out_calls", "run_replay"]

#: namespace of replays
_COLD = "replay"


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """Results of one recipe; each pair is without and with it."""

    recipe: str
    calls: int
    tokens: int
    server: tuple[ReplayStats, ReplayStats]
    ours: tuple[Replay, Replay]


def held_out_calls(recipe: Recipe) -> list[Call]:
    """Calls in a recipe's logs that it was not made of: those that its filter by kind excludes."""
    wanted = recipe.reading.filter.kinds
    reading = replace(recipe.reading, filter=replace(recipe.reading.filter, kinds=frozenset()))
    return [
        Call(call.agent, call.session, np.asarray(call.prompt, np.int32), np.asarray(call.response, np.int32))
        for file in find_logs(recipe.logs, reading)
        for call in read_calls(file, reading, ReadReport())
        if call.kind not in wanted
    ]


def run_replay(recipe: Recipe, calls: Sequence[Call], cost: float) -> ReplayRow:
    """Replay the calls four times, each from an empty state.

    Args:
        cost: of a drafted token, in plain steps, for our engine.
    """
    return ReplayRow(
        recipe.name,
        len(calls),
        sum(len(call.response) for call in calls),
        (_server(None, calls), _server(read_lookup(recipe.static), calls)),
        (_ours(None, recipe.tokenizer, calls, cost), _ours(recipe, recipe.tokenizer, calls, cost)),
    )


def _server(static: LookupTable | None, calls: Sequence[Call]) -> ReplayStats:
    token_calls = [TokenCall(call.prompt.tolist(), call.response.tolist()) for call in calls]
    return LookupReplayer(static, None, program=Program.SERVER).add_log(token_calls)


def _ours(recipe: Recipe | None, tokenizer: str, calls: Sequence[Call], cost: float) -> Replay:
    with SuffixCache() as cache:
        bound = cache.namespace(_COLD, tokenizer=tokenizer)  # the handle binds it to its tokenizer
        if recipe is not None:
            cache.read_by_default(preload(cache, [str(recipe.folder)]))
        replayed = replay(calls, ReplayOptions(verify_cost=cost), cache=cache)
        assert bound.tokenizer == tokenizer
        return replayed
