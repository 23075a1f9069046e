"""Work folder of a build: runs, and a journal that records which run has which batches.

    {"plan": key}                                    first line: key of the plan
    {"runs": [name, ..], "batches": {file: [[a, b], ..]}, "tokens": n, "calls": n}
                                                     batches a .. b - 1 of a file are counted
    {"run": name, "of": [name, ..]}                  a run that replaces others
    {"file": i, "batches": n, "tally": {..}, "fingerprint": f}    a log was read to its end, it has n batches
    {"made": [path, ..]}                             lookup caches that this build writes or has written
    {"base": n, "load": id}                          outputs of a namespace before the corpus load, and the id
                                                     of the load
    {"loaded": n}                                    outputs of the corpus that are loaded

At the end of a build the journal is renamed to ``finished``, then the folder is removed.

A line is appended after the files that it names are durable, both their contents and their names. On open, a
line without a newline is truncated, and runs that no line names are removed.
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
from suffixsvc.errors import InvalidInputError, StoreCorruptError, StoreError, StoreLockedError
from suffixsvc.runtime.atomic_file import sync_folder_if_possible
from suffixsvc_caches.atomic import make_folder, write_error

_NAME: Final = "journal.jsonl"
_FINISHED: Final = "finished"
_RUN: Final = "*.run"
#: first bytes of every journal
_BEGINNING: Final = b'{"plan":'


class Journal:
    """Journal of a work folder, which is created if it does not exist. Thread-safe; locked by one process.

    Args:
        folder: the work folder.
        key: key of the plan; the folder of another plan is refused.

    Attributes:
        tokens, calls: counted so far.
        base: outputs of the namespace before the corpus load; None = not begun.
        load_id: random id of the corpus load, 16 bytes.
        loaded: outputs of the corpus that are loaded.
        fingerprint: of the tokenizer; "" = unknown.

    Raises:
        InvalidInputError: the folder belongs to another build, or is not a work folder.
        StoreLockedError: another process uses it. StoreError: the folder cannot be used.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self.folder = folder
        self._lock = threading.Lock()
        self._done: dict[int, set[int]] = {}
        self._runs: list[str] = []
        self._ends: dict[int, tuple[int, dict[str, Any]]] = {}
        self.tokens = self.calls = self.loaded = 0
        self.base: int | None = None
        self.load_id = b""
        self._made: set[str] = set()
        self.fingerprint = ""
        self._serial = 0
        self._require_work_folder(folder)
        self._remove_finished()
        try:
            make_folder(folder)
            # Unbuffered: bytes of a failed write must not be written by a later flush.
            self._file = (folder / _NAME).open("a+b", buffering=0)
            sync_folder_if_possible(folder)
        except OSError as error:
            raise StoreError(f"cannot use the work folder {folder}", got=error.strerror) from None
        try:
            self._open(key)
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the journal and release its lock."""
        self._file.close()

    def remove(self) -> None:
        """Remove the folder of a finished build; after a crash the next build there completes the removal."""
        with contextlib.suppress(OSError):  # the outputs of the build are complete
            (self.folder / _NAME).rename(self.folder / _FINISHED)
            sync_folder_if_possible(self.folder)  # the rename must be durable before runs are removed
            _remove(self.folder)
        self.close()

    def close_or_remove(self) -> bool:
        """Close the journal; remove the folder if there is nothing to resume. Return whether it is kept."""
        kept = bool(self._runs) or self.base is not None
        if kept:
            self.close()
        else:
            self.remove()
        return kept

    def runs(self) -> list[Path]:
        """Return the runs, which together count each done batch once."""
        with self._lock:
            return [self.folder / name for name in self._runs]

    def is_done(self, file: int, batch: int) -> bool:
        """Whether a batch of a log is counted."""
        with self._lock:
            return batch in self._done.get(file, ())

    def batches_of(self, file: int) -> set[int]:
        """Return the batches of a log that are counted."""
        with self._lock:
            return set(self._done.get(file, ()))

    def end_of(self, file: int) -> tuple[int, dict[str, Any]] | None:
        """Return (number of batches, read report as JSON) of a log that was read to its end; else None."""
        return self._ends.get(file)

    def report_of(self, file: int) -> dict[str, Any] | None:
        """Return the read report as JSON of a log all of whose batches are counted; else None."""
        with self._lock:
            end = self._ends.get(file)
            return end[1] if end and len(self._done.get(file, ())) == end[0] else None

    def new_run(self) -> Path:
        """Return a path for a new run."""
        with self._lock:
            self._serial += 1
            return self.folder / f"{self._serial:06d}.run"

    def add_runs(
        self, runs: Iterable[Path], batches: Iterable[tuple[int, int]], tokens: int, calls: int
    ) -> None:
        """Record runs that together count these (file, batch); their contents must be durable."""
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
        """Record a run that replaces others, and remove those; its contents must be durable."""
        old = list(merged)
        self._sync_names()
        self._add({"run": run.name, "of": [each.name for each in old]})
        for each in old:
            each.unlink(missing_ok=True)

    def add_end(self, file: int, batches: int, report: Mapping[str, Any], fingerprint: str) -> None:
        """Record that a log was read to its end, with the tokenizer of all ids so far."""
        self._add({"file": file, "batches": batches, "tally": dict(report), "fingerprint": fingerprint})

    def is_own_output(self, path: Path) -> bool:
        """Whether this build writes or has written a lookup cache."""
        return str(path.absolute()) in self._made

    def begin_write(self, paths: Iterable[Path]) -> None:
        """Record that lookup caches are about to be written."""
        self._add({"made": [str(path.absolute()) for path in paths]})

    def begin_load(self, held: int) -> None:
        """Record the start of a corpus load into a namespace that has ``held`` outputs."""
        self._add({"base": held, "load": secrets.token_hex(16)})

    def add_loaded(self, outputs: int) -> None:
        """Record the total number of outputs that are durably loaded."""
        self._add({"loaded": outputs})

    def _add(self, entry: dict[str, Any]) -> None:
        line = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        with self._lock:
            self.append(line)
            self._apply(entry)

    def _sync_names(self) -> None:
        """Make the names of new runs durable."""
        try:
            sync_folder_if_possible(self.folder)
        except OSError as error:
            raise write_error(error, f"cannot write to {self.folder}") from None

    def append(self, line: bytes) -> None:
        """Append a line durably, or leave the journal unchanged."""
        end = self._file.seek(0, os.SEEK_END)
        left = memoryview(line)
        try:
            while left:
                left = left[self._file.write(left) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            self._file.truncate(end)
            raise write_error(error, f"cannot write to {self.folder}") from None

    def _apply(self, entry: dict[str, Any]) -> None:
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
            case {"file": file, "batches": batches, "tally": report, "fingerprint": fingerprint}:
                self._ends[file] = (batches, report)
                self.fingerprint = fingerprint or self.fingerprint
            case {"made": paths}:
                self._made.update(paths)
            case {"base": held, "load": str(load_id)}:
                self.base, self.load_id = held, bytes.fromhex(load_id)
            case {"base": held}:  # journals of older releases
                self.base = held
            case {"loaded": outputs}:
                self.loaded = outputs
            case _:
                raise ValueError(str(entry)[:80])

    @staticmethod
    def _require_work_folder(folder: Path) -> None:
        """Check that a folder is absent, empty or a work folder, as it is removed at the end of the build."""
        if not folder.exists():
            return
        names = {path.name for path in folder.iterdir()} if folder.is_dir() else {folder.name}
        journals = names & {_NAME, _FINISHED}
        foreign = sorted(name for name in names if not _is_build_file(name) and not name.startswith("."))
        if names and (not journals or foreign or not _is_journal(folder / _FINISHED)):
            raise InvalidInputError(
                f"{folder} must be a work folder, empty or absent",
                got=f"a folder with {', '.join(foreign or sorted(names))[:80]}",
                remedy="Name another with --work.",
            )

    def _remove_finished(self) -> None:
        """Complete the removal of a finished build that was killed."""
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
        # A partial last line is from a crash and is removed before new lines are appended.
        self._file.truncate(sum(map(len, whole)))
        try:
            entries = [json.loads(line) for line in whole]
            plan = entries[0]["plan"] if entries else None
            for entry in entries[1:]:
                self._apply(entry)
        except (ValueError, TypeError, KeyError, RecursionError) as error:
            raise StoreCorruptError(
                f"the journal in {self.folder} is malformed",
                got=error,
                remedy="Delete the folder and build again, or name another with --work.",
            ) from None
        if plan is None:
            self.append(json.dumps({"plan": key}).encode() + b"\n")
        elif plan != key:
            raise InvalidInputError(
                f"{self.folder} is the work folder of another build",
                remedy="Delete it, name another folder with --work, or build with the same logs and options.",
            )
        self._recover_runs()

    def _recover_runs(self) -> None:
        """Check the journal's runs and remove those without an entry. StoreCorruptError: a damaged run."""
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
                f"runs are missing in {self.folder}",
                expected=", ".join(sorted(known))[:80],
                remedy="Delete the folder and build again.",
            )


def _is_build_file(name: str) -> bool:
    """Whether builds create files or folders of this name in their work folders."""
    return name in (_NAME, _FINISHED, "tokens", "seen") or name.endswith((".run", ".records"))


def _is_journal(path: Path) -> bool:
    """Whether a file is a journal, or does not exist."""
    try:
        with path.open("rb") as file:
            return file.read(len(_BEGINNING)) == _BEGINNING
    except FileNotFoundError:
        return True
    except OSError as error:
        raise StoreError(f"cannot read {path}", got=error.strerror) from None


def _remove(folder: Path) -> None:
    """Remove the files of a build, the finished journal last, and the folder if it is empty then."""
    for path in folder.iterdir():
        if path.name == _FINISHED or not _is_build_file(path.name):
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
