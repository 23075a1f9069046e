"""Processes of the measurements of followers, each in a role.

    python -m suffixsvc_bench.rpc.follower_roles ROLE ADDRESS [ARGUMENT ...]

A role prints "ready", then a line of JSON for each line that it reads, and ends with its input.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc import SuffixCache
from suffixsvc.types import NewOutput, TokenArray
from suffixsvc_bench.rpc.subjects import NAMESPACE
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_follower import Follower

#: seconds within which everything is ready
_PATIENCE: Final = 600.0
#: tokens of a phrase, of which the reader knows the first ones
_PHRASE: Final = 8


def phrase(number: int) -> TokenArray:
    """A text that occurs nowhere else, int32[8]."""
    return np.random.default_rng(10_000 + number).integers(100_000, 200_000, _PHRASE).astype(np.int32)


def private_bytes() -> int:
    """Memory of this process that it shares with no other."""
    text = Path("/proc/self/smaps_rollup").read_text(encoding="ascii")
    return 1024 * sum(int(kib) for kib in re.findall(r"^Private_\w+:\s+(\d+) kB", text, re.MULTILINE))


def followed(address: str) -> Follower:
    """A follower that holds the contents of the namespace."""
    follower = Follower(address, namespaces=[(NAMESPACE, "")])
    if not follower.wait(NAMESPACE, _PATIENCE):
        raise TimeoutError("the contents did not arrive")
    return follower


def read_phrases(address: str, count: str) -> Iterator[Any]:
    """Times (monotonic, of the whole machine) at which phrases 0 .. count - 1 could be drafted from."""
    with followed(address) as follower:
        entry = follower.followed(NAMESPACE)
        yield None
        seen = []
        for number in range(int(count)):
            text = phrase(number)
            while not entry.copy.index.count(text):
                time.sleep(0.0002)
            seen.append(time.monotonic())
        yield seen


def write_tokens(address: str, sessions: str, per_second: str) -> Iterator[Any]:
    """Write so many tokens a second in all, in so many sessions, until the input ends."""
    workload = Workload(99)
    with followed(address) as follower:
        namespace = follower.namespace(NAMESPACE)
        opened = [namespace.open_session(workload.text(100)) for _ in range(int(sessions))]
        texts = [workload.text(4_000).tolist() for _ in opened]
        stopped = threading.Event()

        def write() -> None:
            pause, began, written = len(opened) * 4 / float(per_second), time.monotonic(), 0
            while not stopped.is_set():
                for session, text in zip(opened, texts, strict=True):
                    at = (written * 4) % (len(text) - 4)
                    session.step(text[at : at + 4], max_draft_tokens=0)
                written += 1
                time.sleep(max(0.0, began + written * pause - time.monotonic()))

        thread = threading.Thread(target=write)
        thread.start()
        yield None
        yield "written"
        stopped.set()
        thread.join()
        for session in opened:
            session.close(commit=False)


def hold(address: str, followers: str) -> Iterator[Any]:
    """So many followers in this process; its private memory before and after they are ready."""
    before = private_bytes()
    opened = [followed(address) for _ in range(int(followers))]
    yield None
    yield {"before": before, "after": private_bytes()}
    for follower in opened:
        follower.close()


def draft_flat_out(address: str, seconds: str, seed: str) -> Iterator[Any]:
    """Steps a second of one session that drafts without a pause."""
    with followed(address) as follower:
        namespace = follower.namespace(NAMESPACE)
        yield None
        yield _steps_per_second([namespace.open_session], float(seconds), int(seed))


def draft_embedded(_address: str, seconds: str, threads: str) -> Iterator[Any]:
    """Steps a second of an embedded engine, of as many threads together."""
    with SuffixCache() as cache:
        namespace = cache.namespace(NAMESPACE)
        namespace.add_outputs(known_outputs())
        yield None
        yield _steps_per_second([namespace.open_session] * int(threads), float(seconds), 0)


def known_outputs() -> list[NewOutput]:
    """The outputs that every process of the measurement has."""
    return Workload(0).outputs(NAMESPACE, 200, 500)


def _steps_per_second(openers: list[Callable[..., Any]], seconds: float, seed: int) -> float:
    counts = [0] * len(openers)

    def work(at: int) -> None:
        workload = Workload(seed + at + 1)
        session = openers[at](workload.text(200))
        text, end, position = workload.text(20_000).tolist(), time.monotonic() + seconds, 0
        while time.monotonic() < end:
            session.step(text[position : position + 3], 16)
            position = (position + 3) % 19_000
            counts[at] += 1
        session.close(commit=False)

    threads = [threading.Thread(target=work, args=(at,)) for at in range(len(openers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / seconds


ROLES: Final[dict[str, Callable[..., Iterator[Any]]]] = {
    "read": read_phrases,
    "write": write_tokens,
    "hold": hold,
    "flat-follower": draft_flat_out,
    "flat-embedded": draft_embedded,
}


def main(role: str, *arguments: str) -> None:
    """Play a role."""
    steps = ROLES[role](*arguments)
    next(steps)
    print(json.dumps("ready"), flush=True)
    for _ in sys.stdin:
        print(json.dumps(next(steps, None)), flush=True)
    for _ in steps:
        pass


if __name__ == "__main__":
    main(*sys.argv[1:])
