"""Child process of the kill tests: opens a store, writes and forgets until it is killed.

An order (``support.child_runner``):

    {"folder": ..., "seed": ..., "point": name or null, "hits": n, "big": bool}

It writes one line before and one after every call, unbuffered, into the pipe:

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

from suffixsvc.runtime.sync_points import with_sync_points
from suffixsvc.store import LmdbStore
from suffixsvc.types import NamespaceRecord, NewOutput
from support.child_runner import kill_hook, report

NS = "crash"
#: contents shared by many outputs
COMMON = [[1], [1, 2, 3], list(range(500))]


def tokens_of(op: str, index: int, kind: int) -> list[int]:
    """Return the content of output ``op.index``; the checker computes the same."""
    if kind < len(COMMON):
        return COMMON[kind]
    seed = int(op.replace("-", "")) * 8 + index
    return [seed % 2**31] * (20_000 if kind == 9 else 1 + seed % 600)


def live(order: dict[str, Any]) -> None:
    """Run the calls of an order; without ``ops`` endlessly."""
    sync = order.get("sync", True)
    store = with_sync_points(LmdbStore, kill_hook(order))(order["folder"], map_bytes_initial=1, sync=sync)
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
            report(f"- {output_id}")
            store.forget_many(NS, [output_id])
            report(f"~ {output_id}")
        elif what < 0.32 and thread == 0:
            version = order["seed"] * 100_000 + count
            report(f"s {version}")
            store.put_state(NS, "version", str(version).encode())
            report(f"S {version}")
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
            report(f"+ {op} {len(outputs)}")
            ids = store.append(outputs).result()
            report(f"= {op} {' '.join(map(str, ids))}")
            mine += ids
