"""Number of experts per token of a mixture-of-experts model: reading it, and overriding it.

llama.cpp takes ``ARCH.expert_used_count=int:N`` as an override of the file's number. It aborts on an invalid
number, and silently ignores the override if the file has a number for each layer; both are checked before.
"""

from __future__ import annotations

from typing import Any, Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.targets.llama.binding import llama
from suffixsvc_models.gguf_header import GgufHeader

#: LLAMA_KV_OVERRIDE_TYPE_INT
_INT: Final = 0


def expert_counts(header: GgufHeader) -> tuple[int, int]:
    """Return the number of experts of a layer, and of those used per token; (0, 0) for a dense model. The
    second is also 0 if the file has a number for each layer."""
    arch = header.architecture
    return _count(header, f"{arch}.expert_count"), _count(header, f"{arch}.expert_used_count")


def override_experts(header: GgufHeader, name: str, used: int) -> Any:
    """Return the array of overrides for ``llama_model_params``.

    Raises:
        InvalidConfigError: see :class:`suffixsvc_driver.targets.llama.model.LlamaModel`.
    """
    key = f"{header.architecture}.expert_used_count"
    total, usual = expert_counts(header)
    if key in header.arrays:
        raise InvalidConfigError(
            f"{name} has a number of used experts for each layer, which llama.cpp does not override",
            expected=f"one number at {key}",
            got=f"an array of {header.arrays[key]}",
            remedy="Omit experts_used, or write a copy of the file with other numbers.",
        )
    if not total or not usual:
        raise InvalidConfigError(
            f"{name} has no experts",
            expected=f"a mixture of experts, with {key}",
            got=header.architecture or "no architecture",
            remedy="Omit experts_used.",
        )
    if isinstance(used, bool) or not isinstance(used, int) or not 1 <= used <= total:
        raise InvalidConfigError(f"experts_used must be in 1 .. {total}", got=repr(used))
    kind = llama().llama_model_kv_override
    overrides = (kind * 2)()  # an empty key ends the list
    overrides[0].tag, overrides[0].key = _INT, key.encode()
    overrides[0].value.val_i64 = used
    return overrides


def _count(header: GgufHeader, key: str) -> int:
    value = header.values.get(key, 0)
    return value if isinstance(value, int) else 0
