"""The victim: opens a store, writes and forgets without end, and is killed.

An order (``support.victims``):

    {"folder": ..., "seed": ..., "point": name or null, "hits": n, "big": bool}

A victim writes one line before and
one after everything it does, straight into the pipe:

    + OP COUNT        about to append COUNT outputs labelled OP.0, OP.1, ...
    = OP ID ID ...    acknowledged
    - ID  /  ~ ID     about to forget  /  acknowledged
    s V   /  S V      about to put state V  /  acknowledged
    ! POINT           about to be killed at a named point
"""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
from support.victims import killer, say

from suffixsvc.store import LmdbStore
from suffixsvc.types import NamespaceRecord, NewOutput

NS = "crash"
#: contents that many outputs share
COMMON = [[1], [1, 2, 3], list(range(500))]


def tokens_of(op: str, index: int, kind: int) -> list[int]:
    """What output ``op.index`` holds: the checker computes the same."""
    if kind < len(COMMON):
        return COMMON[kind]
    seed = int(op.replace("-", "")) * 8 + index
    return [seed % 2**31] * (20_000 if kind == 9 else 1 + seed % 600)


def live(order: dict[str, Any]) -> None:
    """Without ``ops`` it never returns of its own accord."""
    sync = order.get("sync", True)
    store = LmdbStore(order["folder"], map_bytes_initial=1, sync=sync, crash_hook=killer(order))
    store.add_namespace(NamespaceRecord(NS))
    threads = [
        threading.Thread(target=work, args=(store, random.Random(f"{order['seed']}/{n}"), order, n))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()


def work(store: LmdbStore, rng: random.Random, order: dict[str, Any], thread: int) -> None:
    mine: list[int] = []
    count = 0
    while count < order.get("ops", 10**9):
        count += 1
        what = rng.random()
        if what < 0.25 and mine:
            output_id = mine.pop(rng.randrange(len(mine)))
            say(f"- {output_id}")
            store.forget(NS, output_id)
            say(f"~ {output_id}")
        elif what < 0.32 and thread == 0:
            version = order["seed"] * 100_000 + count
            say(f"s {version}")
            store.put_state(NS, "version", str(version).encode())
            say(f"S {version}")
        else:
            op = f"{order['seed']}-{thread}-{count:05d}"
            kinds = [9 if order["big"] else rng.randrange(6) for _ in range(rng.randrange(1, 4))]
            outputs = [
                NewOutput(
                    namespace=NS,
                    token_ids=np.asarray(tokens_of(op, i, kind), dtype=np.int32),
                    segment_lens=(len(tokens_of(op, i, kind)),),
                    prompt_tail=np.asarray([i], dtype=np.int32),
                    labels={"op": op, "index": str(i), "kind": str(kind), "of": str(len(kinds))},
                    ttl_seconds=rng.choice([0, 10**6]),
                )
                for i, kind in enumerate(kinds)
            ]
            say(f"+ {op} {len(outputs)}")
            ids = store.append(outputs).result()
            say(f"= {op} {' '.join(map(str, ids))}")
            mine += ids
