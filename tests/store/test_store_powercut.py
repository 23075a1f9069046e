"""Power cuts: unsynced data is dropped, wholly or in part, and no acknowledged write may be lost.

A preloaded recorder (powercut.c) records every write, sync and rename of a process that uses the store, and
its acknowledgements. From that journal the tests reconstruct the contents of the disk after a power cut at a
given moment, and open the folder.
"""

from __future__ import annotations

import os
import random
import shutil
import struct
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import pytest
from test_store_crash import Contents, Truth, contents_of

from suffixsvc.errors import StoreError
from suffixsvc.store.files.meta_journal import JOURNAL_FILE
from support.long_form import rounds

pytestmark = pytest.mark.crash

HERE = Path(__file__).parent
SECTOR = 512
CUTS = rounds(80, full=250)

_HEAD = struct.Struct("<cQQQ")


@dataclass(frozen=True)
class Record:
    kind: str
    file: int
    offset: int
    data: bytes


@dataclass
class File:
    """Synced contents of a file, and writes that may or may not be on the disk."""

    durable: bytearray = field(default_factory=bytearray)
    pending: list[Record] = field(default_factory=list)


def apply(image: bytearray, record: Record) -> None:
    if record.kind == "T":
        del image[record.offset :]
        image.extend(bytes(record.offset - len(image)))
        return
    end = record.offset + len(record.data)
    image.extend(bytes(max(0, end - len(image))))
    image[record.offset : end] = record.data


class Disk:
    """A disk with a write cache: only synced data is safe."""

    def __init__(self) -> None:
        self.files: dict[int, File] = {}
        self.names: dict[str, int] = {}  # as seen by the process
        self.durable_names: dict[str, int] = {}

    def see(self, record: Record) -> None:
        file = self.files.setdefault(record.file, File())
        match record.kind:
            case "W" | "T":
                file.pending.append(record)
            case "D":
                apply(file.durable, record)
            case "S":
                for pending in file.pending:
                    apply(file.durable, pending)
                file.pending.clear()
            case "N":
                self.names[record.data.decode()] = record.file
            case "R":
                old, new = record.data.decode().split("\0")
                self.names[new] = self.names.pop(old)
            case "P":
                here = record.data.decode()
                names = {n: f for n, f in self.names.items() if os.path.dirname(n) == here}
                removed = {n for n in self.durable_names if os.path.dirname(n) == here and n not in names}
                self.durable_names.update(names)
                for name in removed:
                    del self.durable_names[name]

    def after_power_cut(self, root: str, rng: random.Random | None) -> dict[str, bytes]:
        """Files after the cut, by name. With ``rng`` a random part of the cache was written."""
        names = dict(self.durable_names)
        if rng is not None and rng.random() < 0.5:
            names = dict(self.names)
        files = {}
        for name, number in names.items():
            if not name.endswith(("data.mdb", JOURNAL_FILE)):
                continue
            file = self.files[number]
            image = bytearray(file.durable)
            if rng is not None:
                for record in file.pending:
                    for part in sectors(record):
                        if rng.random() < 0.5:
                            apply(image, part)
            files[os.path.relpath(name, root)] = bytes(image)
        return files


class Folder:
    """The folder of a store after a power cut. Many cuts leave the same files: those are opened once."""

    def __init__(self, path: Path, files: dict[str, bytes]) -> None:
        self.path = path
        self.files = files

    @cached_property
    def _opened(self) -> Contents | StoreError | None:
        shutil.rmtree(self.path, ignore_errors=True)
        for name, image in self.files.items():
            path = self.path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(image)
        self.path.mkdir(exist_ok=True)
        try:
            return contents_of(self.path)
        except StoreError as error:
            return error

    def contents(self) -> Contents | None:
        """As :func:`contents_of`; StoreError if the folder cannot be opened."""
        if isinstance(self._opened, StoreError):
            raise self._opened
        return self._opened


