"""Options of verbs that load a model: which part of it is on GPUs, and the type of its KV.

They are a base of a verb's options (:mod:`suffixsvc.verb_options`), as they are the same for all verbs:

    @dataclass(frozen=True, slots=True)
    class ProbeOptions(LoadOptions): ...
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc.verb_options import option

#: value of --gpu-layers that is no number, and its number
_ALL: Final = ("all", -1)
_DEFAULT_KV_TYPE: Final = "f16"

_loading = partial(option, panel="GPU and KV cache")


def _layers(text: str) -> int:
    """Number of layers; -1 for "all".

    Raises:
        InvalidConfigError: neither a number nor "all".
    """
    name, number = _ALL
    if text.strip().lower() == name:
        return number
    try:
        return int(text)
    except ValueError:
        raise InvalidConfigError(f"--gpu-layers must be a number >= 0, or {name}", got=repr(text)) from None


def _proportions(text: str) -> tuple[float, ...]:
    """Numbers separated by commas.

    Raises:
        InvalidConfigError: something else.
    """
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise InvalidConfigError(
            "--tensor-split must be numbers separated by commas", expected="e.g. 3,1", got=repr(text)
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadOptions:
    """Options of a verb that loads a model. None: not given.

    Attributes:
        gpu_layers: -1: all.
    """

    gpu_layers: int | None = _loading(
        None,
        parse=_layers,
        metavar="N|all",
        help="Layers on GPUs, the last ones first (docs/gpu.md). With 0 no GPU is used.",
        show_default="0",
    )
    main_gpu: int | None = _loading(
        None, min=0, metavar="INDEX", help="Use this GPU only.", show_default="all GPUs"
    )
    tensor_split: tuple[float, ...] | None = _loading(
        None,
        parse=_proportions,
        metavar="A,B,..",
        help="Proportions of the model on each GPU.",
        show_default="by their free memory",
    )
    kv_type: str | None = _loading(
        None,
        metavar="TYPE",
        help="Type of the KV cache: f16, f32, or quantised with flash attention: q8_0, q4_0.",
        show_default=_DEFAULT_KV_TYPE,
    )

    @property
    def kv_type_or_default(self) -> str:
        """Type of the KV cache, for verbs without a settings file."""
        return self.kv_type or _DEFAULT_KV_TYPE
