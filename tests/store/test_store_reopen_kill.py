"""Processes are killed with SIGKILL while their store recovers from a disk that failed."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from ioerror_child import FOR_EVER
from store_testing import NS, make_output
from support.forking import ForkServer

from suffixsvc.store import LmdbStore
from suffixsvc.store.meta_journal import JOURNAL_FILE

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
KINDS = {"data": 1, "sync": 2, "meta": 4, "meta-written": 8, "all": 7, "all-written": 11}
#: kinds of failing calls, how many fail, and the points that a life with them passes
RECOVERY = ["commit-failed", "reopen-restored", "reopened"]
LIVES = [(kind, 1, point) for kind in KINDS for point in RECOVERY]
KINDS |= {"meta-stuck": 4 | 16, "meta-written-stuck": 8 | 16}
LIVES += [(kind, FOR_EVER, point) for kind in KINDS for point in ("commit-failed", "refused")]


@pytest.fixture(scope="module")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and LD_PRELOAD")
    library = tmp_path_factory.mktemp("shim") / "ioerror.so"
    command = [compiler, "-O1", "-fPIC", "-shared", "-o", str(library), str(HERE / "ioerror.c"), "-ldl"]
    subprocess.run([*command, "-lpthread"], check=True)
    house = ForkServer(HERE / "reopen_child.py", environ={**os.environ, "LD_PRELOAD": str(library)})
    yield house
    house.close()


class Truth:
    """What the victims of one folder told their callers."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}  # content -> id
        self.refused: set[int] = set()
        self.under_way = 0
        self.killed_at = ""

    def hear(self, line: str) -> None:
        kind, *words = line.split()
        if kind == "+":
            self.under_way = int(words[0])
        elif kind == "=":
            self.acknowledged[int(words[0])] = int(words[1])
            self.under_way = 0
        elif kind == "~":
            self.refused.add(int(words[0]))
            self.under_way = 0
        elif kind == "!":
            self.killed_at = words[0]
        else:
            raise AssertionError(f"victim said {line!r}")

    def compare(self, folder: Path) -> None:
        """The folder opens; it holds what was acknowledged and nothing that was refused."""
        store = LmdbStore(folder)
        try:
            store.check()
            found = {int(s.output.token_ids[0]): s.output_id for s in store.scan()}
            there = found.pop(self.under_way, None)
            assert found == self.acknowledged
            assert not found.keys() & self.refused
            if there is not None:  # it is there now, so it stays
                self.acknowledged[self.under_way] = there
            (new,) = store.append([make_output([10**6] * 3)]).result(60)
            store.forget(NS, new)
        finally:
            store.close()


@pytest.mark.parametrize(("kind", "count", "point"), LIVES)
def test_a_kill_while_a_failed_commit_is_taken_back(
    fork_server: ForkServer, tmp_path: Path, kind: str, count: int, point: str
) -> None:
    """LMDB, when it could not write its meta page, puts back the old transaction's number and leaves the new
    transaction's trees beside it. The store restored the page; a process that was killed before it could, or
    whose disk went on failing until its end, left a folder that every later open refused as damaged. And
    where the page had been written, what a caller was told is not kept was there after the kill.

    Now the page to restore is in a journal beside the file before the commit begins, and an open restores it:
    what was acknowledged is there, what was refused is not.
    """
    truth = Truth()
    folder = tmp_path / "data"
    for _ in range(2):  # the second life begins where the first one ended
        live_and_die(fork_server, truth, folder, kind, count, point)
        truth.compare(folder)


def live_and_die(
    fork_server: ForkServer, truth: Truth, folder: Path, kind: str, count: int, point: str
) -> None:
    truth.killed_at = ""
    order = {"folder": str(folder), "kinds": KINDS[kind], "count": count, "point": point, "hits": 1}
    status = fork_server.run(order, truth.hear, None)
    assert status == -signal.SIGKILL
    assert truth.killed_at == point


@pytest.mark.parametrize(("kind", "point"), [("meta", "commit-failed"), ("meta-written-stuck", "refused")])
def test_a_kill_while_an_open_takes_a_commit_back(
    fork_server: ForkServer, tmp_path: Path, kind: str, point: str
) -> None:
    """Killed again when the page is back and the journal does not say so yet: the next open finds it."""
    truth = Truth()
    folder = tmp_path / "data"
    live_and_die(fork_server, truth, folder, kind, FOR_EVER, point)
    live_and_die(fork_server, truth, folder, kind, 0, "rolled-back")
    truth.compare(folder)


@pytest.mark.parametrize("kind", ["all", "meta", "meta-written", "meta-written-stuck"])
def test_a_close_on_a_disk_that_fails_leaves_a_folder_that_opens(
    fork_server: ForkServer, tmp_path: Path, kind: str
) -> None:
    """No kill at all: the service was stopped in an orderly way while its disk failed, and did not start
    again, because the meta page was as LMDB had left it."""
    truth = Truth()
    folder = tmp_path / "data"
    order = {"folder": str(folder), "kinds": KINDS[kind], "count": FOR_EVER, "point": "closed", "hits": 1}
    fork_server.run(order, truth.hear, None)
    assert truth.killed_at == "closed"
    assert truth.refused
    truth.compare(folder)
    assert not (folder / JOURNAL_FILE).exists()
