"""Every call of a demo as one line of JSON: the format that `suffixsvc replay` reads.

    {"dataset", "session_id", "agent", "turn", "prompt", "response",
     "prompt_token_ids", "response_token_ids", "tokenizer", "model", "meta"}

A session is one question; its calls follow each other in ``turn``. ``tokenizer`` is the fingerprint of
the vocabulary that the ids belong to. A path that ends in .gz is compressed.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from types import TracebackType
from typing import IO, Final, Self

from suffixsvc_bench.demo.brain import Answer

__all__ = ["DATASET", "Recorder"]

DATASET: Final = "suffixsvc-demo"


class Recorder:
    """Writes calls to a file that appears, complete, when the `with` block is left without an error."""

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
        """Add a call."""
        call, result = answer.call, answer.result
        record = {
            "dataset": DATASET,
            "session_id": call.question.key,
            "agent": call.agent.name,
            "turn": call.turn,
            "prompt": answer.prompt,
            "response": answer.text,
            "prompt_token_ids": list(result.prompt_ids),
            "response_token_ids": list(result.token_ids),
            "tokenizer": self._tokenizer,
            "model": self._model,
            "meta": {"pass": pass_number, "question": call.question.text, "finish": str(result.finish)},
        }
        assert self._stream is not None, "used outside of its with block"
        self._stream.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")) + "\n")
