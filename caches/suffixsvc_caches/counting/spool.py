"""Spool of encoded calls in the work folder, one file for each batch, from which a corpus is loaded."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from suffixsvc.config import MAX_LABEL_CHARACTERS
from suffixsvc.errors import StoreCorruptError
from suffixsvc.types import TokenArray
from suffixsvc_caches.atomic import new_file
from suffixsvc_caches.counting.batches import Batch


@dataclass(frozen=True, slots=True)
class SpooledCall:
    """An encoded call: response tokens int32[n], n >= 1, last prompt tokens int32[m], labels."""

    token_ids: TokenArray
    prompt_tail: TokenArray
    labels: dict[str, str]


class TokenSpool:
    """Spool of the calls of a build.

    Args:
        folder: created if it does not exist.
        prompt_tokens: number of tokens that are kept of each prompt, from its end.
    """

    def __init__(self, folder: Path, prompt_tokens: int) -> None:
        self._folder = folder
        self.prompt_tokens = prompt_tokens
        folder.mkdir(parents=True, exist_ok=True)

    def write(self, batch: Batch, responses: Sequence[TokenArray], prompts: Sequence[TokenArray]) -> None:
        """Write a batch; an existing file is replaced by an equal one. StoreError: it cannot be written."""
        labels = [
            {
                name: _as_label(value)
                for name, value in (("agent", call.agent), ("session", call.session), ("model", call.model))
                if value
            }
            for call in batch.calls
        ]
        arrays = {
            "tokens": _concatenate(responses),
            "sizes": np.array([len(each) for each in responses], np.int64),
            "prompts": _concatenate(prompts),
            "prompt_sizes": np.array([len(each) for each in prompts], np.int64),
            "labels": np.frombuffer(json.dumps(labels).encode(), np.uint8),
        }
        with new_file(self._path(batch.file, batch.number), force=True) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type] # the stub takes names for options

    def read(self, file: int, batch: int) -> Iterator[SpooledCall]:
        """Yield the calls of a batch that have tokens. StoreCorruptError: its file is missing or damaged."""
        path = self._path(file, batch)
        try:
            with np.load(path, allow_pickle=False) as kept:
                arrays = {name: kept[name] for name in kept.files}
            labels = json.loads(arrays["labels"].tobytes())
        except (OSError, EOFError, ValueError, KeyError, RecursionError, zipfile.BadZipFile) as error:
            raise StoreCorruptError(
                f"cannot read {path}", got=error, remedy="Delete the work folder and build again."
            ) from None
        tokens = np.split(arrays["tokens"], np.cumsum(arrays["sizes"])[:-1])
        prompts = np.split(arrays["prompts"], np.cumsum(arrays["prompt_sizes"])[:-1])
        for ids, prompt, each in zip(tokens, prompts, labels, strict=False):
            if len(ids):
                yield SpooledCall(ids, prompt, each)

    def _path(self, file: int, batch: int) -> Path:
        return self._folder / f"{file}-{batch}.npz"


def _as_label(value: str) -> str:
    """Truncate a value to the length of a label, and replace what UTF-8 cannot encode (names of files)."""
    return value[:MAX_LABEL_CHARACTERS].encode(errors="replace").decode()


def _concatenate(parts: Sequence[TokenArray]) -> TokenArray:
    return np.concatenate([np.empty(0, np.int32), *parts]).astype(np.int32, copy=False)
