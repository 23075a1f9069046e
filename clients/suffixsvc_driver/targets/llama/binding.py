"""Binding to llama.cpp: llama-cpp-python's ctypes layer, checked before its first use.

llama.cpp's parameter structs change almost weekly, and a struct of another layout is read as garbage. The
version is therefore pinned, and the defaults that the library returns in the structs are compared with the
known defaults of this version.
"""

from __future__ import annotations

import ctypes
import importlib
import threading
from collections import deque
from typing import Any, Final

from suffixsvc.errors import MissingExtraError, ModelError

_PINNED: Final = "0.3.36"
#: known defaults; they are distinctive enough that a shifted struct does not have them by chance
_CONTEXT_DEFAULTS: Final = {
    "n_ctx": 512, "n_batch": 2048, "n_ubatch": 512, "n_seq_max": 1, "n_rs_seq": 0, "n_outputs_max": 0,
    "n_outputs_max_per_seq": 1, "rope_scaling_type": -1, "pooling_type": -1, "attention_type": -1,
    "flash_attn_type": -1, "yarn_ext_factor": -1.0, "defrag_thold": -1.0, "type_k": 1, "type_v": 1,
    "embeddings": False, "offload_kqv": True, "no_perf": True, "op_offload": True, "swa_full": True,
    "kv_unified": False, "n_samplers": 0,
}  # fmt: skip
_MODEL_DEFAULTS: Final = {
    "n_gpu_layers": -1, "split_mode": 1, "load_mode": -1, "lazy_mode": 1, "main_gpu": 0,
    "vocab_only": False, "check_tensors": False, "use_extra_bufts": True, "no_host": False,
    "no_alloc": False, "load_mtp": False,
}  # fmt: skip
#: numbers of ggml_log_level
_WARN_AND_ERROR: Final = (3, 4)
_SIZES: Final = {
    "llama_context_params": 160, "llama_model_params": 80, "llama_batch": 56, "llama_token_data": 12,
    "llama_token_data_array": 32,
}  # fmt: skip

_lock = threading.Lock()
_module: Any = None
_log: deque[str] = deque(maxlen=20)
_keep_alive: list[Any] = []


def llama() -> Any:
    """Return the ctypes module ``llama_cpp.llama_cpp``, with its backend started and its log silenced.

    Raises:
        MissingExtraError: llama-cpp-python is not installed.
        ModelError: another version than the pinned one, or structs of another layout.
    """
    global _module  # noqa: PLW0603  # the library itself is one per process
    with _lock:
        if _module is None:
            _module = _load()
        return _module


def build_name() -> str:
    """Return the version of llama.cpp and the CPU features that it was built for."""
    module = llama()
    features = module.llama_print_system_info().decode()
    return f"llama-cpp-python {_PINNED}, llama.cpp {module.llama_version().decode()}, {features.strip(' |')}"


def recent_log(about: str = "") -> str:
    """Return the last errors and warnings that llama.cpp logged, for messages.

    Args:
        about: return only the last line that contains this, if there is one.
    """
    lines = [line for line in _log if about and about in line]
    return lines[-1] if lines else " ".join(_log).strip()


def clear_log() -> None:
    """Discard the lines logged so far."""
    _log.clear()


def _load() -> Any:
    try:
        package = importlib.import_module("llama_cpp")
        module = importlib.import_module("llama_cpp.llama_cpp")
    except ImportError as err:
        raise MissingExtraError("llama", "llama_cpp") from err
    _check_layout(package, module)
    _silence(module)
    module.llama_backend_init()
    return module


def _check_layout(package: Any, module: Any) -> None:
    remedy = f"Install the version this was written for: pip install llama-cpp-python=={_PINNED}"
    found: list[tuple[str, object, object]] = [
        ("unsupported version of llama-cpp-python", _PINNED, package.__version__)
    ]
    if package.__version__ == _PINNED:
        for name, size in _SIZES.items():
            found.append(
                (f"unknown layout of {name}: other size", size, ctypes.sizeof(getattr(module, name)))
            )
        for params, known in (
            (module.llama_context_default_params(), _CONTEXT_DEFAULTS),
            (module.llama_model_default_params(), _MODEL_DEFAULTS),
        ):
            kind = f"unknown layout of {type(params).__name__}: other default of"
            found += [(f"{kind} {name}", value, getattr(params, name, None)) for name, value in known.items()]
    for what, expected, got in found:
        if got != expected:
            raise ModelError(what, expected=expected, got=got, remedy=remedy)


def _silence(module: Any) -> None:
    """Redirect llama.cpp's log to a short list of warnings and errors; print nothing."""

    def keep(level: int, text: bytes, _data: Any) -> None:
        if level in _WARN_AND_ERROR:
            _log.append(text.decode("utf-8", "replace").strip())

    callback = module.llama_log_callback(keep)
    _keep_alive.append(callback)
    module.llama_log_set(callback, ctypes.c_void_p(0))
