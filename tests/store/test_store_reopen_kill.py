"""Processes are killed with SIGKILL while their store recovers from I/O errors."""

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

from suffixsvc.store import LmdbStore
from suffixsvc.store.files.meta_journal import JOURNAL_FILE
from support.forking import ForkServer

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
KINDS = {"data": 1, "sync": 2, "meta": 4, "meta-written": 8, "all": 7, "all-written": 11}
#: kinds of failing calls, how many fail, and the points that the process passes
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
    """Acknowledged and refused appends of the killed processes of one folder."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, int] = {}  # content -> id
        self.refused: set[int] = set()
        self.under_way = 0
        self.killed_at = ""

    def read_line(self, line: str) -> None:
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
            raise AssertionError(f"unexpected line {line!r}")

    def compare(self, folder: Path) -> None:
        """Check that the folder opens and holds the acknowledged appends and none of the refused ones."""
        store = LmdbStore(folder)
        try:
            store.check()
            found = {int(s.output.token_ids[0]): s.output_id for s in store.scan()}
            there = found.pop(self.under_way, None)
            assert found == self.acknowledged
            assert not found.keys() & self.refused
            if there is not None:  # once seen, it must stay
                self.acknowledged[self.under_way] = there
            (new,) = store.append([make_output([10**6] * 3)]).result(60)
            store.forget_many(NS, [new])
        finally:
            store.close()


@pytest.mark.parametrize(("kind", "count", "point"), LIVES)
def test_a_kill_while_a_failed_commit_is_rolled_back(
    fork_server: ForkServer, tmp_path: Path, kind: str, count: int, point: str
) -> None:
    """If LMDB cannot write its meta page, it restores the old transaction number and leaves the roots of the
    new transaction next to it. Regression: a process that was killed before the store restored the page, or
    whose disk failed until its end, left a folder that later opens refused as damaged, or with refused
    outputs in it.

    The page is in the journal before the commit begins, and an open restores it.
    """
    truth = Truth()
    folder = tmp_path / "data"
    for _ in range(2):  # the second process continues in the same folder
        live_and_die(fork_server, truth, folder, kind, count, point)
        truth.compare(folder)


def live_and_die(
    fork_server: ForkServer, truth: Truth, folder: Path, kind: str, count: int, point: str
) -> None:
    truth.killed_at = ""
    order = {"folder": str(folder), "kinds": KINDS[kind], "count": count, "point": point, "hits": 1}
    status = fork_server.run(order, truth.read_line, None)
    assert status == -signal.SIGKILL
    assert truth.killed_at == point


@pytest.mark.parametrize(("kind", "point"), [("meta", "commit-failed"), ("meta-written-stuck", "refused")])
def test_a_kill_while_an_open_rolls_a_commit_back(
    fork_server: ForkServer, tmp_path: Path, kind: str, point: str
) -> None:
    """Killed again after the page was restored and before the journal was cleared."""
    truth = Truth()
    folder = tmp_path / "data"
    live_and_die(fork_server, truth, folder, kind, FOR_EVER, point)
    live_and_die(fork_server, truth, folder, kind, 0, "rolled-back")
    truth.compare(folder)


@pytest.mark.parametrize("kind", ["all", "meta", "meta-written", "meta-written-stuck"])
def test_a_close_on_a_disk_that_fails_leaves_a_folder_that_opens(
    fork_server: ForkServer, tmp_path: Path, kind: str
) -> None:
    """Regression: a service that was closed while its disk failed did not start again, because of the meta
    page that LMDB had left."""
    truth = Truth()
    folder = tmp_path / "data"
    order = {"folder": str(folder), "kinds": KINDS[kind], "count": FOR_EVER, "point": "closed", "hits": 1}
    fork_server.run(order, truth.read_line, None)
    assert truth.killed_at == "closed"
    assert truth.refused
    truth.compare(folder)
    assert not (folder / JOURNAL_FILE).exists()
