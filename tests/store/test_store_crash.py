"""Processes are killed with SIGKILL while they write; no acknowledged write may be lost.

More than 200 of them in the long form, ``make reliability FULL=1``.
"""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from crash_child import NS, tokens_of

from suffixsvc.store import LmdbStore
from suffixsvc.types import NewOutput
from support.forking import ForkServer
from support.long_form import rounds

pytestmark = pytest.mark.crash

#: successive processes of one folder; "" is a kill at a random time
LIVES = ["create-built", "create-renamed", "grow-extended", "grown"]
LIVES += ["begun", "written", "committed", "acknowledged", *[""] * 13]
FOLDERS_IN_ALL = 10
FOLDERS = rounds(4, full=FOLDERS_IN_ALL)


@dataclass(frozen=True)
class Contents:
    """What a folder holds."""

    rows: dict[int, NewOutput]  # by output id
    state: int
    last_lsn: int


def contents_of(folder: Path) -> Contents | None:
    """Open and check a folder; None: it has no namespace."""
    store = LmdbStore(folder, map_bytes_initial=1)
    try:
        store.check()
        if not store.namespaces():
            return None
        rows = {stored.output_id: stored.output for stored in store.scan(NS)}
        return Contents(rows, int(store.get_state(NS, "version") or b"0"), store.stats().last_lsn)
    finally:
        store.close()


class Truth:
    """Acknowledged and pending calls of the killed processes of one folder."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, tuple[str, int]] = {}  # id -> (op, index)
        self.forgotten: set[int] = set()
        self.highest = 0  # of all processes before this one
        self.state = 0
        self.begin_life()

    def begin_life(self) -> None:
        self.appending: dict[str, int] = {}  # op -> count
        self.forgetting: set[int] = set()
        self.putting: set[int] = set()
        self.killed_at = ""

    def read_line(self, line: str) -> None:
        kind, *words = line.split()
        if kind == "+":
            self.appending[words[0]] = int(words[1])
        elif kind == "=":
            assert self.appending.pop(words[0]) == len(words) - 1
            for index, output_id in enumerate(map(int, words[1:])):
                assert output_id > self.highest, "an id was used twice"
                assert output_id not in self.acknowledged
                self.acknowledged[output_id] = (words[0], index)
        elif kind == "-":
            self.forgetting.add(int(words[0]))
        elif kind == "~":
            self.forgetting.remove(int(words[0]))
            self.forgotten.add(int(words[0]))
            del self.acknowledged[int(words[0])]
        elif kind == "s":
            self.putting = {int(words[0])}
        elif kind == "S":
            self.putting, self.state = set(), int(words[0])
        elif kind == "!":
            self.killed_at = words[0]
        else:
            raise AssertionError(f"unexpected line {line!r}")

    def compare(self, contents: Contents | None) -> None:
        """Compare the contents of the folder with all acknowledged calls."""
        if contents is None:
            assert not self.acknowledged, "all outputs are lost"
            assert not self.state
            return
        rows = contents.rows
        lost = self.acknowledged.keys() - rows.keys() - self.forgetting
        assert not lost, f"acknowledged and lost: {sorted(lost)}"
        back = rows.keys() & self.forgotten
        assert not back, f"forgotten and back: {sorted(back)}"
        half: dict[str, int] = {}
        for output_id, output in rows.items():
            op, index, kind = (output.labels[name] for name in ("op", "index", "kind"))
            assert output.token_ids.tolist() == tokens_of(op, int(index), int(kind))
            if output_id in self.acknowledged:
                assert self.acknowledged[output_id] == (op, int(index))
            else:
                assert op in self.appending, f"unknown output {output_id}"
                assert self.appending[op] == int(output.labels["of"])
                half[op] = half.get(op, 0) + 1
                self.acknowledged[output_id] = (op, int(index))  # once seen, it must stay
        for op, count in half.items():
            assert count == self.appending[op], f"{op} was half applied"
        for output_id in self.forgetting:
            if output_id not in rows:
                self.forgotten.add(output_id)
                del self.acknowledged[output_id]
        assert contents.state in {self.state, *self.putting}
        self.state = contents.state
        assert contents.last_lsn >= max(rows, default=0)
        assert contents.last_lsn >= self.highest
        self.highest = contents.last_lsn


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    house = ForkServer(Path(__file__).with_name("crash_child.py"))
    yield house
    house.close()


@pytest.mark.parametrize("number", range(FOLDERS))
def test_nothing_acknowledged_is_lost_by_kill_9(fork_server: ForkServer, tmp_path: Path, number: int) -> None:
    """Twenty-one processes of one folder, each ended by SIGKILL and followed by a complete comparison."""
    seed = int(os.environ.get("STORE_CRASH_SEED", random.randrange(10_000))) + number
    print(f"STORE_CRASH_SEED={seed - number}")
    rng = random.Random(seed)
    truth = Truth()
    folder = tmp_path / "data"
    for life, point in enumerate(LIVES):
        order = {
            "folder": str(folder),
            "seed": seed * 100 + life,
            "point": point or None,
            "hits": 1 if point.startswith(("create", "grow")) else rng.randrange(1, 8),
            "big": point.startswith("grow"),
        }
        truth.begin_life()
        status = fork_server.run(order, truth.read_line, None if point else rng.uniform(0.0, 0.12))
        assert status == -signal.SIGKILL
        assert truth.killed_at == point
        if point == "create-built":
            assert not (folder / "data.mdb").exists()
        truth.compare(contents_of(folder))
        if point == "create-built":
            (folder / "data.mdb").unlink()  # so that the next process creates it again
    assert truth.acknowledged or truth.forgotten, "no process was acknowledged anything"


def test_there_are_at_least_200_kills_in_the_long_form() -> None:
    assert len(LIVES) * FOLDERS_IN_ALL >= 200
