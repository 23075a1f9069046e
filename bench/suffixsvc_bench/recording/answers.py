"""File of the recorded answers of one workload: JSON Lines, one line per task, append-only.

A line is handed to the operating system before the next task begins, so killing the process loses at most the
current task. A torn last line (without its line feed) is cut off when the file is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import IO, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_bench.speculation.recorded_call import RecordedCall
from suffixsvc_bench.workloads import Task

DATASET: Final = "suffixsvc-workloads"


class AnswerFile(ClosedOnExit):
    """The file of a workload, open for appending. A context manager.

    Args:
        path: created if missing.
        model, tokenizer: name of the model, and fingerprint of its vocabulary.

    Attributes:
        recorded: number of response tokens of each task that was in the file when it was opened.

    Raises:
        InvalidInputError: the file contains something else, or answers of another model or vocabulary;
            another process records to it; it cannot be written. The file is unchanged then.
    """

    def __init__(self, path: Path, *, model: str, tokenizer: str) -> None:
        self.path = path
        self._model, self._tokenizer = model, tokenizer
        try:
            self._stream: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise InvalidInputError(f"{path} must be writable", got=error.strerror) from None
        try:
            self._lock()
            self.recorded, end = self._read()
            self._stream.truncate(end)
        except BaseException:
            self._stream.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def add(self, task: Task, call: RecordedCall) -> None:
        """Append the answer to a task. After return, killing the process does not lose it."""
        meta = {"task": task.id, "split": str(task.split), "kind": task.kind, "theme": task.theme}
        line = call.line(dataset=DATASET, model=self._model, tokenizer=self._tokenizer, meta=meta)
        self._stream.write(line.encode())
        self._stream.flush()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInputError(
                f"{self.path} must not be in use by another process",
                remedy="Wait for it, or choose another folder with --out-dir.",
            ) from None

    def _read(self) -> tuple[dict[str, int], int]:
        """The complete lines, and the offset of their end."""
        self._stream.seek(0)
        recorded, end = {}, 0
        for number, line in enumerate(self._stream, 1):
            if not line.endswith(b"\n"):
                break
            try:
                record = json.loads(line)
                recorded[record["meta"]["task"]] = len(record["response_token_ids"])
            except (ValueError, KeyError, TypeError, RecursionError):
                raise InvalidInputError(
                    f"{self.path}, line {number} must be an answer of bench record",
                    got=repr(line[:60]),
                    remedy="Choose another folder with --out-dir.",
                ) from None
            for field, expected in (("model", self._model), ("tokenizer", self._tokenizer)):
                if record.get(field) != expected:
                    raise InvalidInputError(
                        f"{self.path}, line {number} must be of the same {field}",
                        expected=expected,
                        got=record.get(field),
                        remedy="Record into another folder with --out-dir, or with the model of the file.",
                    )
            end += len(line)
        self._stream.seek(0, os.SEEK_END)
        return recorded, end
