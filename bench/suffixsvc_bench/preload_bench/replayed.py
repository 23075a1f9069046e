"""Held-out answers of a recipe's own log, replayed: llama.cpp's rules with its static cache and without, and
our engine in a cold namespace with the recipe preloaded and without. No model is run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from suffixsvc_caches.logs import LogTally, find_logs, read_calls
from suffixsvc_caches.lookup import LookupTable, read_lookup
from suffixsvc_caches.lookup.forecast import Forecast, Forecaster, Program, TokenCall
from suffixsvc_caches.recipes import Recipe, preload

from suffixsvc import SuffixCache
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import Replay, ReplayOptions, replay

__all__ = ["ReplayRow", "held_out_calls", "run_replay"]

#: the namespace that replays use
_COLD = "replay"


@dataclass(frozen=True, slots=True)
class ReplayRow:
    """One recipe; each pair is without and with it."""

    recipe: str
    calls: int
    tokens: int
    server: tuple[Forecast, Forecast]
    ours: tuple[Replay, Replay]


def held_out_calls(recipe: Recipe) -> list[Call]:
    """The calls of a recipe's logs that it was not made of: those that its filter by kind leaves out."""
    wanted = recipe.reading.filter.kinds
    reading = replace(recipe.reading, filter=replace(recipe.reading.filter, kinds=frozenset()))
    return [
        Call(call.agent, call.session, np.asarray(call.prompt, np.int32), np.asarray(call.response, np.int32))
        for file in find_logs(recipe.logs, reading)
        for call in read_calls(file, reading, LogTally())
        if call.kind not in wanted
    ]


def run_replay(recipe: Recipe, calls: Sequence[Call], cost: float) -> ReplayRow:
    """Replay the calls four times, each from nothing.

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


def _server(static: LookupTable | None, calls: Sequence[Call]) -> Forecast:
    asked = [TokenCall(call.prompt.tolist(), call.response.tolist()) for call in calls]
    return Forecaster(static, None, program=Program.SERVER).add_log(asked)


def _ours(recipe: Recipe | None, tokenizer: str, calls: Sequence[Call], cost: float) -> Replay:
    with SuffixCache() as cache:
        bound = cache.namespace(_COLD, tokenizer=tokenizer)  # to its tokenizer as long as this is held
        if recipe is not None:
            cache.read_by_default(preload(cache, [str(recipe.folder)]))
        replayed = replay(calls, ReplayOptions(verify_cost=cost), cache=cache)
        assert bound.tokenizer == tokenizer
        return replayed
