"""Child process with a cache that is always at its limit: writes, drafts and evicts until it is killed.
It seals and merges in between, so that evictions delete from segments, too.

An order (``support.child_runner``):

    {"folder": ..., "seed": ..., "point": name or null, "hits": n}

It writes lines directly into the pipe:

    + SEED COUNT       about to write outputs SEED, SEED + 1, ...
    = SEED ID ID ...   acknowledged
    x ID ID ...        chosen to be evicted, nothing was done yet
    o ID ID ...        evicted
    c ID               in a namespace without eviction
    ! POINT            about to be killed at a sync point of an eviction
"""

from __future__ import annotations

import os
import random
import signal
import threading
from typing import Any

from limits_testing import output

from suffixsvc import Limits, Policies, Policy, SuffixCache
from suffixsvc.engine.limits import eviction
from suffixsvc.runtime.sync_points import with_sync_points
from support.child_runner import report
from support.engine_parts import parts_of

NS = "crash"
POLICIES = Policies(default=Policy(max_bytes=120 << 10))
#: sync points of the store that an eviction passes, in order
POINTS = ["evict-chosen", "begun", "written", "committed", "acknowledged", "evict-done"]


def live(order: dict[str, Any]) -> None:
    """Run until the process is killed."""
    hits = order["hits"]
    # The store's thread acknowledges one transaction while this one goes on to the next. So evictions are
    # counted, odd within one, and it is noted for which a transaction began.
    now = began = 0
    one_at_a_time = threading.Lock()

    def hook(point: str) -> None:
        with one_at_a_time:
            reached(point)

    def reached(point: str) -> None:
        nonlocal hits, now, began
        name, _, told = point.partition(" ")
        if name == "evict-chosen":
            now += 1
            report(f"x {told}")
        elif name == "begun":
            began = now
        if now % 2 and name == order["point"] and (began == now or name == "evict-chosen"):
            hits -= 1
            if hits <= 0:
                report(f"! {name}")
                os.kill(os.getpid(), signal.SIGKILL)
        if name == "evict-done":
            report(f"o {told}")
            now += 1

    eviction.BATCH_OUTPUTS = 4  # type: ignore[misc] # several transactions per eviction
    cache = with_sync_points(SuffixCache, hook)(
        order["folder"],
        policies=POLICIES,
        limits=Limits(seal_tokens=1000),
        background=False,
    )
    rng = random.Random(order["seed"])
    namespace = cache.namespace(NS)
    report(f"c {cache.namespace('calm').add_output([1, 2, 3])}")
    seed = order["seed"] * 10_000
    while True:
        count = rng.randrange(1, 7)
        report(f"+ {seed} {count}")
        ids = namespace.add_outputs([output(NS, seed + n, rng.randrange(20, 150)) for n in range(count)])
        report(f"= {seed} {' '.join(map(str, ids))}")
        with namespace.open_session([1]) as session:
            for stored in list(parts_of(cache).store.scan(NS))[: rng.randrange(4)]:
                session.append_context([0])
                session.step(stored.output.token_ids[:8], 8, 0.001)
        if rng.random() < 0.3:
            cache.seal(NS)
        if rng.random() < 0.1:
            cache.compact(NS)
        seed += count
