"""What the model wrote while a run was prepared, kept in a file: the next run need not write it again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.decode.jobs import Job

__all__ = ["Prepared"]

_FORMAT: Final = "suffixsvc-decode-prepared/1"


class Prepared:
    """Answers a job with what is kept, or by writing it and keeping that.

    Args:
        file: made where it is not there; None keeps nothing.
        model: a hash of the model whose answers these are.
        write: answers a job.
        experts: that a token goes through, where that is not what the model's file says: other texts.

    Raises:
        InvalidInputError: the file is another one, or of another model.
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
        self._kept: dict[str, list[int]] = {}
        if file is not None and file.is_file():
            self._kept = self._read(file)

    def __call__(self, job: Job) -> Sequence[int]:
        key = f"{self._prefix}{job.max_tokens}:{','.join(map(str, job.prompt_ids))}"
        if key not in self._kept:
            self._kept[key] = list(self._write(job))
            self._keep()
        return self._kept[key]

    def _read(self, file: Path) -> dict[str, list[int]]:
        try:
            data: Any = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as err:
            raise InvalidInputError(f"{file} cannot be read", expected=_FORMAT, got=str(err)) from None
        if not isinstance(data, dict) or data.get("format") != _FORMAT:
            raise InvalidInputError(f"{file} holds no prepared answers", expected=_FORMAT, got=str(data)[:60])
        if data.get("model") != self._model:
            raise InvalidInputError(
                f"{file} holds the answers of another model",
                expected=self._model,
                got=data.get("model"),
                remedy="Name another file with --prepared.",
            )
        return dict(data["answers"])

    def _keep(self) -> None:
        if self._file is None:
            return
        data = {"format": _FORMAT, "model": self._model, "answers": self._kept}
        draft = self._file.with_name(f".{self._file.name}.new")
        draft.write_text(json.dumps(data), encoding="utf-8")
        draft.replace(self._file)
