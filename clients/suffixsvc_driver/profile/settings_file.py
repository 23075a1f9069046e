"""Settings file: settings of the driver, its target and its layers in TOML.

    [driver]                    fields of DriverConfig
    policy = "expected-gain"

    [target]                    fields of TargetSettings
    threads = 2

    [sampling]                  fields of Sampling
    temperature = 0.0

    [layers.prompt-lookup]      fields of LayerSettings
    [layers.suffix]             the same
    [layers.draft-model]        fields of DraftModelSettings
    enabled = true

Omitted keys keep their defaults. An unknown key, or a value of another type, is an error that names the key.
"""

from __future__ import annotations

import enum
import json
import math
import os
import tempfile
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig, LayerKind
from suffixsvc_driver.targets.llama.context import ContextSettings

__all__ = [
    "DraftModelSettings",
    "LayerSettings",
    "Settings",
    "TargetSettings",
    "read_settings",
    "write_settings",
]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """Settings of the target. None leaves the choice to the program or to llama.cpp.

    Attributes:
        threads: None: one per physical core.
        context_size: capacity in tokens, for prompt and output together.
        experts_used: see :class:`suffixsvc_driver.targets.llama.model.LlamaModel`.
        max_width, batch_size, flash_attention, kv_type, snapshots, full_window, branches: see
            :class:`suffixsvc_driver.targets.llama.context.ContextSettings`.

    Raises:
        InvalidConfigError: a value out of range.
    """

    threads: int | None = None
    context_size: int | None = None
    experts_used: int | None = None
    max_width: int = 64
    batch_size: int = 512
    flash_attention: bool | None = None
    kv_type: str = "f16"
    snapshots: bool = True
    full_window: bool = True
    branches: int = 0

    def __post_init__(self) -> None:
        self.context_settings(threads=1, context_size=1)
        if self.experts_used is not None and self.experts_used < 1:
            raise InvalidConfigError("experts_used must be >= 1", got=self.experts_used)

    def context_settings(self, *, threads: int, context_size: int, slots: int = 1) -> ContextSettings:
        """Return settings of a context, with ``threads`` and ``context_size`` unless these are set here."""
        return ContextSettings(
            context_size=context_size if self.context_size is None else self.context_size,
            slots=slots,
            threads=threads if self.threads is None else self.threads,
            batch_size=self.batch_size,
            max_width=self.max_width,
            flash_attention=self.flash_attention,
            kv_type=self.kv_type,
            snapshots=self.snapshots,
            full_window=self.full_window,
            branches=self.branches,
        )


@dataclass(frozen=True, slots=True)
class LayerSettings:
    """Settings of a layer.

    Attributes:
        enabled: whether it is queried at all.
        max_draft_tokens: limit of a draft.

    Raises:
        InvalidConfigError: ``max_draft_tokens`` below 1.
    """

    enabled: bool = True
    max_draft_tokens: int = 64

    def __post_init__(self) -> None:
        _require_at_least_one("max_draft_tokens", self.max_draft_tokens)


@dataclass(frozen=True, slots=True)
class DraftModelSettings:
    """Settings of the draft model's layer.

    Attributes:
        enabled, max_draft_tokens: see :class:`LayerSettings`.
        p_min: drafts end before a token less likely than this; None = by the cost of its tokens.
        top_k: probabilities are normalised over this many most probable tokens.

    Raises:
        InvalidConfigError: ``p_min`` outside 0 .. 1, a number below 1.
    """

    enabled: bool = True
    max_draft_tokens: int = 16
    p_min: float | None = None
    top_k: int = 10

    def __post_init__(self) -> None:
        for name in ("max_draft_tokens", "top_k"):
            _require_at_least_one(name, getattr(self, name))
        if self.p_min is not None and not 0.0 <= self.p_min <= 1.0:
            raise InvalidConfigError("p_min must be in 0 .. 1", got=self.p_min)


@dataclass(frozen=True, slots=True)
class Settings:
    """Contents of a settings file. The tables of layers have the layers' names in statistics."""

    driver: DriverConfig = field(default_factory=DriverConfig)
    target: TargetSettings = field(default_factory=TargetSettings)
    sampling: Sampling = field(default_factory=Sampling)
    prompt_lookup: LayerSettings = field(default_factory=LayerSettings)
    suffix: LayerSettings = field(default_factory=LayerSettings)
    draft_model: DraftModelSettings = field(default_factory=DraftModelSettings)


