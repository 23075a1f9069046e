"""Offload of a model's layers and of their KV to GPUs: settings, their checks, llama.cpp's parameters."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.settings.checks import as_integer, as_real, invalid, require
from suffixsvc_driver.targets.llama.binding import llama
from suffixsvc_driver.targets.llama.devices import GpuDevice, backend_names, gpu_devices

#: ``gpu_layers`` of a model that is on GPUs entirely
ALL_LAYERS: Final = -1
#: name of the device of a model that is on the CPU entirely
CPU: Final = "cpu"
#: llama_split_mode
_SPLIT_NONE: Final = 0
_SPLIT_LAYERS: Final = 1


class OffloadOptions(Protocol):
    """Options of a command line; None: not given."""

    @property
    def gpu_layers(self) -> int | None:
        """See :class:`Offload`."""

    @property
    def main_gpu(self) -> int | None:
        """See :class:`Offload`."""

    @property
    def tensor_split(self) -> tuple[float, ...] | None:
        """See :class:`Offload`."""


@dataclass(frozen=True, slots=True)
class Offload:
    """Which part of a model is on GPUs.

    Attributes:
        gpu_layers: number of layers on GPUs, counted from the last one; the output layer counts as one.
            :data:`ALL_LAYERS`: all. 0: none, and GPUs are not used at all, not even for prompts.
        main_gpu: index in :func:`~.devices.gpu_devices` of the only GPU that is used. None: layers are split
            over all GPUs.
        tensor_split: proportions of the GPUs, in the order of :func:`~.devices.gpu_devices`; those without
            one get no layer. Empty: in proportion to their free memory.
        kv_offload: the KV of a layer is on the layer's GPU; otherwise all KV is in the machine's memory.

    Raises:
        InvalidConfigError: a value out of range, or one that llama.cpp would ignore: ``main_gpu`` with
            ``tensor_split``, either of them without ``gpu_layers``.
    """

    gpu_layers: int = 0
    main_gpu: int | None = None
    tensor_split: tuple[float, ...] = ()
    kv_offload: bool = True

    def __post_init__(self) -> None:
        as_integer("gpu_layers", self.gpu_layers, ALL_LAYERS)
        if self.main_gpu is not None:
            as_integer("main_gpu", self.main_gpu, 0)
        if not isinstance(self.tensor_split, Sequence) or isinstance(self.tensor_split, str):
            raise invalid("tensor_split", "a sequence of numbers >= 0", self.tensor_split)
        parts = tuple(as_real("tensor_split", part) for part in self.tensor_split)
        require(not parts or sum(parts) > 0.0, "tensor_split must have a proportion > 0", parts)
        require(
            self.main_gpu is None or not parts, "main_gpu must not be given with tensor_split", self.main_gpu
        )
        for name, given in (("main_gpu", self.main_gpu is not None), ("tensor_split", bool(parts))):
            condition = f"{name} must not be given without gpu_layers"
            require(not given or self.gpu_layers != 0, condition, getattr(self, name))
        object.__setattr__(self, "tensor_split", parts)

    @classmethod
    def of(cls, options: OffloadOptions) -> Offload:
        """Return the settings of a command line.

        Raises:
            InvalidConfigError: as the class.
        """
        return cls(options.gpu_layers or 0, options.main_gpu, options.tensor_split or ())

    def arguments(self) -> list[str]:
        """Return the options of ``suffixsvc draft-worker`` that make the same settings."""
        if not self.gpu_layers:
            return []
        layers = "all" if self.gpu_layers == ALL_LAYERS else str(self.gpu_layers)
        found = ["--gpu-layers", layers]
        if self.main_gpu is not None:
            found += ["--main-gpu", str(self.main_gpu)]
        if self.tensor_split:
            found += ["--tensor-split", ",".join(map(str, self.tensor_split))]
        return found


def select_devices(offload: Offload) -> tuple[GpuDevice, ...]:
    """Return the GPUs that a model with these settings uses.

    Raises:
        InvalidConfigError: llama.cpp has no GPU, or not as many.
    """
    if not offload.gpu_layers:
        return ()
    devices = gpu_devices()
    if not llama().llama_supports_gpu_offload() or not devices:
        raise _no_gpu(offload.gpu_layers)
    names = ", ".join(map(str, devices))
    if offload.main_gpu is not None:
        if offload.main_gpu >= len(devices):
            raise InvalidConfigError(
                "main_gpu must be the index of a GPU", expected=f"0 .. {len(devices) - 1}: {names}",
                got=offload.main_gpu,
            )  # fmt: skip
        return (devices[offload.main_gpu],)
    if len(offload.tensor_split) > len(devices):
        raise InvalidConfigError(
            "tensor_split must have at most one proportion for each GPU",
            expected=f"at most {len(devices)}: {names}",
            got=len(offload.tensor_split),
        )
    if offload.tensor_split:
        return tuple(device for device, part in zip(devices, offload.tensor_split, strict=False) if part)
    return devices


def _no_gpu(gpu_layers: int) -> InvalidConfigError:
    backends = [name for name in backend_names() if name not in ("CPU", "BLAS")]
    if backends:
        found = f"a build with {', '.join(backends)}, which finds no GPU"
        remedy = "Check the GPU's driver, and that this process may use the GPU; or leave gpu_layers at 0."
    else:
        found = "a build without a GPU backend"
        remedy = (
            "Install llama-cpp-python with CUDA, Vulkan or Metal (docs/gpu.md), or leave gpu_layers at 0."
        )
    return InvalidConfigError(
        "gpu_layers must be 0 where llama.cpp has no GPU", got=f"{gpu_layers}, and {found}", remedy=remedy
    )


def set_model_params(params: Any, offload: Offload) -> list[Any]:
    """Write the settings into llama_model_params.

    Returns:
        The arrays that the parameters point to, to be kept until the model is loaded.

    Raises:
        InvalidConfigError: as :func:`select_devices`.
    """
    params.n_gpu_layers = offload.gpu_layers
    used, known = select_devices(offload), gpu_devices()
    if not known:
        return []
    # an explicit list: an empty one keeps llama.cpp from computing wide batches on a GPU, and with the others
    # the indices are those of gpu_devices()
    devices = (ctypes.c_void_p * (len(used) + 1))(*(device.handle for device in used), None)
    params.devices = ctypes.cast(devices, ctypes.c_void_p)
    kept: list[Any] = [devices]
    params.split_mode = _SPLIT_NONE if offload.main_gpu is not None else _SPLIT_LAYERS
    params.main_gpu = 0
    if offload.tensor_split:
        parts = [part for part in offload.tensor_split if part]
        # llama.cpp reads as many values as it supports devices
        split = (ctypes.c_float * llama().llama_max_devices())(*parts)
        params.tensor_split = split
        kept.append(split)
    return kept


def describe_device(offload: Offload, layers: int) -> str:
    """Return a description of the hardware that computes a model and of what is on it: :data:`CPU`, or the
    GPUs with their layers.

    Args:
        layers: number of layers of the model, the output layer included.
    """
    if not offload.gpu_layers:
        return CPU
    count = layers if offload.gpu_layers == ALL_LAYERS else min(offload.gpu_layers, layers)
    parts = [", ".join(map(str, select_devices(offload))), f"{count} of {layers} layers"]
    shares = [f"{part:g}" for part in offload.tensor_split if part]
    if len(shares) > 1:
        parts.append(f"split {':'.join(shares)}")
    if not offload.kv_offload:
        parts.append("KV on the CPU")
    return "; ".join(parts)
