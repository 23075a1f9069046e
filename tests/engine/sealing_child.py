"""Child process that opens a cache, writes, forgets, seals and merges until it is killed.

An order (``support.child_runner``):

    {"folder": ..., "seed": ..., "point": name or null, "hits": n, "background": bool}

It writes one line before and one after every operation, directly into the pipe:

    + SEED COUNT      about to add outputs SEED, SEED + 1, ...
    = SEED ID ID ...  acknowledged
    - ID ...  /  ~    about to forget  /  acknowledged
    ! POINT           about to be killed at a sync point
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from sealing_testing import NS, open_cache, output

from suffixsvc import Limits, SuffixCache
from suffixsvc.types import NewOutput
from support.child_runner import kill_hook, report
from support.engine_parts import parts_of
from support.stored import stored_outputs

LIMITS = Limits(seal_tokens=200)


def output_of(seed: int) -> NewOutput:
    """The output of ``seed``, which the checker computes as well."""
    random = Random(seed)
    length = random.choice([3, 30, 90])
    start = random.randrange(5)
    tokens = [(start + i) % 17 for i in range(length)] + [1000 + seed % 1000]
    return output(tokens, tail=[9] * random.choice([0, 5]), segments=random.choice([None, (1, length)]))


def live(order: dict[str, Any]) -> None:
    """Run until the process is killed."""
    cache = open_cache(
        Path(order["folder"]), LIMITS, background=order["background"], sync_point=kill_hook(order)
    )
    namespace = cache.namespace(NS)
    random = Random(order["seed"])
    mine = [stored.output_id for stored in stored_outputs(cache, NS)]
    for round_ in count():
        seed = order["seed"] * 100_000 + 10 * round_
        number = random.randrange(1, 5)
        report(f"+ {seed} {number}")
        ids = namespace.add_outputs([output_of(seed + i) for i in range(number)])
        report(f"= {seed} {' '.join(map(str, ids))}")
        mine += ids
        work(cache, random, mine)


def work(cache: SuffixCache, random: Random, mine: list[int]) -> None:
    what = random.random()
    if what < 0.3 and mine:
        chosen = [
            mine.pop(random.randrange(len(mine))) for _ in range(min(len(mine), random.randrange(1, 9)))
        ]
        report(f"- {' '.join(map(str, chosen))}")
        if len(chosen) == 1:
            cache.namespace(NS).delete(output_ids=[chosen[0]])
        else:
            parts_of(cache).outputs.forget_many(NS, chosen)
        report("~")
    elif what < 0.45:
        with parts_of(cache).exclusive() as sealer:
            assert sealer is not None
            sealer.seal(parts_of(cache).catalog.index_of(NS))
    elif what < 0.6:
        with parts_of(cache).exclusive() as sealer:
            assert sealer is not None
            sealer.merge(parts_of(cache).catalog.index_of(NS))
    elif what < 0.65:
        cache.compact()