#: table of the file -> field of Settings
_TABLES: Final[Mapping[str, str]] = {
    "driver": "driver",
    "target": "target",
    "sampling": "sampling",
    f"layers.{LayerKind.PROMPT_LOOKUP}": "prompt_lookup",
    f"layers.{LayerKind.SUFFIX}": "suffix",
    f"layers.{LayerKind.DRAFT_MODEL}": "draft_model",
}
_CLASSES: Final[Mapping[str, type[Any]]] = typing.get_type_hints(Settings)
_NAME_OF: Final = {
    bool: "true or false",
    int: "an integer",
    float: "a finite number",
    str: "a text in quotes",
}


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """Read a settings file.

    Raises:
        InvalidConfigError: the file cannot be read, is not TOML, or has an invalid key, which is named.
    """
    file = Path(path)
    try:
        data = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidConfigError(
            f"the settings in {file} cannot be read", expected="a TOML file", got=error.strerror
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:  # the first says line
        raise InvalidConfigError(f"the settings in {file} must be TOML", got=error) from None
    where = str(file)
    found: dict[str, Any] = {}
    for name, table in _tables(data, where):
        found[_TABLES[name]] = _read_table(_CLASSES[_TABLES[name]], table, where, name)
    return Settings(**found)


def write_settings(path: str | os.PathLike[str], settings: Settings, *, note: str = "") -> None:
    """Write a settings file atomically; :func:`read_settings` returns equal settings.

    Args:
        note: comment at the top of the file.

    Raises:
        InvalidConfigError: a value that TOML cannot represent, or the file cannot be written.
    """
    lines = [f"# {line}".rstrip() for line in note.splitlines()]
    for name, attribute in _TABLES.items():
        table = getattr(settings, attribute)
        lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
        lines += [f"{key} = {_toml(value)}" for key, value in _writable(table, name) if value is not None]
    file = Path(path)
    try:
        handle, temporary = tempfile.mkstemp(dir=file.parent, prefix=f".{file.name}-")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as out:
                out.write("\n".join(lines) + "\n")
            os.replace(temporary, file)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise InvalidConfigError(
            f"the settings cannot be written to {file}",
            expected="a file in a folder that is there and can be written to",
            got=error.strerror,
        ) from None


def _tables(data: Mapping[str, Any], file: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The tables of a file, by their full names."""
    layers = data.get("layers", {})
    if not isinstance(layers, dict):
        raise _wrong(file, "layers", f"tables, as [layers.{LayerKind.SUFFIX}]", repr(layers))
    found = {name: value for name, value in data.items() if name != "layers"}
    found |= {f"layers.{name}": value for name, value in layers.items()}
    for name, table in found.items():
        if name not in _TABLES:
            raise _wrong(file, name, ", ".join(f"[{known}]" for known in _TABLES), "another key")
        if not isinstance(table, dict):
            raise _wrong(file, name, f"a table, as in [{name}]", repr(table))
        yield name, table


def _read_table(kind: type[T], table: Mapping[str, Any], file: str, name: str) -> T:
    types_of = _settable(kind)
    values = {}
    for key, value in table.items():
        where = f"{name}.{key}"
        if key not in types_of:
            raise _wrong(file, where, "one of " + ", ".join(types_of), key)
        values[key] = _checked(value, types_of[key], file, where)
    try:
        return kind(**values)
    except InvalidConfigError as error:
        key = next((key for key in values if key in error.message), "")
        where = f"{name}.{key}" if key else f"[{name}]"
        condition = error.expected or error.message.partition(" must be ")[2]
        raise _wrong(file, where, condition, f"{error.got} ({error.message})") from None


def _settable(kind: type[Any]) -> dict[str, tuple[type, ...]]:
    """Fields that a file can represent, and the types of their values."""
    hints = typing.get_type_hints(kind)
    found = {}
    for each in fields(kind):
        hint = hints[each.name]
        members = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
        kinds = tuple(member for member in members if member is not type(None))
        if all(_is_scalar(kind) for kind in kinds):
            found[each.name] = kinds
    return found


def _is_scalar(kind: Any) -> bool:
    return kind in _NAME_OF or (isinstance(kind, enum.EnumType) and issubclass(kind, enum.StrEnum))


def _checked(value: Any, kinds: tuple[type, ...], file: str, where: str) -> Any:
    for kind in kinds:
        if issubclass(kind, enum.StrEnum):
            if isinstance(value, str) and value in list(kind):
                return kind(value)
        elif kind is float and type(value) is int:
            return float(value)
        elif type(value) is kind and not (isinstance(value, float) and not math.isfinite(value)):
            return value
    expected = " or ".join(
        _NAME_OF[kind] if kind in _NAME_OF else " or ".join(f'"{member}"' for member in _members(kind))
        for kind in kinds
    )
    raise _wrong(file, where, expected, repr(value))


def _members(kind: type) -> list[str]:
    return [str(member) for member in kind] if issubclass(kind, enum.StrEnum) else []


def _writable(table: Any, name: str) -> Iterator[tuple[str, Any]]:
    known = _settable(type(table))
    for each in fields(table):
        value = getattr(table, each.name)
        if each.name in known:
            yield each.name, value
        elif value != each.default:
            raise InvalidConfigError(
                f"{name}.{each.name} must have its default in a settings file",
                got=repr(value)[:80],
            )


def _toml(value: bool | int | float | str) -> str:
    """A TOML value. JSON strings are TOML strings, except for a control character that JSON leaves as is."""
    if isinstance(value, str):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _wrong(file: str, key: str, expected: object, got: object) -> InvalidConfigError:
    return InvalidConfigError(
        f"the settings in {file} are wrong at {key}", expected=expected, got=str(got)[:200]
    )


def _require_at_least_one(name: str, value: int) -> None:
    if value < 1:
        raise InvalidConfigError(f"{name} must be >= 1", got=value)