def sectors(record: Record) -> Iterator[Record]:
    """Split a write into sectors, which a disk writes atomically."""
    if record.kind == "T":
        yield record
        return
    at = 0
    while at < len(record.data):
        size = SECTOR - (record.offset + at) % SECTOR
        yield Record(record.kind, record.file, record.offset + at, record.data[at : at + size])
        at += size


def read_journal(path: Path) -> list[Record]:
    raw, at = path.read_bytes(), 0
    records = []
    while at < len(raw):
        kind, file, offset, size = _HEAD.unpack_from(raw, at)
        at += _HEAD.size
        records.append(Record(kind.decode(), file, offset, raw[at : at + size]))
        at += size
    return records


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("the recorder of writes needs a C compiler and LD_PRELOAD")
    library = tmp_path_factory.mktemp("recorder") / "powercut.so"
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror", "-o", str(library)]
    subprocess.run([*command, str(HERE / "powercut.c"), "-ldl", "-lpthread"], check=True)
    return library


def record(recorder: Path, tmp_path: Path, seed: int, sync: str) -> tuple[str, list[Record]]:
    """Run the child; return its folder and the journal."""
    folder, journal = tmp_path / "recorded", tmp_path / "journal"
    subprocess.run(
        [sys.executable, str(HERE / "powercut_child.py"), str(folder), str(journal), str(seed), sync],
        env={**os.environ, "LD_PRELOAD": str(recorder)},
        check=True,
    )
    return str(folder), read_journal(journal)


def cut_at(
    records: list[Record], root: str, moments: set[int], into: Path, rng: random.Random | None
) -> Iterator[tuple[int, Truth, Folder]]:
    """Yield for each moment: its number, the acknowledgements so far, and the folder after a cut."""
    disk, folder = Disk(), Folder(into, {})
    acknowledgements: list[str] = []
    for number, entry in enumerate(records, 1):
        if entry.kind == "A":
            acknowledgements.append(entry.data.decode())
        else:
            disk.see(entry)
        if number in moments:
            files = disk.after_power_cut(root, rng)
            if files != folder.files:
                folder = Folder(into, files)
            truth = Truth()
            for line in acknowledgements:
                truth.read_line(line)
            yield number, truth, folder


@pytest.mark.parametrize("cache", ["lost", "partly-written"])
def test_a_power_cut_at_any_moment_breaks_no_promise(recorder: Path, tmp_path: Path, cache: str) -> None:
    seed = int(os.environ.get("STORE_POWERCUT_SEED", random.randrange(10_000)))
    print(f"STORE_POWERCUT_SEED={seed}")
    rng = random.Random(seed)
    root, records = record(recorder, tmp_path, seed, "sync")
    kinds = [entry.kind for entry in records]
    # the recorder must have seen data, meta pages through a synchronous descriptor, syncs, the rename
    assert min(kinds.count(kind) for kind in "WDSA") > 10
    assert {"T", "N", "R", "P"} <= set(kinds)
    moments = set(rng.sample(range(1, len(records) + 1), min(CUTS, len(records))))
    moments |= {n for n, kind in enumerate(kinds, 1) if kind in "RNPT"} | {len(records)}
    acknowledged = 0
    for number, truth, folder in cut_at(
        records, root, moments, tmp_path / "cut", rng if cache == "partly-written" else None
    ):
        try:
            truth.compare(folder.contents())
        except BaseException:
            print(f"power cut after record {number} of {len(records)}")
            raise
        acknowledged = max(acknowledged, len(truth.acknowledged))
    assert acknowledged > 20


def test_the_power_cut_is_a_real_one(recorder: Path, tmp_path: Path) -> None:
    """Without syncs the same cuts lose acknowledged writes: the tests can fail."""
    root, records = record(recorder, tmp_path, 1, "nosync")
    broken = 0
    moments = {n for n, entry in enumerate(records, 1) if entry.kind == "A" and entry.data[:1] == b"="}
    for _, truth, folder in cut_at(records, root, moments, tmp_path / "cut", None):
        try:
            truth.compare(folder.contents())
        except (AssertionError, StoreError):
            broken += 1
    assert broken > len(moments) // 2
