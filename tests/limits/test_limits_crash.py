"""Processes are killed with SIGKILL at every step of an eviction: no output is lost except those it chose,
and no evicted output comes back."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from limits_child import NS, POINTS, POLICIES
from limits_testing import index_is_log, text

from suffixsvc import SuffixCache
from support.forking import ForkServer
from support.long_form import rounds
from support.stored import stored_outputs

pytestmark = pytest.mark.crash

#: runs on one folder, in order; "" is a kill at a random time
LIVES = ["", *POINTS, "", *POINTS, ""]
FOLDERS = rounds(2, full=4)


class Truth:
    """What the killed processes of one folder acknowledged, and what an eviction may have deleted."""

    def __init__(self) -> None:
        self.promised: dict[int, int] = {}  # id -> seed; -1: a session wrote it
        self.gone: set[int] = set()
        self.calm: set[int] = set()
        self.evictions = 0
        self.begin_life()

    def begin_life(self) -> None:
        self.writing: dict[int, int] = {}  # seed -> count
        self.chosen: set[int] = set()
        self.killed_at = ""

    def hear(self, line: str) -> None:
        kind, *words = line.split()
        if kind == "+":
            self.writing = {int(words[0]): int(words[1])}
        elif kind == "=":
            assert self.writing.pop(int(words[0])) == len(words) - 1
            self.promised.update({int(i): int(words[0]) + n for n, i in enumerate(words[1:])})
        elif kind == "x":
            self.chosen = set(map(int, words))
        elif kind == "o":
            assert self.chosen == set(map(int, words))
            self.gone |= self.chosen
            self.chosen = set()
            self.evictions += 1
        elif kind == "c":
            self.calm.add(int(words[0]))
        elif kind == "!":
            self.killed_at = words[0]
        else:
            raise AssertionError(f"victim said {line!r}")

    def compare(self, folder: Path) -> None:
        """Open the folder of a killed process, and compare it with everything that was acknowledged."""
        with SuffixCache(folder, policies=POLICIES) as cache:
            rows = {stored.output_id: stored.output for stored in stored_outputs(cache, NS)}
            back = rows.keys() & self.gone
            assert not back, f"evicted and back: {sorted(back)}"
            lost = self.promised.keys() - rows.keys() - self.gone - self.chosen
            assert not lost, f"acknowledged and lost: {sorted(lost)}"
            if self.killed_at in ("evict-chosen", "begun", "written"):
                assert not self.chosen - rows.keys(), (
                    f"killed at {self.killed_at}, gone before the transaction was"
                )
            if self.killed_at in ("committed", "acknowledged", "evict-done"):
                assert not self.chosen & rows.keys(), f"killed at {self.killed_at}, half of a transaction"
            for output_id, output in rows.items():
                if output_id in self.promised:
                    seed = self.promised[output_id]
                    assert output.token_ids.tolist() == text(seed, len(output.token_ids)).tolist()
            index_is_log(cache)
            self.gone |= self.chosen - rows.keys()
            cache.evict()
            assert cache.namespace(NS).stats().held_bytes <= 120 << 10
            if self.calm:
                assert self.calm <= {stored.output_id for stored in stored_outputs(cache, "calm")}
            index_is_log(cache)
            left = {stored.output_id for stored in stored_outputs(cache, NS)}
            self.gone |= rows.keys() - left
            self.promised = {i: seed for i, seed in self.promised.items() if i in left}


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    house = ForkServer(Path(__file__).with_name("limits_child.py"))
    yield house
    house.close()


@pytest.mark.parametrize("number", range(FOLDERS))
def test_an_eviction_that_was_killed_took_what_it_chose_or_nothing(
    fork_server: ForkServer, tmp_path: Path, number: int
) -> None:
    seed = int(os.environ.get("LIMITS_CRASH_SEED", random.randrange(10_000))) + number
    print(f"LIMITS_CRASH_SEED={seed - number}")
    rng = random.Random(seed)
    truth = Truth()
    finished = 0  # evictions at least: those before the one in which a run was killed
    for life, point in enumerate(LIVES):
        order = {
            "folder": str(tmp_path / "data"),
            "seed": seed * 100 + life,
            "point": point or None,
            "hits": rng.randrange(1, 5),
        }
        finished += order["hits"] - 1 if point else 0
        truth.begin_life()
        status = fork_server.run(order, truth.hear, None if point else rng.uniform(0.2, 0.6))
        assert status == -signal.SIGKILL
        assert truth.killed_at == point
        truth.compare(tmp_path / "data")
    # a run that is killed at a random time may finish none: on a slow disk it only opens the folder
    assert truth.evictions >= finished, "the victims had nothing to evict"
