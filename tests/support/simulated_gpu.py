"""GPUs for llama.cpp on a machine without one.

A simulated GPU is a copy of ggml's CPU device whose type is that of a GPU, and whose buffers have its name.
It is registered with the ggml that llama.cpp is linked to. Everything else is llama.cpp's own code: which
devices it uses, how it splits the layers, where the KV is, what it logs. The arithmetic is that of the CPU.

Registered devices stay until the process ends, so tests do this in processes of their own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_Pointer = ctypes.c_void_p
#: ggml_backend_device: 15 functions, the registry, the context
_DEVICE_WORDS = 17
_NAME, _DESCRIPTION, _TYPE, _PROPERTIES, _BUFFER_TYPE = 0, 1, 3, 4, 6
#: ggml_backend_buffer_type: 6 functions, the device, the context
_BUFFER_TYPE_WORDS = 8
_ALLOCATE, _OWN_DEVICE = 1, 6
_GPU = 1
#: offsets in ggml_backend_dev_props: type, and whether mapped files serve as the device's memory
_TYPE_OFFSET = 32
_MAPS_FILES_OFFSET = 50
_keep_alive: list[Any] = []


def register(count: int, *, memory: bool = True) -> None:
    """Register ``count`` simulated GPUs, SIM0 and so on; without ``memory`` they can allocate nothing."""
    from llama_cpp import llama_cpp

    library: Any = llama_cpp._lib
    library.ggml_backend_dev_get.argtypes = [ctypes.c_size_t]
    library.ggml_backend_dev_get.restype = _Pointer
    library.ggml_backend_device_register.argtypes = [_Pointer]
    cpu = (_Pointer * _DEVICE_WORDS).from_address(library.ggml_backend_dev_get(0))
    for number in range(count):
        library.ggml_backend_device_register(ctypes.addressof(_device(number, list(cpu), memory=memory)))


def _device(number: int, cpu: list[int], *, memory: bool) -> Any:
    device = (_Pointer * _DEVICE_WORDS)(*cpu)
    name = ctypes.create_string_buffer(f"SIM{number}".encode())
    description = ctypes.create_string_buffer(b"simulated")
    device[_NAME] = _function(_Pointer, 1, lambda _: ctypes.addressof(name))
    device[_DESCRIPTION] = _function(_Pointer, 1, lambda _: ctypes.addressof(description))
    device[_TYPE] = _function(ctypes.c_int, 1, lambda _: _GPU)
    describe_cpu = ctypes.CFUNCTYPE(None, _Pointer, _Pointer)(cpu[_PROPERTIES])

    def describe(which: int, out: int) -> None:
        describe_cpu(which, out)
        (_Pointer * 2).from_address(out)[:] = ctypes.addressof(name), ctypes.addressof(description)
        ctypes.c_int.from_address(out + _TYPE_OFFSET).value = _GPU
        ctypes.c_bool.from_address(out + _MAPS_FILES_OFFSET).value = False

    device[_PROPERTIES] = _function(None, 2, describe)
    cpu_buffers = ctypes.CFUNCTYPE(_Pointer, _Pointer)(cpu[_BUFFER_TYPE])
    buffers = (_Pointer * _BUFFER_TYPE_WORDS)(
        *(_Pointer * _BUFFER_TYPE_WORDS).from_address(cpu_buffers(ctypes.addressof(device)))
    )
    buffers[_NAME] = device[_NAME]
    if not memory:
        buffers[_ALLOCATE] = _function(_Pointer, 2, lambda _type, _size: None, ctypes.c_size_t)
    buffers[_OWN_DEVICE] = ctypes.addressof(device)
    device[_BUFFER_TYPE] = _function(_Pointer, 1, lambda _: ctypes.addressof(buffers))
    _keep_alive.extend((device, name, description, buffers))
    return device


def _function(result: Any, arguments: int, body: Callable[..., Any], last: Any = _Pointer) -> int | None:
    kinds = [_Pointer] * (arguments - 1)
    function = ctypes.CFUNCTYPE(result, *kinds, last)(body)
    _keep_alive.append(function)
    return ctypes.cast(function, _Pointer).value


def python_path(folder: Path, count: int) -> str:
    """Return a PYTHONPATH with which every Python process has simulated GPUs, also those that it starts."""
    tests = str(Path(__file__).parents[1])
    lines = ("import sys", f"sys.path.append({tests!r})", "from support import simulated_gpu")
    (folder / "sitecustomize.py").write_text("\n".join((*lines, f"simulated_gpu.register({count})\n")))
    return str(folder)


@contextmanager
def captured_log() -> Iterator[list[str]]:
    """Lines of every level that llama.cpp logs. The driver, which keeps only warnings and errors, receives
    them too."""
    from suffixsvc_driver.targets.llama import binding

    library, lines = binding.llama(), []
    own = binding._keep_alive[0]

    def keep(level: int, text: bytes, data: Any) -> None:
        lines.extend(text.decode("utf-8", "replace").splitlines())
        own(level, text, data)

    callback = library.llama_log_callback(keep)
    library.llama_log_set(callback, ctypes.c_void_p(0))
    try:
        yield lines
    finally:
        library.llama_log_set(own, ctypes.c_void_p(0))
