"""A follower that writes, closes and forgets until it is killed.

An order (``support.child_runner``):

    {"address": ..., "seed": ..., "first": first key of an output}

It writes lines directly into the pipe:

    = KEY ID      acknowledged
    - KEY  ~ KEY  about to be forgotten, acknowledged
"""

from __future__ import annotations

import random
import threading
from itertools import count
from typing import Any, Final

from suffixsvc.errors import ServiceError
from suffixsvc_client import ClientConfig
from suffixsvc_follower import Follower, FollowerConfig
from support.child_runner import report

PATH: Final = "crash"
#: tokens of an output at most: those of key k are k * WIDTH, k * WIDTH + 1, ...
WIDTH: Final = 16
CONFIG: Final = FollowerConfig(
    client=ClientConfig(step_timeout_s=60, open_timeout_s=60, breaker_pause_s=0.01, breaker_max_pause_s=0.05),
    connect_seconds=60,
)


def live(order: dict[str, Any]) -> None:
    """Write until the process is killed."""
    keys = count(order["first"])
    follower = Follower(order["address"], CONFIG, [(PATH, "")])
    threads = [
        threading.Thread(target=write, args=(follower, keys, random.Random(f"{order['seed']}/{n}")))
        for n in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def write(follower: Follower, keys: count[int], rng: random.Random) -> None:
    namespace, mine = follower.namespace(PATH), list[tuple[int, int]]()
    while True:
        key = next(keys)
        session = namespace.open_session([1, 2, 3])
        at, end = key * WIDTH, key * WIDTH + rng.randrange(4, WIDTH)
        while at < end:
            more = min(end, at + rng.randrange(1, 6))
            session.step(list(range(at, more)))
            at = more
        if rng.random() < 0.1:
            session.close(commit=False)
            continue
        if rng.random() < 0.2:
            session.close(wait=False)
            continue
        while True:
            try:
                output_id = session.close()
            except ServiceError:
                continue
            break
        assert output_id is not None
        report(f"= {key} {output_id}")
        mine.append((key, output_id))
        if rng.random() < 0.2:
            forget(follower, *mine.pop(rng.randrange(len(mine))))


def forget(follower: Follower, key: int, output_id: int) -> None:
    report(f"- {key}")
    while True:
        try:
            follower.namespace(PATH).delete(output_ids=[output_id])
        except ServiceError:
            continue
        report(f"~ {key}")
        return
