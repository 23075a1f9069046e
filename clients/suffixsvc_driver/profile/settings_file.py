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

import json
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Final

from pydantic import Field

from suffixsvc.errors import InvalidConfigError
from suffixsvc.runtime.atomic_file import write_atomically
from suffixsvc.settings import read_toml
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.checks import as_integer, as_real, check_numbers
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.offload import Offload


@dataclass(frozen=True, slots=True)
class TargetSettings:
    """Settings of the target. None leaves the choice to the program or to llama.cpp.

    Attributes:
        threads: None: one per physical core.
        context_size: capacity in tokens, for prompt and output together.
        experts_used: see :class:`suffixsvc_driver.targets.llama.model.LlamaModel`.
        max_width, batch_size, flash_attention, kv_type, snapshots, full_window, branches: see
            :class:`suffixsvc_driver.targets.llama.context.ContextSettings`.
        gpu_layers, main_gpu, tensor_split, kv_offload: see
            :class:`suffixsvc_driver.targets.llama.offload.Offload`.

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
    gpu_layers: int = 0
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] = ()
    kv_offload: bool = True

    def __post_init__(self) -> None:
        self.context_settings(threads=1, context_size=1)
        self.offload()
        if self.experts_used is not None:
            as_integer("experts_used", self.experts_used)

    def offload(self) -> Offload:
        """Return settings of the offload to GPUs."""
        return Offload(self.gpu_layers, self.main_gpu, self.tensor_split, self.kv_offload)

    def context_settings(self, *, threads: int, context_size: int, slots: int = 1) -> ContextSettings:
        """Return settings of a context, with ``threads`` and ``context_size`` unless these are set here."""
        shared = {name: getattr(self, name) for name in _SHARED}
        return ContextSettings(
            context_size=context_size if self.context_size is None else self.context_size,
            slots=slots,
            threads=threads if self.threads is None else self.threads,
            **shared,
        )


#: fields of TargetSettings that a context has, too
_SHARED: Final = {each.name for each in fields(ContextSettings)} & {
    each.name for each in fields(TargetSettings)
} - {"context_size", "threads"}


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
        check_numbers(self)


@dataclass(frozen=True, slots=True)
class DraftModelSettings(LayerSettings):
    """Settings of the draft model's layer.

    Attributes:
        enabled, max_draft_tokens: see :class:`LayerSettings`.
        p_min: drafts end before a token less likely than this; None = by the cost of its tokens.
        top_k: probabilities are normalised over this many most probable tokens.

    Raises:
        InvalidConfigError: ``p_min`` outside 0 .. 1, a number below 1.
    """

    max_draft_tokens: int = 16
    p_min: float | None = None
    top_k: int = 10

    def __post_init__(self) -> None:
        check_numbers(self)
        if self.p_min is not None:
            as_real("p_min", self.p_min, 0.0, 1.0, "in 0 .. 1")


@dataclass(frozen=True)
class _Tables:
    driver: DriverConfig = field(default_factory=DriverConfig)
    target: TargetSettings = field(default_factory=TargetSettings)
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class _Layers:
    prompt_lookup: Annotated[LayerSettings, Field(alias="prompt-lookup")] = LayerSettings()
    suffix: LayerSettings = LayerSettings()
    draft_model: Annotated[DraftModelSettings, Field(alias="draft-model")] = DraftModelSettings()


@dataclass(frozen=True)
class Settings(_Layers, _Tables):
    """Contents of a settings file. The tables of layers have the layers' names in statistics."""


@dataclass(frozen=True)
class _File(_Tables):
    layers: _Layers = _Layers()


def read_settings(path: str | os.PathLike[str]) -> Settings:
    """Read a settings file.

    Raises:
        InvalidConfigError: the file cannot be read, is not TOML, or has an invalid key, which is named.
    """
    file = read_toml(_File, path, "settings file")
    layers = file.layers
    return Settings(
        file.driver, file.target, file.sampling, layers.prompt_lookup, layers.suffix, layers.draft_model
    )


def write_settings(path: str | os.PathLike[str], settings: Settings, *, note: str = "") -> None:
    """Write a settings file atomically; :func:`read_settings` returns equal settings.

    Args:
        note: comment at the top of the file.

    Raises:
        InvalidConfigError: a value that the file cannot represent, or the file cannot be written.
    """
    lines = [f"# {line}".rstrip() for line in note.splitlines()]
    layers = {each.name for each in fields(_Layers)}
    for part in fields(settings):
        table = getattr(settings, part.name)
        name = f"layers.{part.name.replace('_', '-')}" if part.name in layers else part.name
        lines += ["", f"[{name}]"] if lines else [f"[{name}]"]
        for each in fields(table):
            value = getattr(table, each.name)
            numbers = isinstance(value, tuple) and value and all(isinstance(part, float) for part in value)
            if isinstance(value, (bool, int, float, str)) or numbers:
                lines.append(f"{each.name} = {_toml(value)}")
            elif value != each.default:
                raise InvalidConfigError(
                    f"{name}.{each.name} must have its default in a settings file", got=repr(value)[:80]
                )
    file = Path(path)
    try:
        write_atomically(file, "\n".join(lines) + "\n")
    except OSError as error:
        raise InvalidConfigError(
            f"the settings cannot be written to {file}",
            expected="a file in a folder that is there and can be written to",
            got=error.strerror,
        ) from None


def _toml(value: bool | int | float | str | tuple[Any, ...]) -> str:
    """A TOML value. JSON strings are TOML strings, except for a control character that JSON leaves as is."""
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, str):
        return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
    return str(value).lower() if isinstance(value, bool) else repr(value)
