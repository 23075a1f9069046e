"""A llama.cpp context: KV memory in slots, batches in, logits out. No policy.

Every slot is a sequence with KV memory of its own (not unified), so what one slot computes depends on
nothing in another: replaying its batches gives the same bits.
"""

from __future__ import annotations

import ctypes
import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from suffixsvc.errors import InvalidConfigError, LimitExceededError, ModelError
from suffixsvc.types import FloatArray
from suffixsvc_driver.targets.llama_binding import llama, recent_log
from suffixsvc_driver.targets.llama_model import LlamaModel

__all__ = ["ContextSettings", "LlamaContext", "Outputs"]

_KV_TYPES: Final = {"f32": 0, "f16": 1}


class Outputs(enum.Enum):
    """Which positions of a batch get logits."""

    NONE = enum.auto()
    ALL = enum.auto()


@dataclass(frozen=True, slots=True)
class ContextSettings:
    """How to compute.

    Attributes:
        context_size: tokens of one slot; rounded up to a multiple of 256.
        slots: sequences kept side by side.
        threads: physical cores to use. Never more: llama.cpp's threads spin.
        batch_size: tokens prefilled at once.
        max_width: tokens verified at once at most, which sizes the logits buffer.
        flash_attention: None lets llama.cpp choose.
        kv_type: "f16" or "f32".
    """

    context_size: int = 2048
    slots: int = 1
    threads: int = 1
    batch_size: int = 512
    max_width: int = 32
    flash_attention: bool | None = None
    kv_type: str = "f16"

    def __post_init__(self) -> None:
        for name in ("context_size", "slots", "threads", "batch_size", "max_width"):
            if getattr(self, name) < 1:
                raise InvalidConfigError(f"{name} makes no sense", expected=">= 1", got=getattr(self, name))
        if self.kv_type not in _KV_TYPES:
            raise InvalidConfigError(
                "no such KV type", expected=" or ".join(_KV_TYPES), got=repr(self.kv_type)
            )
        if self.max_width > self.batch_size:
            raise InvalidConfigError(
                "a verification step is one batch",
                expected=f"max_width <= batch_size = {self.batch_size}",
                got=self.max_width,
            )


