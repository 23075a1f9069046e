"""Writers of a record in a process of their own, which tests stop and kill.

An order (``support.child_runner``):

    {"work": "write", "address": ..., "first": first key, "seed": ...}     writes outputs until it is killed
    {"work": "abandon", "address": ..., "first": first key, "sessions": n} opens sessions, writes, and waits

It writes lines directly into the pipe:

    + KEY LENGTH     about to be written
    = KEY ID         acknowledged
    . KEY LENGTH     a session whose text so far is acknowledged
    open             all sessions are open
"""

from __future__ import annotations

import time
from random import Random
from typing import Any

from record_writers import CLIENT, parts_of
from write_record import PATHS, WIDTH, tokens_of

from suffixsvc.errors import ServiceError
from suffixsvc_client import ClientConfig, SuffixClient
from support.child_runner import report

#: impatient: what is not answered at once is sent again
CONFIG = ClientConfig(
    step_timeout_s=0.05, open_timeout_s=0.5, call_timeout_s=1.0, breaker_pause_s=0.01, breaker_max_pause_s=0.1
)


def live(order: dict[str, Any]) -> None:
    if order["work"] == "write":
        write(SuffixClient(order["address"], CONFIG), order["first"], Random(order["seed"]))
    else:
        abandon(SuffixClient(order["address"], CLIENT), order["first"], order["sessions"])


def write(client: SuffixClient, key: int, rng: Random) -> None:
    while True:
        length = rng.randrange(4, WIDTH + 1)
        report(f"+ {key} {length}")
        session = client.namespace(PATHS[0]).open_session([1, 2, 3])
        for part in parts_of(length, rng):
            session.step(tokens_of(key, WIDTH)[part].tolist(), max_draft_tokens=4)
        while True:
            try:
                output_id = session.close()
            except ServiceError:
                continue
            break
        report(f"= {key} {output_id}")
        key += 1


def abandon(client: SuffixClient, first: int, sessions: int) -> None:
    kept = []
    for key in range(first, first + sessions):
        length = 4 + key % (WIDTH - 4)
        report(f"+ {key} {WIDTH}")
        session = client.namespace(PATHS[0]).open_session([1, 2, 3])
        for part in parts_of(length, Random(key)):
            session.step(tokens_of(key, WIDTH)[part].tolist(), max_draft_tokens=4)
        report(f". {key} {length}")
        kept.append(session)
    report("open")
    time.sleep(3600)
