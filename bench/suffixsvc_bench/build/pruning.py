"""Hits that remain after a cache is pruned: held-out calls, drafted by llama.cpp's rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.build.options import BUDGETS
from suffixsvc_bench.build.texts import write_ids
from suffixsvc_caches.building.lookup_caches import LookupSpec
from suffixsvc_caches.building.run import build
from suffixsvc_caches.building.spec import BuildSpec
from suffixsvc_caches.logs import ReadOptions, ReadReport
from suffixsvc_caches.lookup.files import read_lookup
from suffixsvc_caches.lookup.replay import LookupReplayer, Program, ReplayStats, TokenCall
from suffixsvc_caches.lookup.table import LookupTable
from suffixsvc_caches.simulation import read_token_logs
from suffixsvc_caches.tokenizers.load import load_tokenizer

#: the last 1/N of a log's calls is held out
_HELD_OUT: Final = 5
_MIN_CALLS: Final = 10
#: tokens of a prompt's end that the context cache contains
_PROMPT_TOKENS: Final = 256


def measure_pruning(
    log: Path, tokenizer: Path | None, folder: Path, notify: Callable[[str], None]
) -> dict[str, Any]:
    """Build caches from four fifths of a log, whole and pruned to byte budgets, and simulate the last fifth.

    Each cache is used alone beside the context cache that llama-lookup always has; "none" is the context
    cache only. Only the last 256 tokens of a prompt are read: longer ones would dominate the run time.

    Raises:
        InvalidInputError: fewer than ten calls, or a log of texts without a tokenizer.
    """
    notify(f"reading {log.name}")
    codec = load_tokenizer(tokenizer) if tokenizer else None
    reading = ReadOptions.parse(want_prompt=True)
    calls = [c for its in read_token_logs([log], reading, codec, ReadReport()).values() for c in its]
    if len(calls) < _MIN_CALLS:
        raise InvalidInputError(f"{log} must have at least {_MIN_CALLS} calls", got=len(calls))
    first = len(calls) - len(calls) // _HELD_OUT
    learned = calls[:first]
    held_out = [TokenCall(call.prompt[-_PROMPT_TOKENS:], call.response) for call in calls[first:]]
    ids = folder / "ids.parquet"
    tokens = write_ids(ids, (np.asarray(call.response, np.int32) for call in learned))
    found: dict[str, Any] = {
        "log": log.name,
        "calls": len(learned),
        "tokens": tokens,
        "held_out_calls": len(held_out),
        "held_out_tokens": sum(len(call.response) for call in held_out),
        "none": _figures(_forecast(held_out, None, None), 0),
    }
    for kind in ("static", "dynamic"):
        notify(f"{log.name}: a {kind} cache of {len(BUDGETS) + 1} sizes")
        whole = _row(kind, ids, folder / f"{kind}.bin", None, held_out)
        cut = [
            {"budget": share}
            | _row(kind, ids, folder / f"{kind}-{i}.bin", int(whole["bytes"] * share), held_out)
            for i, share in enumerate(BUDGETS)
        ]
        for row in cut:
            row["of_whole"] = row["n_accept"] / whole["n_accept"] if whole["n_accept"] else None
        found[kind] = {"whole": whole, "cut": cut}
    return found


def _row(kind: str, ids: Path, path: Path, budget: int | None, calls: list[TokenCall]) -> dict[str, Any]:
    spec = LookupSpec(path, budget)
    build(BuildSpec([ids], static=spec) if kind == "static" else BuildSpec([ids], dynamic=spec))
    table = read_lookup(path)
    tables = (table, None) if kind == "static" else (None, table)
    return _figures(_forecast(calls, *tables), path.stat().st_size)


def _forecast(calls: list[TokenCall], static: LookupTable | None, dynamic: LookupTable | None) -> ReplayStats:
    return LookupReplayer(static, dynamic, program=Program.LOOKUP).add_log(calls)


def _figures(found: ReplayStats, size: int) -> dict[str, Any]:
    return {
        "bytes": size,
        "n_drafted": found.n_drafted,
        "n_accept": found.n_accept,
        "accept": found.accept if found.n_drafted else None,
        "hit_rate": found.hit_rate if found.tokens else None,
    }
