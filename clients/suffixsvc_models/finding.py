"""Search for model files on this machine: in folders, and in Ollama's store."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError

_MODEL_LAYER: Final = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True, order=True)
class FoundModel:
    """A GGUF file and its name."""

    name: str
    path: Path


def find_in_folders(folders: Sequence[Path]) -> list[FoundModel]:
    """Return every GGUF below the folders, sorted by name; of a split model, the first file.

    Raises:
        InvalidConfigError: a folder does not exist.
    """
    found: set[FoundModel] = set()
    for folder in folders:
        if not folder.is_dir():
            raise InvalidConfigError("no such folder", expected="a folder with GGUF files", got=str(folder))
        for path in folder.rglob("*.gguf"):
            first_part = "-of-" not in path.stem or "-00001-of-" in path.stem
            if path.is_file() and first_part:
                found.add(FoundModel(str(path.relative_to(folder)), path))
    return sorted(found)


def ollama_folder() -> Path:
    """Return Ollama's folder of models: $OLLAMA_MODELS, else ~/.ollama/models."""
    return Path(os.environ.get("OLLAMA_MODELS") or Path.home() / ".ollama" / "models")


def find_in_ollama(folder: Path | None = None) -> list[FoundModel]:
    """Return the models of Ollama's store, by name:tag; unreadable manifests are skipped.

    Raises:
        InvalidConfigError: there is no store.
    """
    store = folder or ollama_folder()
    manifests = store / "manifests"
    if not manifests.is_dir():
        raise InvalidConfigError(
            "there is no Ollama store",
            expected="a folder with manifests and blobs",
            got=str(store),
            remedy="Set OLLAMA_MODELS to Ollama's folder of models.",
        )
    return sorted(_of_ollama(store, manifests))


def _of_ollama(store: Path, manifests: Path) -> Iterator[FoundModel]:
    for manifest in manifests.rglob("*"):
        if not manifest.is_file():
            continue
        try:
            layers: Any = json.loads(manifest.read_bytes())["layers"]
            digests = [layer["digest"] for layer in layers if layer["mediaType"] == _MODEL_LAYER]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue
        for digest in digests[:1]:
            blob = store / "blobs" / str(digest).replace(":", "-")
            if blob.is_file():
                yield FoundModel(f"{manifest.parent.name}:{manifest.name}", blob)
