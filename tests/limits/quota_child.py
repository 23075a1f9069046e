"""Child process that writes with principals that are always at their quotas, until it is killed.

An order (``support.child_runner``): {"folder": ..., "seed": ...}. It prints, for each acknowledged write, the
principal and the ids of the outputs.
"""

from __future__ import annotations

import random
import threading
from dataclasses import replace
from typing import Any

from limits_testing import output, text

from suffixsvc import Limits, Policies, PrincipalQuota, SuffixCache
from support.child_runner import report

QUOTAS = {"a": PrincipalQuota(max_bytes=80 << 10), "m": PrincipalQuota(max_outputs=12)}
PATHS = ("a", "a/b", "shared")


def live(order: dict[str, Any]) -> None:
    """Run until the process is killed."""
    cache = SuffixCache(
        order["folder"], policies=Policies(principals=QUOTAS), limits=Limits(seal_tokens=1000)
    )
    for number in range(3):
        threading.Thread(target=_write, args=(cache, order["seed"] * 10 + number), daemon=True).start()
    threading.Event().wait()


def _write(cache: SuffixCache, seed: int) -> None:
    rng = random.Random(seed)
    for turn in range(1_000_000):
        principal, path = rng.choice(["a", "m", "free"]), rng.choice(PATHS)
        new = [
            replace(output(path, seed * 10_000 + turn, rng.randrange(5, 120)), principal=principal)
            for _ in range(rng.randrange(1, 4))
        ]
        ids = cache.namespace(path).add_outputs(new)
        report(f"{principal} {' '.join(map(str, ids))}")
        if principal != "free" and rng.random() < 0.2:
            cache.namespace(path).delete(output_ids=ids[:1])
        if rng.random() < 0.2:
            with cache.namespace(path).open_session([1], principal=principal) as session:
                session.step(text(seed, 40)[:30], 0)
