"""Recording of the demo's calls, one line of JSON per call (see recorded_call.py).

A session is one question. A path that ends in .gz is compressed.
"""

from __future__ import annotations

import gzip
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from suffixsvc_bench.demo.agent_runner import Answer
from suffixsvc_bench.speculation.recorded_call import RecordedCall

__all__ = ["DATASET", "Recorder"]

DATASET: Final = "suffixsvc-demo"


class Recorder:
    """Writes calls to a file that is created, complete, when the `with` block ends without an error."""

    def __init__(self, path: Path, *, model: str, tokenizer: str) -> None:
        self._path = path
        self._draft = path.with_name(f".{path.name}.new")
        self._model = model
        self._tokenizer = tokenizer
        self._stream: IO[str] | None = None

    def __enter__(self) -> Self:
        if self._path.suffix == ".gz":
            self._stream = gzip.open(self._draft, "wt", encoding="utf-8")
        else:
            self._stream = self._draft.open("w", encoding="utf-8")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()
        if kind is None:
            self._draft.replace(self._path)
        else:
            self._draft.unlink(missing_ok=True)

    def write(self, answer: Answer, pass_number: int) -> None:
        """Append a call."""
        call, result = answer.call, answer.result
        recorded = RecordedCall(
            session=call.question.key,
            agent=call.agent.name,
            turn=call.turn,
            prompt=answer.prompt,
            response=answer.text,
            prompt_ids=result.prompt_ids,
            token_ids=result.token_ids,
            finish=str(result.finish),
        )
        meta = {"pass": pass_number, "question": call.question.text}
        assert self._stream is not None, "used outside of its with block"
        self._stream.write(
            recorded.line(dataset=DATASET, model=self._model, tokenizer=self._tokenizer, meta=meta)
        )
