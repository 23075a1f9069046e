"""How many experts a token goes through: what a file says, and saying something else.

llama.cpp takes ``ARCH.expert_used_count=int:N`` as an override of the file's own number. It aborts on a
number that makes no sense, and where the file holds a number for each layer it ignores the override without
a word; so both are found out before.
"""

from __future__ import annotations

from typing import Any, Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.targets.gguf_header import GgufHeader
from suffixsvc_driver.targets.llama_binding import llama

__all__ = ["expert_counts", "override_experts"]

#: LLAMA_KV_OVERRIDE_TYPE_INT
_INT: Final = 0


def expert_counts(header: GgufHeader) -> tuple[int, int]:
    """Experts of a layer, and how many of them a token goes through; (0, 0) for a dense model. The second
    is 0 too where the file has a number for each layer."""
    arch = header.architecture
    return _count(header, f"{arch}.expert_count"), _count(header, f"{arch}.expert_used_count")


def override_experts(header: GgufHeader, name: str, used: int) -> Any:
    """The array of overrides for ``llama_model_params``.

    Raises:
        InvalidConfigError: see :class:`suffixsvc_driver.targets.llama_model.LlamaModel`.
    """
    key = f"{header.architecture}.expert_used_count"
    total, usual = expert_counts(header)
    if key in header.arrays:
        raise InvalidConfigError(
            f"{name} says for each layer how many experts are used; llama.cpp ignores another number",
            expected=f"one number at {key}",
            got=f"an array of {header.arrays[key]}",
            remedy="Leave experts_used out, or write a copy of the file with other numbers.",
        )
    if not total or not usual:
        raise InvalidConfigError(
            f"{name} has no experts to choose from",
            expected=f"a mixture of experts, with {key}",
            got=header.architecture or "no architecture",
            remedy="Leave experts_used out.",
        )
    if isinstance(used, bool) or not isinstance(used, int) or not 1 <= used <= total:
        raise InvalidConfigError("experts_used makes no sense", expected=f"1 .. {total}", got=repr(used))
    kind = llama().llama_model_kv_override
    overrides = (kind * 2)()  # an empty key ends the list
    overrides[0].tag, overrides[0].key = _INT, key.encode()
    overrides[0].value.val_i64 = used
    return overrides


def _count(header: GgufHeader, key: str) -> int:
    value = header.values.get(key, 0)
    return value if isinstance(value, int) else 0
