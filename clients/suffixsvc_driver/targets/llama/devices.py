"""GPUs that this build of llama.cpp can use, from ggml's own registry of backends and devices."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc_driver.targets.llama.binding import llama

#: ggml_backend_dev_type
_GPU: Final = 1
_INTEGRATED_GPU: Final = 2


class _Properties(ctypes.Structure):
    """ggml_backend_dev_props."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("description", ctypes.c_char_p),
        ("memory_free", ctypes.c_size_t),
        ("memory_total", ctypes.c_size_t),
        ("type", ctypes.c_int),
        ("device_id", ctypes.c_char_p),
        ("capabilities", ctypes.c_bool * 4),
    )


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A GPU.

    Attributes:
        name: of the backend and its number there, as "CUDA0".
        description: name of the hardware.
        memory_free, memory_total: bytes; integrated GPUs report the machine's memory, some backends 0.
        handle: the C pointer (ggml_backend_dev_t).
    """

    name: str
    description: str
    memory_free: int
    memory_total: int
    handle: int

    def __str__(self) -> str:
        return f"{self.name} ({self.description})"


def gpu_devices() -> tuple[GpuDevice, ...]:
    """Return the devices on which llama.cpp places layers by default.

    These are all GPUs, each once, even if several backends offer it; without any, the first integrated GPU.
    The number of a GPU in settings is its index here.
    """
    library = _registry()
    gpus: list[GpuDevice] = []
    integrated: list[GpuDevice] = []
    seen: set[bytes] = set()
    for index in range(library.ggml_backend_dev_count()):
        handle = library.ggml_backend_dev_get(index)
        found = _Properties()
        library.ggml_backend_dev_get_props(handle, ctypes.byref(found))
        if found.type not in (_GPU, _INTEGRATED_GPU) or (found.device_id and found.device_id in seen):
            continue
        if found.device_id:
            seen.add(found.device_id)
        name, description = (text.decode("utf-8", "replace") for text in (found.name, found.description))
        device = GpuDevice(name, description, found.memory_free, found.memory_total, handle)
        (gpus if found.type == _GPU else integrated).append(device)
    return tuple(gpus or integrated[:1])


def backend_names() -> tuple[str, ...]:
    """Return the names of the backends in this build, as "CUDA" and "CPU"; a backend may have no device."""
    library = _registry()
    count = library.ggml_backend_reg_count()
    names = (library.ggml_backend_reg_name(library.ggml_backend_reg_get(i)) for i in range(count))
    return tuple(name.decode("utf-8", "replace") for name in names)


def _registry() -> Any:
    """The shared library of llama.cpp, which also finds the symbols of the ggml that it is linked to.

    ``llama_cpp._ggml`` must not be used: wheels have copies instead of links, so it may load a second ggml
    with a registry of its own, which llama.cpp does not use.
    """
    library: Any = llama()._lib  # it has no public name
    library.ggml_backend_dev_count.restype = ctypes.c_size_t
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_get.restype = ctypes.c_void_p
    library.ggml_backend_dev_get_props.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Properties)]
    library.ggml_backend_dev_get_props.restype = None
    library.ggml_backend_reg_count.restype = ctypes.c_size_t
    library.ggml_backend_reg_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_reg_get.restype = ctypes.c_void_p
    library.ggml_backend_reg_name.argtypes = [ctypes.c_void_p]
    library.ggml_backend_reg_name.restype = ctypes.c_char_p
    return library
