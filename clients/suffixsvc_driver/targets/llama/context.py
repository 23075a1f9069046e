"""A llama.cpp context: KV memory in slots; computes batches and returns logits. No policy.

Every slot is a sequence with its own KV memory, so that its results do not depend on other slots: replaying
its batches gives the same bits. With *unified* KV all slots share one memory, in which each token takes the
first free cell: several sequences may then hold the same cell, and one batch has tokens of several sequences,
but the order of the cells changes the order of sums. The same operations from an empty memory on give the
same bits.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from suffixsvc.errors import LimitExceededError, ModelError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import FloatArray
from suffixsvc_driver.drafts.tree import depths_of
from suffixsvc_driver.targets.llama.binding import llama, recent_log
from suffixsvc_driver.targets.llama.context_settings import (
    KV_TYPES,
    MAX_SEQUENCES,
    QUANTIZED_KV,
    ContextSettings,
)
from suffixsvc_driver.targets.llama.model import LlamaModel

__all__ = ["MAX_SEQUENCES", "ContextSettings", "LlamaContext", "Part", "State"]

#: LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, and no flags
_PARTIAL_ONLY: Final = 1
_WHOLE: Final = 0
_Int32s: Final = ctypes.POINTER(ctypes.c_int32)
State = ctypes.Array[ctypes.c_uint8]


class Part(NamedTuple):
    """Part of one slot in a batch: ``tokens`` at positions ``start``.. of ``slot``, with logits from token
    ``logits_from`` on.

    Attributes:
        parents: if the last tokens are a tree, the parent of each of them; -1 = the token before them.
        leaves: for each token of the tree, the range of leaves below it (:func:`~.tree.branches_of`).
        sequences: sequences of the leaves; the first one is the slot.
    """

    slot: int
    start: int
    tokens: tuple[int, ...]
    logits_from: int = 0
    parents: tuple[int, ...] = ()
    leaves: tuple[tuple[int, int], ...] = ()
    sequences: tuple[int, ...] = ()


class LlamaContext(ClosedOnExit):
    """KV memory and compute buffers of a model. Not thread-safe. Close it before the model.

    Args:
        unified: one KV memory for all sequences.
        extra: number of sequences beside the slots, which need unified KV.

    Raises:
        ModelError: llama.cpp cannot create it (not enough memory).
    """

    def __init__(
        self, model: LlamaModel, settings: ContextSettings, *, unified: bool = False, extra: int = 0
    ) -> None:
        self.model, self.settings, self.unified = model, settings, unified
        self._lib = llama()
        params = self._lib.llama_context_default_params()
        per_slot = -(-settings.context_size // 256) * 256
        params.n_ctx = per_slot * settings.slots
        self._sequences = params.n_seq_max = settings.slots + extra
        # llama.cpp reserves at least one output per sequence, and aborts if that does not fit
        params.n_outputs_max = max(settings.max_width, settings.slots + extra)
        params.n_outputs_max_per_seq = settings.max_width
        params.n_threads = params.n_threads_batch = settings.threads
        params.type_k = params.type_v = KV_TYPES[settings.kv_type]
        params.offload_kqv = model.offload.kv_offload
        params.kv_unified = unified
        params.swa_full = settings.full_window
        params.n_rs_seq = settings.max_width if settings.snapshots else 0
        # llama.cpp aborts if the tokens that states can be rolled back, and two more, do not fit into a batch
        least = params.n_rs_seq + 2 if model.recurrent else 0
        params.n_batch = params.n_ubatch = max(settings.batch_size, least)
        if settings.flash_attention is not None:
            params.flash_attn_type = int(settings.flash_attention)
        self._handle = self._lib.llama_init_from_model(model.handle, params)
        if not self._handle:
            raise ModelError(
                f"llama.cpp cannot create a context for {model.path.name}",
                expected=f"memory for {settings.slots} slots of {per_slot} tokens",
                got=recent_log() or "no reason given",
                remedy=_remedy(model, settings),
            )
        self._memory = self._lib.llama_get_memory(self._handle)
        #: tokens that a recurrent state can be rolled back by snapshots; 0 for models without such a state
        self.snapshots: int = self._lib.llama_n_rs_seq(self._handle)
        #: capacity of one slot in tokens; unified memory has the cells of all slots together
        self.slot_size: int = per_slot if unified else self._lib.llama_n_ctx_seq(self._handle)
        self._row = ctypes.c_float * model.vocab_size
        #: rows of logits by address; llama.cpp writes those of every batch into one buffer
        self._rows: dict[int, FloatArray] = {}
        self._make_batch()

    def _make_batch(self) -> None:
        """Allocate the arrays of a llama_batch; numpy writes into them without a loop."""
        n = self.settings.batch_size
        self._tokens = np.zeros(n, np.int32)
        self._positions = np.zeros(n, np.int32)
        self._count_up = np.arange(n, dtype=np.int32)
        self._counts = np.ones(n, np.int32)
        self._prepared: tuple[int, int] | None = None
        # zeros, then ones: read from n - logits_from on, the first `logits_from` tokens have no logits
        self._flags = np.concatenate([np.zeros(n, np.int8), np.ones(n, np.int8)])
        seq_id = ctypes.c_int32 * 1
        self._seq_ids = [seq_id(slot) for slot in range(self._sequences)]
        self._seq_pointers = [(_Int32s * n)(*([ctypes.cast(s, _Int32s)] * n)) for s in self._seq_ids]
        self._one_each = self._counts.ctypes.data_as(_Int32s)
        self._batch = self._lib.llama_batch(
            token=self._tokens.ctypes.data_as(_Int32s),
            pos=self._positions.ctypes.data_as(_Int32s),
            n_seq_id=self._one_each,
        )
        # for batches of several slots or trees: number of sequences of each token, and where they are listed
        self._many_counts = np.ones(n, np.int32)
        self._many_lists = np.zeros(n, np.uintp)
        self._many_flags = np.zeros(n, np.int8)
        self._listed: dict[tuple[int, ...], ctypes.Array[ctypes.c_int32]] = {}

    def _flags_from(self, logits_from: int) -> Any:
        """Flags of a batch whose first ``logits_from`` tokens need no logits."""
        pointer = ctypes.POINTER(ctypes.c_int8)
        return ctypes.cast(self._flags.ctypes.data + self.settings.batch_size - logits_from, pointer)

    def decode(self, tokens: Sequence[int], start: int, slot: int, *, logits: bool) -> None:
        """Compute ``tokens`` at positions ``start``.. of ``slot``; at most ``batch_size`` of them.

        Args:
            logits: of all positions; otherwise of none.

        Raises:
            LimitExceededError: the slot is full. Nothing was computed.
            ModelError: llama.cpp failed.
        """
        self.decode_part(Part(slot, start, tuple(tokens), 0 if logits else len(tokens)))

    def decode_part(self, part: Part) -> None:
        """Compute one part: ``logits(i)`` are those after its token ``i``, from ``logits_from`` on.

        Raises:
            LimitExceededError: the batch is too wide, or the slot full. Nothing was computed.
            ModelError: llama.cpp failed.
        """
        n, start = len(part.tokens), part.start
        self._check_fits(n, n - part.logits_from, start + n)
        if n == 1:  # numpy converts a tuple ten times slower than a number
            self._tokens[0], self._positions[0] = part.tokens[0], start
        else:
            self._tokens[:n] = part.tokens
            np.add(self._count_up[:n], start, out=self._positions[:n])
        if self._prepared != (part.slot, part.logits_from):  # setting pointers through ctypes is slow
            self._batch.n_seq_id = self._one_each
            self._batch.seq_id = self._seq_pointers[part.slot]
            self._batch.logits = self._flags_from(part.logits_from)
            self._prepared = (part.slot, part.logits_from)
        self._compute(n, f"{n} tokens at position {start}")

    def decode_parts(self, parts: Sequence[Part]) -> list[int]:
        """Compute several slots' parts, also trees, in one batch. No slot twice.

        Returns:
            The index of each part's first token in the batch, for :meth:`logits`.

        Raises:
            LimitExceededError: the batch is too wide, or a slot full. Nothing was computed.
            ModelError: llama.cpp failed.
        """
        total = sum(len(part.tokens) for part in parts)
        outputs = sum(len(part.tokens) - part.logits_from for part in parts)
        self._check_fits(total, outputs, max(part.start + len(part.tokens) for part in parts))
        offsets, at = [], 0
        for part in parts:
            offsets.append(at)
            self._add(part, at)
            at += len(part.tokens)
        self._batch.n_seq_id = self._many_counts.ctypes.data_as(_Int32s)
        self._batch.seq_id = self._many_lists.ctypes.data_as(ctypes.POINTER(_Int32s))
        self._batch.logits = self._many_flags.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._prepared = None
        self._compute(total, f"{total} tokens of {len(parts)} slots")
        return offsets

    def _add(self, part: Part, at: int) -> None:
        end, tree = at + len(part.tokens), len(part.parents)
        self._tokens[at:end] = part.tokens
        np.add(self._count_up[: end - at], part.start, out=self._positions[at:end])
        self._many_flags[at:end] = 0
        self._many_flags[at + part.logits_from : end] = 1
        sequences = part.sequences or (part.slot,)
        listed = self._listed.get(sequences)
        if listed is None:
            listed = self._listed[sequences] = (ctypes.c_int32 * len(sequences))(*sequences)
        address = ctypes.addressof(listed)
        self._many_lists[at:end] = address
        self._many_counts[at:end] = 1
        if tree:
            root = end - tree - 1
            leaves = 1 + max(first for first, _ in part.leaves)
            self._many_counts[at : root + 1] = leaves
            depths = depths_of(part.parents)
            for i, (first, last) in enumerate(part.leaves, start=root + 1):
                self._many_lists[i] = address + 4 * first
                self._many_counts[i] = last - first
                self._positions[i] = self._positions[root] + 1 + depths[i - root - 1]

    def _check_fits(self, tokens: int, outputs: int, end: int) -> None:
        if tokens > self.settings.batch_size or outputs > self.settings.max_width:
            raise LimitExceededError(
                "the batch is too wide",
                expected=f"at most {self.settings.batch_size} tokens, {self.settings.max_width} with logits",
                got=(tokens, outputs),
            )
        if end > self.slot_size:
            raise LimitExceededError(
                "the context is full", expected=f"at most {self.slot_size} tokens", got=end
            )

    def decode_each(self, tokens: Sequence[int], positions: Sequence[int], slots: Sequence[int]) -> None:
        """Compute one token for each of several slots in one batch: ``logits(i)`` are those after
        ``tokens[i]``. No slot twice. Only runs of adjacent slots in ascending order are computed together:
        any other order takes as long as one batch per run.

        Raises:
            LimitExceededError: a slot is full. Nothing was computed.
            ModelError: llama.cpp failed.
        """
        n = len(tokens)
        self._check_fits(n, 0, max(positions) + 1)
        self._tokens[:n] = tokens
        self._positions[:n] = positions
        self._batch.n_seq_id = self._one_each
        self._batch.seq_id = (_Int32s * n)(*(ctypes.cast(self._seq_ids[slot], _Int32s) for slot in slots))
        self._batch.logits = self._flags_from(0)
        self._prepared = None
        self._compute(n, f"a token of each of {n} slots")

    def _check_open(self) -> None:
        if not self._handle:
            raise ModelError("the context was closed", remedy="Create another one.")

    def _compute(self, n: int, what: str) -> None:
        self._check_open()
        self._batch.n_tokens = n
        code = self._lib.llama_decode(self._handle, self._batch)
        if code != 0:
            raise ModelError(
                f"llama_decode failed for {what}", expected=0, got=f"{code} {recent_log()}".strip()
            )
        if self.model.offload.gpu_layers:
            # a GPU computes asynchronously: the time of a prompt would count as that of the next step
            self._lib.llama_synchronize(self._handle)

    def logits(self, index: int) -> FloatArray:
        """Return float32[n_vocab] of token ``index`` of the last batch; valid until the next decode."""
        self._check_open()
        row = self._lib.llama_get_logits_ith(self._handle, index)
        address = ctypes.addressof(row.contents)
        found = self._rows.get(address)
        if found is None:
            if len(self._rows) >= self.settings.max_width:  # the buffer was allocated anew
                self._rows.clear()
            # np.ctypeslib.as_array would build a type per call, ten times slower
            buffer: Any = self._row.from_address(address)
            found = self._rows[address] = np.frombuffer(buffer, np.float32)
        return found

    def cut(self, slot: int, keep: int) -> None:
        """Remove the slot's KV from position ``keep`` on.

        Raises:
            ModelError: the model's state cannot be cut there (recurrent and hybrid models).
        """
        if not self.try_cut(slot, keep):
            raise ModelError(
                f"{self.model.path.name} has a state that cannot be cut at {keep}",
                expected="an attention-only model, or the whole text",
                remedy="Begin with an empty slot.",
            )

    def try_cut(self, slot: int, keep: int) -> bool:
        """Remove the slot's KV from position ``keep`` on; return False, without a change, if the state cannot
        be cut there. A recurrent state with snapshots can be cut once after each batch."""
        self._check_open()
        return bool(self._lib.llama_memory_seq_rm(self._memory, slot, keep, -1))

    def reaches(self, slot: int, keep: int) -> bool:
        """Return whether the KV of every token that a layer attends to from position ``keep`` on is present.
        Windowed layers evict tokens outside the window unless ``full_window`` is set; in unified KV sometimes
        even then, since llama.cpp recycles cells that no window covers although others are free."""
        window = self.model.window
        if not window or keep == 0 or (self.settings.full_window and not self.unified):
            return True
        return 0 <= self.oldest(slot) <= max(0, keep - window)

    def oldest(self, sequence: int) -> int:
        """Return the first position that all layers hold; -1 for an empty sequence."""
        self._check_open()
        return int(self._lib.llama_memory_seq_pos_min(self._memory, sequence))

    def save_state(self, slot: int, *, whole: bool = False) -> State:
        """Serialise the part of the slot's state that cannot be cut (recurrent layers, windows).

        Args:
            whole: serialise all of the slot's state.

        Raises:
            ModelError: llama.cpp wrote less than it announced.
        """
        self._check_open()
        flags = _WHOLE if whole else _PARTIAL_ONLY
        size = self._lib.llama_state_seq_get_size_ext(self._handle, slot, flags)
        state: State = (ctypes.c_uint8 * size)()
        written = self._lib.llama_state_seq_get_data_ext(self._handle, state, size, slot, flags)
        if written != size or (whole and not size):
            raise ModelError("llama.cpp could not save a state", expected=f"{size} bytes", got=written)
        return state

    def load_state(self, slot: int, state: State, *, whole: bool = False) -> None:
        """Restore a result of :meth:`save_state`. Attention layers keep their KV: cut it next.

        Args:
            whole: ``state`` is all of a slot's state, of this context or of one on the same model with the
                same settings; it replaces the slot's.

        Raises:
            ModelError: llama.cpp refuses it.
        """
        self._check_open()
        size, flags = len(state), _WHOLE if whole else _PARTIAL_ONLY
        read = self._lib.llama_state_seq_set_data_ext(self._handle, state, size, slot, flags)
        if read != size or (whole and not size):
            raise ModelError("llama.cpp could not restore a state", expected=f"{size} bytes", got=read)

    def copy(self, source: int, slot: int) -> None:
        """Make ``slot`` a copy of ``source``."""
        self._check_open()
        self._lib.llama_memory_seq_rm(self._memory, slot, -1, -1)
        self._lib.llama_memory_seq_cp(self._memory, source, slot, -1, -1)

    def share(self, source: int, sequence: int, start: int, end: int) -> None:
        """Add the cells of ``source`` at positions ``start`` .. ``end`` - 1 to ``sequence``, which must not
        hold any of these positions. Unified KV only."""
        self._check_open()
        self._lib.llama_memory_seq_cp(self._memory, source, sequence, start, end)

    def close(self) -> None:
        """Free the memory. Idempotent."""
        if self._handle:
            self._lib.llama_free(self._handle)
            self._handle = None


def _remedy(model: LlamaModel, settings: ContextSettings) -> str:
    """Advice where a context cannot be created: llama.cpp's error does not say whether memory was lacking."""
    advice = "Use fewer slots or a shorter context"
    if model.offload.gpu_layers:
        advice += ", fewer gpu_layers, or kv_offload false"
    if settings.kv_type in QUANTIZED_KV:
        advice += "; kv_type f16 if its blocks do not divide the size of this model's heads"
    return f"{advice}."
