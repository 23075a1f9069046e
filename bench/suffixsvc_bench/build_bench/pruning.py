"""What is left of a cache's worth when it is made small: held-out calls, by llama.cpp's rules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from suffixsvc_caches.building import BuildSpec, LookupSpec, build
from suffixsvc_caches.forecasting import read_token_logs
from suffixsvc_caches.logs import LogTally, ReadOptions
from suffixsvc_caches.lookup import LookupTable, read_lookup
from suffixsvc_caches.lookup.forecast import Forecast, Forecaster, Program, TokenCall
from suffixsvc_caches.tokenizers import load_tokenizer

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.build_bench.options import BUDGETS
from suffixsvc_bench.build_bench.texts import write_ids

__all__ = ["measure_pruning"]

#: of a log, the last one in so many is held out
_HELD_OUT: Final = 5
_LEAST_CALLS: Final = 10
#: of a prompt's end, that the context cache has
_PROMPT_TOKENS: Final = 256


def measure_pruning(
    log: Path, tokenizer: Path | None, folder: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Caches from four fifths of a log, whole and cut to shares of their bytes; forecasts on the last fifth.

    Each cache stands alone beside the context cache, which llama-lookup always has; "none" is that one only.
    Of prompts the last 256 tokens are read: the rest would take most of the time.

    Raises:
        InvalidInputError: fewer than ten calls, or texts and no tokenizer.
    """
    tell(f"reading {log.name}")
    codec = load_tokenizer(tokenizer) if tokenizer else None
    reading = ReadOptions.parse(want_prompt=True)
    calls = [c for its in read_token_logs([log], reading, codec, LogTally()).values() for c in its]
    if len(calls) < _LEAST_CALLS:
        raise InvalidInputError(
            f"{log} has too few calls to hold some out", expected=f"{_LEAST_CALLS} or more", got=len(calls)
        )
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
        tell(f"{log.name}: a {kind} cache of {len(BUDGETS) + 1} sizes")
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


def _forecast(calls: list[TokenCall], static: LookupTable | None, dynamic: LookupTable | None) -> Forecast:
    return Forecaster(static, dynamic, program=Program.LOOKUP).add_log(calls)


def _figures(found: Forecast, size: int) -> dict[str, Any]:
    return {
        "bytes": size,
        "n_drafted": found.n_drafted,
        "n_accept": found.n_accept,
        "accept": found.accept if found.n_drafted else None,
        "hit_rate": found.hit_rate if found.tokens else None,
    }
