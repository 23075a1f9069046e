"""Replay of a recipe's held-out answers, without a model.

llama.cpp's rules are simulated with its static cache and without, our engine in a cold namespace with the
recipe preloaded and without.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from suffixsvc import SuffixCache
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import replay
from suffixsvc_caches.logs import ReadReport, find_logs, read_calls
from suffixsvc_caches.lookup.files import read_lookup
from suffixsvc_caches.lookup.replay import LookupReplayer, Program, TokenCall
from suffixsvc_caches.lookup.table import LookupTable
from suffixsvc_caches.recipes import Recipe, preload

#: namespace of replays
_COLD = "replay"


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


def run_replay(recipe: Recipe, calls: Sequence[Call], cost: float) -> dict[str, Any]:
    """Replay the calls four times, each from an empty state.

    Args:
        cost: of a drafted token, in plain steps, for our engine.

    Returns:
        JSON-able data; "server" and "ours" are pairs, without the recipe and with it.
    """
    return {
        "recipe": recipe.name,
        "calls": len(calls),
        "tokens": sum(len(call.response) for call in calls),
        "server": [_server(table, calls) for table in (None, read_lookup(recipe.static))],
        "ours": [_ours(each, recipe.tokenizer, calls, cost) for each in (None, recipe)],
    }


def _server(static: LookupTable | None, calls: Sequence[Call]) -> dict[str, Any]:
    token_calls = [TokenCall(call.prompt.tolist(), call.response.tolist()) for call in calls]
    found = LookupReplayer(static, None, program=Program.SERVER).add_log(token_calls)
    return {"n_drafted": found.n_drafted, "n_accept": found.n_accept, "mat": found.tokens_per_step}


def _ours(recipe: Recipe | None, tokenizer: str, calls: Sequence[Call], cost: float) -> dict[str, Any]:
    with SuffixCache() as cache:
        bound = cache.namespace(_COLD, tokenizer=tokenizer)  # the handle binds it to its tokenizer
        if recipe is not None:
            cache.read_by_default(preload(cache, [str(recipe.folder)]))
        replayed = replay(calls, cost, cache=cache)
        assert bound.tokenizer == tokenizer
        return replayed