class LlamaContext:
    """KV memory and compute buffers on a model. Not thread-safe. Close it before the model."""

    def __init__(self, model: LlamaModel, settings: ContextSettings) -> None:
        self.model, self.settings = model, settings
        self._lib = llama()
        params = self._lib.llama_context_default_params()
        per_slot = -(-settings.context_size // 256) * 256
        params.n_ctx = per_slot * settings.slots
        params.n_seq_max = settings.slots
        params.n_batch = params.n_ubatch = settings.batch_size
        # llama.cpp reserves one output per sequence at least, and aborts where that does not fit
        params.n_outputs_max = max(settings.max_width, settings.slots)
        params.n_outputs_max_per_seq = settings.max_width
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = _KV_TYPES[settings.kv_type]
        params.kv_unified = False
        if settings.flash_attention is not None:
            params.flash_attn_type = int(settings.flash_attention)
        self._handle = self._lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise ModelError(
                f"llama.cpp cannot make a context for {model.path.name}",
                expected=f"memory for {settings.slots} slots of {per_slot} tokens",
                got=recent_log() or "no reason given",
                remedy="Use fewer slots or a shorter context.",
            )
        self._memory = self._lib.llama_get_memory(self._handle)
        self.slot_size: int = self._lib.llama_n_ctx_seq(self._handle)
        self._row = ctypes.c_float * model.vocab_size
        self._make_batch()

    def _make_batch(self) -> None:
        """Arrays of our own behind one llama_batch; numpy writes into them without a loop."""
        n = self.settings.batch_size
        self._tokens = np.zeros(n, np.int32)
        self._positions = np.zeros(n, np.int32)
        self._count_up = np.arange(n, dtype=np.int32)
        self._counts = np.ones(n, np.int32)
        self._prepared: tuple[int, Outputs] | None = None
        self._flags = {Outputs.NONE: np.zeros(n, np.int8), Outputs.ALL: np.ones(n, np.int8)}
        seq_id = ctypes.c_int32 * 1
        self._seq_ids = [seq_id(slot) for slot in range(self.settings.slots)]
        pointer = ctypes.POINTER(ctypes.c_int32)
        self._seq_pointers = [(pointer * n)(*([ctypes.cast(s, pointer)] * n)) for s in self._seq_ids]
        self._batch = self._lib.llama_batch(
            token=self._tokens.ctypes.data_as(pointer),
            pos=self._positions.ctypes.data_as(pointer),
            n_seq_id=self._counts.ctypes.data_as(pointer),
        )
        flag = ctypes.POINTER(ctypes.c_int8)
        self._flag_pointers = {k: v.ctypes.data_as(flag) for k, v in self._flags.items()}

    def decode(self, tokens: Sequence[int], start: int, slot: int, outputs: Outputs) -> None:
        """Compute ``tokens`` at positions ``start``.. of ``slot``; at most ``batch_size`` of them.

        Raises:
            LimitExceededError: the slot is full. Nothing was computed.
            ModelError: llama.cpp failed.
        """
        n = len(tokens)
        if n > self.settings.batch_size or (outputs is Outputs.ALL and n > self.settings.max_width):
            raise LimitExceededError(
                "a batch is too wide", expected=f"at most {self.settings.max_width} with logits", got=n
            )
        if start + n > self.slot_size:
            raise LimitExceededError(
                "the context is full", expected=f"at most {self.slot_size} tokens", got=start + n
            )
        self._tokens[:n] = tokens
        np.add(self._count_up[:n], start, out=self._positions[:n])
        batch = self._batch
        if self._prepared != (slot, outputs):  # ctypes takes its time with pointers
            batch.seq_id = self._seq_pointers[slot]
            batch.logits = self._flag_pointers[outputs]
            self._prepared = (slot, outputs)
        self._compute(n, f"{n} tokens at position {start}")

    def decode_each(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> None:
        """Compute one token for each of several slots in one batch, with logits: ``logits(i)`` is behind
        ``tokens[i]``. No slot twice. Only runs of adjacent slots in ascending order are computed together: in
        any other order this takes as long as one batch for each run.

        Raises:
            LimitExceededError: a slot is full. Nothing was computed.
            ModelError: llama.cpp failed.
        """
        n = len(tokens)
        if max(positions) >= self.slot_size:
            raise LimitExceededError(
                "the context is full", expected=f"at most {self.slot_size} tokens", got=max(positions) + 1
            )
        self._tokens[:n] = tokens
        self._positions[:n] = positions
        pointer = ctypes.POINTER(ctypes.c_int32)
        self._batch.seq_id = (pointer * n)(*(ctypes.cast(self._seq_ids[slot], pointer) for slot in slots))
        self._batch.logits = self._flag_pointers[Outputs.ALL]
        self._prepared = None
        self._compute(n, f"a token of each of {n} slots")

    def _compute(self, n: int, what: str) -> None:
        self._batch.n_tokens = n
        code = self._lib.llama_decode(self._handle, self._batch)
        if code != 0:
            raise ModelError(
                f"llama_decode failed for {what}", expected=0, got=f"{code} {recent_log()}".strip()
            )

    def logits(self, index: int) -> FloatArray:
        """float32[n_vocab] of token ``index`` of the last batch. A view: gone with the next decode."""
        row = self._lib.llama_get_logits_ith(self._handle, index)
        # np.ctypeslib.as_array would build a type per call, ten times slower
        buffer: Any = self._row.from_address(ctypes.addressof(row.contents))
        return np.frombuffer(buffer, np.float32)

    def cut(self, slot: int, keep: int) -> None:
        """Forget the slot's KV from position ``keep`` on.

        Raises:
            ModelError: the model's state cannot be cut (recurrent and hybrid models).
        """
        if not self._lib.llama_memory_seq_rm(self._memory, slot, keep, -1):
            raise ModelError(
                f"{self.model.path.name} keeps a state that cannot be rolled back",
                expected="an attention-only model",
                remedy="Recurrent and hybrid targets are not supported.",
            )

    def copy(self, source: int, slot: int) -> None:
        """Make ``slot`` a copy of ``source``."""
        self._lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
        self._lib.llama_memory_seq_cp(self._memory, source, slot, -1, -1)

    def close(self) -> None:
        """Free the memory. Idempotent."""
        if self._handle:
            self._lib.llama_free(self._handle)
            self._handle = None
