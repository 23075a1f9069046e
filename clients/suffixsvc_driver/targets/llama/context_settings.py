"""Settings of a llama.cpp context."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Final

from suffixsvc_driver.settings.checks import check_numbers, require
from suffixsvc_driver.targets.llama.machine import usable_cores

#: name -> ggml type number
KV_TYPES: Final = {"f32": 0, "f16": 1, "q8_0": 8, "q4_0": 2}
#: types in blocks of 32 values, which must divide the size of the model's heads
QUANTIZED_KV: Final = frozenset({"q8_0", "q4_0"})
#: largest number of sequences in a context (LLAMA_MAX_SEQ)
MAX_SEQUENCES: Final = 256
_THREADS_PER_CORE: Final = 4


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """Settings of a context.

    Attributes:
        context_size: capacity of one slot in tokens; rounded up to a multiple of 256.
        slots: number of sequences.
        threads: compute threads. The default is one per physical core that this process may use, by its
            affinity and its control group. Never use more: llama.cpp's threads spin.
        batch_size: tokens of a prefill batch.
        max_width: largest number of verified tokens, which sizes the logits buffer.
        flash_attention: None = by a trial (:mod:`~suffixsvc_driver.targets.llama.attention`); for a bare
            :class:`LlamaContext`, llama.cpp's own choice.
        kv_type: "f16", "f32", or quantised, "q8_0" or "q4_0", for which llama.cpp needs flash attention.
        snapshots: roll recurrent states back by snapshots if the architecture supports them, otherwise by
            saving them before a draft and restoring them. Takes ``max_width`` + 1 states per slot.
        full_window: windowed layers keep the whole text, so that any prefix of it can be reused.
        branches: sequences for drafted trees, which may then have this many leaves more than one. Needs
            unified KV, and costs time for long texts (llama.cpp masks every cell for every sequence). Models
            whose state cannot be cut, or whose windowed layers evict tokens (``full_window`` = False), verify
            chains only.
        prefix_tokens: largest number of tokens whose KV is stored in main memory after the end of their
            generation (shared batches only). Models with a recurrent state store none.

    Raises:
        InvalidConfigError: a value out of range.
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
    prefix_tokens: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, branches=0, prefix_tokens=0)
        # they spin: hundreds of them would stall the machine
        most = _THREADS_PER_CORE * (os.cpu_count() or 1)
        require(self.threads <= most, f"threads must be <= {most}; one per core is best", self.threads)
        require(
            self.branches < MAX_SEQUENCES - self.slots,
            f"branches must be < {MAX_SEQUENCES} - slots, the sequences of llama.cpp",
            self.branches,
        )
        require(self.kv_type in KV_TYPES, f"kv_type must be {' or '.join(KV_TYPES)}", repr(self.kv_type))
        require(
            self.kv_type not in QUANTIZED_KV or self.flash_attention is not False,
            f"flash_attention must not be false with kv_type {self.kv_type}",
            self.flash_attention,
        )
        fits = self.max_width <= self.batch_size
        require(fits, f"max_width must be <= batch_size = {self.batch_size}", self.max_width)
