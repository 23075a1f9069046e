"""The recorded answers of one workload: a JSON Lines file that grows by a line a task.

A line is written at once and handed to the operating system before the next task begins, so a process that
is killed loses the task it was at and no other. What was torn - a last line without its line feed - is cut
off when the file is opened again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.recorded_call import RecordedCall
from suffixsvc_bench.workloads import Task

__all__ = ["DATASET", "AnswerFile", "Recorded"]

DATASET: Final = "suffixsvc-workloads"


@dataclass(frozen=True, slots=True)
class Recorded:
    """An answer that the file held when it was opened."""

    task: str
    tokens: int


class AnswerFile:
    """The file of a workload, open for adding to it. Use it as a context manager.

    Args:
        path: made where it is missing.
        model, tokenizer: name of the model, and fingerprint of its vocabulary.

    Raises:
        InvalidInputError: the file holds answers of another model or vocabulary, or something else than
            answers; another process adds to it; it cannot be written. It is left as it is.
    """

    def __init__(self, path: Path, *, model: str, tokenizer: str) -> None:
        self.path = path
        self._model, self._tokenizer = model, tokenizer
        try:
            self._stream: IO[bytes] = path.open("a+b")
        except OSError as error:
            raise InvalidInputError(f"cannot write {path}", got=error.strerror) from None
        try:
            self._lock()
            self.held, end = self._read()
            self._stream.truncate(end)
        except BaseException:
            self._stream.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stream.close()

    def add(self, task: Task, call: RecordedCall) -> None:
        """Add the answer to a task. Once this returns, killing the process does not lose it."""
        meta = {"task": task.id, "split": str(task.split), "kind": task.kind, "theme": task.theme}
        line = call.line(dataset=DATASET, model=self._model, tokenizer=self._tokenizer, meta=meta)
        self._stream.write(line.encode())
        self._stream.flush()

    def _lock(self) -> None:
        try:
            fcntl.flock(self._stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InvalidInputError(
                f"another process records to {self.path}",
                remedy="Wait for it, or give another folder with --out-dir.",
            ) from None

    def _read(self) -> tuple[list[Recorded], int]:
        """The whole lines, and where the last of them ends."""
        self._stream.seek(0)
        held, end = [], 0
        for number, line in enumerate(self._stream, 1):
            if not line.endswith(b"\n"):
                break
            held.append(self._recorded(number, line))
            end += len(line)
        self._stream.seek(0, os.SEEK_END)
        return held, end

    def _recorded(self, number: int, line: bytes) -> Recorded:
        try:
            record = json.loads(line)
            recorded = Recorded(record["meta"]["task"], len(record["response_token_ids"]))
        except (ValueError, KeyError, TypeError, RecursionError):
            raise InvalidInputError(
                f"{self.path}, line {number} is not a recorded answer",
                expected="what bench record wrote",
                got=repr(line[:60]),
                remedy="Give another folder with --out-dir.",
            ) from None
        self._require(record, number, "model", self._model)
        self._require(record, number, "tokenizer", self._tokenizer)
        return recorded

    def _require(self, record: Mapping[str, Any], number: int, what: str, expected: str) -> None:
        if record.get(what) != expected:
            raise InvalidInputError(
                f"{self.path}, line {number} was recorded with another {what}",
                expected=expected,
                got=record.get(what),
                remedy="Record into another folder with --out-dir, or with the model of the file.",
            )
