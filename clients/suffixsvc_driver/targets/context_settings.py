"""How a llama.cpp context computes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from suffixsvc.errors import InvalidConfigError
from suffixsvc_driver.machine import usable_cores

__all__ = ["KV_TYPES", "MAX_SEQUENCES", "ContextSettings"]

#: name -> number of ggml's type
KV_TYPES: Final = {"f32": 0, "f16": 1}
#: sequences that llama.cpp can tell apart in a context (LLAMA_MAX_SEQ)
MAX_SEQUENCES: Final = 256
_THREADS_A_CORE: Final = 4


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """How to compute.

    Attributes:
        context_size: tokens of one slot; rounded up to a multiple of 256.
        slots: sequences kept side by side.
        threads: to compute on. The default is one for each physical core that this process may use, by its
            affinity and its control group. Never more: llama.cpp's threads spin.
        batch_size: tokens prefilled at once.
        max_width: tokens verified at once at most, which sizes the logits buffer.
        flash_attention: None = what suits the model (:mod:`suffixsvc_driver.targets.attention`); of a bare
            :class:`LlamaContext`, what llama.cpp chooses.
        kv_type: "f16" or "f32".
        snapshots: let recurrent states roll back by themselves where the architecture can; without it they
            are saved before a draft and put back behind it. Takes ``max_width`` + 1 states a slot.
        full_window: layers that see a window only keep the whole text nevertheless, so that any beginning
            of it can be used again.
        branches: sequences for drafted trees, which may then have so many leaves more than one. Takes unified
            KV, and at long texts some time for each (llama.cpp masks every cell for every sequence anew).
            Models whose state cannot be cut, or that forget what lies behind a window (``full_window`` =
            False), verify chains only, whatever this says.
    """

    context_size: int = 2048
    slots: int = 1
    threads: int = field(default_factory=usable_cores)
    batch_size: int = 512
    max_width: int = 32
    flash_attention: bool | None = None
    kv_type: str = "f16"
    snapshots: bool = True
    full_window: bool = True
    branches: int = 0

    def __post_init__(self) -> None:
        for name in ("context_size", "slots", "threads", "batch_size", "max_width"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{name} makes no sense", expected=">= 1", got=getattr(self, name))
        most = _THREADS_A_CORE * (os.cpu_count() or 1)
        if self.threads > most:  # they spin: hundreds of them bring a machine to a stop
            raise InvalidConfigError(
                "more threads than make sense",
                expected=f"at most {most}, one a core is best",
                got=self.threads,
            )
        if not 0 <= self.branches < MAX_SEQUENCES - self.slots:
            raise InvalidConfigError(
                "llama.cpp has not so many sequences",
                expected=f"0 <= branches < {MAX_SEQUENCES} - slots",
                got=self.branches,
            )
        if self.kv_type not in KV_TYPES:
            raise InvalidConfigError(
                "no such KV type", expected=" or ".join(KV_TYPES), got=repr(self.kv_type)
            )
        if self.max_width > self.batch_size:
            raise InvalidConfigError(
                "a verification step is one batch",
                expected=f"max_width <= batch_size = {self.batch_size}",
                got=self.max_width,
            )
