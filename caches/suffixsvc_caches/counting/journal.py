"""The work folder of a build: runs, and a journal that says which batches are in which.

    {"plan": key}                                    first line: what is being built
    {"runs": [name, ..], "batches": {file: [[a, b], ..]}, "tokens": n, "calls": n}
                                                     batches a .. b - 1 of a file are counted
    {"run": name, "of": [name, ..]}                  a run that took the place of others
    {"file": i, "batches": n, "tally": {..}, "fingerprint": f}    a log was read to its end, it has n batches
    {"made": [path, ..]}                             lookup caches that this build writes, or has written
    {"base": n, "load": id}                          outputs that a namespace held before a corpus was loaded,
                                                     and what that load is known by
    {"loaded": n}                                    outputs of the corpus that are loaded

The journal of a build that is done is called finished, and what is beside it is being removed.

A line is added once what it speaks of is on the disk, its name as well as its bytes, so what the journal says
is true; a line cut off by a crash is no line, and a run that no line names is removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any, Final

from suffixsvc.core.ngram_count import check_run
from suffixsvc.errors import (
    InvalidInputError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from suffixsvc_caches.atomic import FULL, make_folder, sync_folder

__all__ = ["Journal"]

_NAME: Final = "journal.jsonl"
_FINISHED: Final = "finished"
_RUN: Final = "*.run"
#: of every journal
_BEGINNING: Final = b'{"plan":'


class Journal:
    """Opens a work folder, created where there is none. Thread-safe; one process at a time.

    Args:
        folder: the work folder.
        key: of the plan; a folder that holds something else is refused.

    Raises:
        InvalidInputError: the folder belongs to another build, or is no work folder.
        StoreLockedError: another process builds there. StoreError: the disk.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._done: dict[int, set[int]] = {}
        self._runs: list[str] = []
        self._ends: dict[int, tuple[int, dict[str, Any]]] = {}
        self.tokens = self.calls = self.loaded = 0
        self.base: int | None = None
        #: random bytes that the load of a corpus is known by
        self.load_id = b""
        self._made: set[str] = set()
        self.fingerprint = ""
        self._serial = 0
        self._require_ours(folder)
        self._remove_finished()
        try:
            make_folder(folder)
            # Unbuffered: what could not be written must not be written by a later attempt.
            self._file = (folder / _NAME).open("a+b", buffering=0)
            sync_folder(folder)
        except OSError as error:
            raise StoreError(f"cannot use the work folder {folder}", got=error.strerror) from None
        try:
            self._open(key)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Let the folder go."""
        self._file.close()

    def remove(self) -> None:
        """The build is done: remove the folder. If a crash stops that, the next build there does it."""
        with contextlib.suppress(OSError):  # what was built is whole
            (self.folder / _NAME).rename(self.folder / _FINISHED)
            sync_folder(self.folder)  # a journal never outlives its runs
            _remove(self.folder)
        self.close()

    def close_or_remove(self) -> bool:
        """Let the folder go; remove it where nothing in it is worth going on with. Whether it is kept."""
        kept = bool(self._runs) or self.base is not None
        if kept:
            self.close()
        else:
            self.remove()
        return kept

    def runs(self) -> list[Path]:
        """Runs that together count every batch that is done, once."""
        with self._lock:
            return [self.folder / name for name in self._runs]

    def is_done(self, file: int, batch: int) -> bool:
        with self._lock:
            return batch in self._done.get(file, ())

    def batches_of(self, file: int) -> set[int]:
        """The batches of a log that are done."""
        with self._lock:
            return set(self._done.get(file, ()))

    def end_of(self, file: int) -> tuple[int, dict[str, Any]] | None:
        """How many batches a log has and what was read of it, once all of it was."""
        return self._ends.get(file)

    def is_whole(self, file: int) -> bool:
        """Whether all batches of a log are counted."""
        with self._lock:
            end = self._ends.get(file)
            return end is not None and len(self._done.get(file, ())) == end[0]

    def new_run(self) -> Path:
        """A name for a run that is about to be written."""
        with self._lock:
            self._serial += 1
            return self.folder / f"{self._serial:06d}.run"

    def add_runs(
        self, runs: Iterable[Path], batches: Iterable[tuple[int, int]], tokens: int, calls: int
    ) -> None:
        """Runs that together count these (file, batch) are on the disk."""
        by_file: dict[int, list[int]] = {}
        for file, batch in batches:
            by_file.setdefault(file, []).append(batch)
        entry = {
            "runs": [run.name for run in runs],
            "batches": {str(file): _as_ranges(numbers) for file, numbers in by_file.items()},
            "tokens": tokens,
            "calls": calls,
        }
        self._sync_names()
        self._add(entry)

    def replace_runs(self, run: Path, merged: Iterable[Path]) -> None:
        """A run that holds all that others do is on the disk: those go."""
        old = list(merged)
        self._sync_names()
        self._add({"run": run.name, "of": [each.name for each in old]})
        for each in old:
            each.unlink(missing_ok=True)

    def add_end(self, file: int, batches: int, tally: Mapping[str, Any], fingerprint: str) -> None:
        """A log was read to its end; the fingerprint is of the tokenizer that all ids so far belong to."""
        self._add({"file": file, "batches": batches, "tally": dict(tally), "fingerprint": fingerprint})

    def has_made(self, path: Path) -> bool:
        """Whether a lookup cache is this build's own work."""
        return str(path.absolute()) in self._made

    def begin_write(self, paths: Iterable[Path]) -> None:
        """Lookup caches are about to be written."""
        self._add({"made": [str(path.absolute()) for path in paths]})

    def begin_load(self, held: int) -> None:
        """A corpus is about to be loaded beside so many outputs."""
        self._add({"base": held, "load": secrets.token_hex(16)})

    def add_loaded(self, outputs: int) -> None:
        """So many outputs, all in all, are loaded durably."""
        self._add({"loaded": outputs})

    def _add(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self._write(line)
            self._take(entry)

    def _sync_names(self) -> None:
        """Runs were written; so far only their bytes are durable."""
        try:
            sync_folder(self.folder)
        except OSError as error:
            raise self._failure(error) from None

    def _failure(self, error: OSError) -> StoreError:
        kind = StoreFullError if error.errno in FULL else StoreError
        return kind(f"cannot write to {self.folder}", got=error.strerror)

    def _write(self, line: bytes) -> None:
        """Add a line, durably and in whole, or not at all."""
        end = self._file.seek(0, os.SEEK_END)
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise self._failure(error) from None

    def _take(self, entry: dict[str, Any]) -> None:
        match entry:
            case {"run": name, "of": old}:
                self._runs = [run for run in self._runs if run not in old] + [name]
            case {"runs": names, "batches": batches, "tokens": tokens, "calls": calls}:
                self._runs += names
                self.tokens += tokens
                self.calls += calls
                for file, ranges in batches.items():
                    done = self._done.setdefault(int(file), set())
                    for first, end in ranges:
                        done.update(range(first, end))
            case {"file": file, "batches": batches, "tally": tally, "fingerprint": fingerprint}:
                self._ends[file] = (batches, tally)
                self.fingerprint = fingerprint or self.fingerprint
            case {"made": paths}:
                self._made.update(paths)
            case {"base": held, "load": str(load_id)}:
                self.base, self.load_id = held, bytes.fromhex(load_id)
            case {"base": held}:  # of an older release
                self.base = held
            case {"loaded": outputs}:
                self.loaded = outputs
            case _:
                raise ValueError(str(entry)[:80])

    @staticmethod
    def _require_ours(folder: Path) -> None:
        """Refuse what no build left: all of a work folder goes when its build is done."""
        if not folder.exists():
            return
        held = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
        marks = held & {_NAME, _FINISHED}
        foreign = sorted(name for name in held if not _is_ours(name) and not name.startswith("."))
        if held and (not marks or foreign or not _is_journal(folder / _FINISHED)):
            raise InvalidInputError(
                f"{folder} is no work folder", expected="a folder that a build left, an empty one, or none",
                got=f"one with {', '.join(foreign or sorted(held))[:80]}", remedy="Name another with --work.",
            )  # fmt: skip

    def _remove_finished(self) -> None:
        """Remove what a build that was done left, killed before it could do so."""
        try:
            with (self.folder / _FINISHED).open("rb") as file:
                self._lock_file(file)
                _remove(self.folder)
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise StoreError(f"cannot remove {self.folder}", got=error.strerror) from None

    def _lock_file(self, file: IO[bytes]) -> None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise StoreLockedError(
                f"another process builds in {self.folder}", remedy="Wait for it, or name another with --work."
            ) from None

    def _open(self, key: str) -> None:
        self._lock_file(self._file)
        self._file.seek(0)
        lines = self._file.readall().splitlines(keepends=True)
        whole = [line for line in lines if line.endswith(b"\n")]
        # What a crash cut off is no line, and nothing may be written behind it.
        self._file.truncate(sum(map(len, whole)))
        try:
            entries = [json.loads(line) for line in whole]
            plan = entries[0]["plan"] if entries else None
            for entry in entries[1:]:
                self._take(entry)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreCorruptError(
                f"the journal in {self.folder} makes no sense", got=error,
                remedy="Delete the folder and build again, or name another with --work.",
            ) from None  # fmt: skip
        if plan is None:
            self._write(json.dumps({"plan": key}).encode() + b"\n")
        elif plan != key:
            raise InvalidInputError(
                f"{self.folder} holds what is left of another build",
                remedy="Delete it, name another folder with --work, or build with the same logs and options.",
            )
        self._settle()

    def _settle(self) -> None:
        """Look at what an earlier start left: damaged runs are an error, forgotten ones go."""
        known = set(self._runs)
        for run in self.folder.glob(_RUN):
            if run.name in known:
                check_run(run)
                known.remove(run.name)
            else:
                run.unlink()
            self._serial = max(self._serial, int(run.stem) if run.stem.isdigit() else 0)
        if known:
            raise StoreCorruptError(
                f"runs are missing in {self.folder}", expected=", ".join(sorted(known))[:80],
                remedy="Delete the folder and build again.",
            )  # fmt: skip


def _is_ours(name: str) -> bool:
    """Whether builds make files or folders of this name in their work folders."""
    return name in (_NAME, _FINISHED, "tokens", "seen") or name.endswith((".run", ".records"))


def _is_journal(path: Path) -> bool:
    """Whether a file is the journal of some build, or is not there."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StoreError(f"cannot read {path}", got=error.strerror) from None


def _remove(folder: Path) -> None:
    """Remove a folder, the file that says that it may go last; what is not ours stays, and it with that."""
    for path in folder.iterdir():
        if path.name == _FINISHED or not _is_ours(path.name):
            continue
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    (folder / _FINISHED).unlink()
    with contextlib.suppress(OSError):
        folder.rmdir()


def _as_ranges(numbers: Iterable[int]) -> list[list[int]]:
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number:
            ranges[-1][1] += 1
        else:
            ranges.append([number, number + 1])
    return ranges
