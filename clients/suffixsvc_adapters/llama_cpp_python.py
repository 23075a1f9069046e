"""Adapter for llama-cpp-python: drafts for ``llama_cpp.Llama``.

    llama = Llama("model.gguf", logits_all=True)
    with SuffixCache("cache") as cache, attach(llama, cache, "acme/my-model"):
        llama.create_completion(...)

A ``LlamaDraftModel`` gets all token ids so far and nothing else: no request id, no feedback, no end. A
:class:`SessionTracker` infers them. docs/adapters.md lists the limits of ``Llama`` itself; :func:`attach`
refuses an object that has one of those that can be detected.
"""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import InvalidConfigError, MissingExtraError
from suffixsvc.fingerprint import tokenizer_fingerprint
from suffixsvc.types import Backend
from suffixsvc_adapters.tracking.adapter_base import AdapterBase
from suffixsvc_adapters.tracking.session_tracker import SessionTracker
from suffixsvc_adapters.tracking.tracker_types import TrackerConfig

try:
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaDraftModel
except ImportError as error:
    raise MissingExtraError("llama", "llama_cpp") from error

#: a drafted token costs a fifth of a step: a mid-sized model on CPUs. ``suffixsvc probe`` measures yours
CPU_CONFIG: Final = TrackerConfig(verify_cost=0.2)


class SuffixDraftModel(AdapterBase, LlamaDraftModel):
    """``Llama(draft_model=...)``, or better :func:`attach`. Several ``Llama`` may share one tracker."""

    def __init__(self, tracker: SessionTracker) -> None:
        self.tracker: SessionTracker = tracker

    def __call__(self, input_ids: npt.NDArray[np.intc], /, **_: Any) -> npt.NDArray[np.intc]:
        """Draft a continuation of all tokens so far, the last of which was just sampled. Never raises.

        Args:
            input_ids: intc[n], a view of the model's own buffer; it is not retained.

        Returns:
            intc[m], empty if there is no match or none that pays.
        """
        draft = self.tracker.draft(input_ids, written=1)
        return np.array(draft.token_ids, np.intc)


def attach(
    llama: llama_cpp.Llama, backend: Backend, namespace: str, config: TrackerConfig = CPU_CONFIG
) -> SuffixDraftModel:
    """Make a model draft from a cache.

    Args:
        backend: the embedded engine or a client; the caller closes it.
        namespace: path; bound to the model's tokenizer, so that it holds no other model's tokens.
        config: ``vocab_size`` and the limit of ``max_draft_tokens`` are taken from the model.

    Raises:
        InvalidConfigError: the object cannot verify drafts: it was created without ``logits_all=True``, or
            its model is recurrent or hybrid.
        TokenizerMismatchError: the namespace holds another tokenizer's tokens.
    """
    _require_room_for_logits(llama)
    handle = llama.model
    if llama_cpp.llama_model_is_recurrent(handle) or llama_cpp.llama_model_is_hybrid(handle):
        raise InvalidConfigError(
            "llama-cpp-python cannot roll a recurrent state back",
            expected="an attention model",
            got=llama.metadata.get("general.architecture", "a recurrent or hybrid one"),
            remedy="Decode it with suffixsvc_driver.generate, which can.",
        )
    widest = llama.n_batch - 1  # a wider step is split into batches, and their logits overwrite each other
    if widest < 1:
        raise InvalidConfigError("n_batch must be >= 2, or a step has no room for drafts", got=llama.n_batch)
    fitting = replace(
        config, vocab_size=llama.n_vocab(), max_draft_tokens=min(config.max_draft_tokens, widest)
    )
    model = SuffixDraftModel(SessionTracker(backend.namespace(namespace, fingerprint(llama)), fitting))
    llama.draft_model = model
    return model


def fingerprint(llama: llama_cpp.Llama) -> str:
    """Return the fingerprint of a model's tokenizer; takes a moment for a large vocabulary."""
    vocab = llama_cpp.llama_model_get_vocab(llama.model)
    size = 256
    buffer = ctypes.create_string_buffer(size)

    def text(token: int) -> bytes:
        length = llama_cpp.llama_token_to_piece(vocab, token, buffer, size, 0, True)
        if length >= 0:
            return buffer.raw[:length]
        longer = ctypes.create_string_buffer(-length)
        llama_cpp.llama_token_to_piece(vocab, token, longer, -length, 0, True)
        return longer.raw

    special = {"bos": llama_cpp.llama_vocab_bos(vocab), "eos": llama_cpp.llama_vocab_eos(vocab)}
    return tokenizer_fingerprint(((token, text(token)) for token in range(llama.n_vocab())), special)


def _require_room_for_logits(llama: llama_cpp.Llama) -> None:
    rows = llama.scores.shape[0]
    if llama._logits_all and rows >= llama.n_ctx():
        return
    gigabytes = llama.n_ctx() * llama.n_vocab() * 4 / 1e9
    raise InvalidConfigError(
        "llama-cpp-python has no room for the logits of every token, which it keeps when it verifies drafts",
        expected=f"room for {llama.n_ctx()} tokens",
        got=f"{rows} tokens" if llama._logits_all else "the last token's only",
        remedy=f"Create it with Llama(..., logits_all=True), which takes {gigabytes:.1f} GB at this n_ctx.",
    )
