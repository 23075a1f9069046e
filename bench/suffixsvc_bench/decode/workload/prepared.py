"""Answers that the model wrote during preparation, stored in a file for the next run."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc.runtime.atomic_file import write_atomically
from suffixsvc_bench.decode.workload.jobs import Job
from suffixsvc_bench.report.output import read_json

_FORMAT: Final = "suffixsvc-decode-prepared/1"


class PreparedAnswers:
    """Answers a job from the file, or computes the answer and stores it.

    Args:
        file: created if missing; None stores nothing.
        model: hash of the model that wrote the answers.
        write: answers a job.
        experts: experts per token if not as in the model's file; part of the key, as the texts differ.

    Raises:
        InvalidInputError: the file has another format, or answers of another model.
    """

    def __init__(
        self,
        file: Path | None,
        model: str,
        write: Callable[[Job], Sequence[int]],
        experts: int | None = None,
    ) -> None:
        self._file, self._model, self._write = file, model, write
        self._prefix = "" if experts is None else f"{experts} experts:"
        self._answers: dict[str, list[int]] = {}
        if file is not None and file.is_file():
            self._answers = self._read(file)

    def __call__(self, job: Job) -> Sequence[int]:
        """Answer a job."""
        key = f"{self._prefix}{job.max_tokens}:{','.join(map(str, job.prompt_ids))}"
        if key not in self._answers:
            self._answers[key] = list(self._write(job))
            if self._file is not None:
                data = {"format": _FORMAT, "model": self._model, "answers": self._answers}
                write_atomically(self._file, json.dumps(data))
        return self._answers[key]

    def _read(self, file: Path) -> dict[str, list[int]]:
        data = read_json(file, f"{file} must be readable JSON")
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise InvalidInputError(
                f"{file} must contain prepared answers", expected=_FORMAT, got=str(data)[:60]
            )
        if data.get("model") != self._model:
            raise InvalidInputError(
                f"{file} must contain answers of the same model",
                expected=self._model,
                got=data.get("model"),
                remedy="Name another file with --prepared.",
            )
        return dict(data["answers"])
