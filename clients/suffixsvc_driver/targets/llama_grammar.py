"""Where a text stands in a grammar: llama.cpp's grammar sampler, asked about tokens.

llama.cpp ends the process where a token is accepted that the grammar does not permit, so nothing is
accepted in here that was not asked about before.
"""

from __future__ import annotations

import ctypes
import time
import weakref
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from suffixsvc.errors import GrammarError, ModelError
from suffixsvc_driver.gbnf import check_grammar
from suffixsvc_driver.sampling import IdArray
from suffixsvc_driver.targets.llama_binding import llama, recent_log
from suffixsvc_driver.targets.llama_model import LlamaModel

__all__ = ["LlamaGrammar"]

#: llama_token_data
_CANDIDATE: Final = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
#: tokens asked about at once at the start, until one is permitted
_CHUNK: Final = 4096
#: 30 microseconds a token are usual
_PATIENCE: Final = 0.02


class LlamaGrammar:
    """A grammar at some point of a text. Not thread-safe. It must not outlive the model.

    Args:
        model: whose tokens.
        text: GBNF.

    Attributes:
        patience: seconds that one draft may be looked at.

    Raises:
        GrammarError: malformed, more than llama.cpp can take, or nothing of the vocabulary can start it.
    """

    def __init__(self, model: LlamaModel, text: str) -> None:
        check_grammar(text)
        if not model.eog_ids:
            raise GrammarError(
                f"{model.path.name} has no end-of-generation token, so no grammar could ever be complete",
                remedy="Use a stop rule instead of a grammar.",
            )
        handle = llama().llama_sampler_init_grammar(model.vocab, text.encode(), b"root")
        if not handle:
            raise GrammarError("llama.cpp refuses the grammar", got=recent_log() or "no reason given")
        self._take(model, handle)
        if not self._can_start():
            raise GrammarError(
                f"the grammar permits none of the tokens of {model.path.name} at its start",
                expected="a grammar that the vocabulary can write",
            )

    def _take(self, model: LlamaModel, handle: Any) -> None:
        self.patience = _PATIENCE
        self._model = model
        self._lib = llama()
        self._handle = handle
        self._free = weakref.finalize(self, self._lib.llama_sampler_free, handle)
        #: asked about and permitted here, so that it need not be asked about again
        self._permitted: int | None = None
        # kept ready, since it is asked about at every position
        self._one = self._lib.llama_token_data()
        self._one_array = self._candidates(ctypes.pointer(self._one), 1)

    def _candidates(self, data: Any, size: int) -> Any:
        return self._lib.llama_token_data_array(data=data, size=size, selected=-1, sorted=False)

    @property
    def _pointer(self) -> Any:
        """Raises ModelError once this or the model, and with it the vocabulary, is closed."""
        if not self._free.alive:
            raise ModelError("the grammar was closed", remedy="Make another one.")
        _ = self._model.handle
        return self._handle

    def _apply(self, candidates: Any) -> None:
        self._lib.llama_sampler_apply(self._pointer, ctypes.byref(candidates))

    def _can_start(self) -> bool:
        ids = np.arange(self._model.vocab_size)
        ends = np.array(sorted(self._model.eog_ids))
        chunks = (ids[at : at + _CHUNK] for at in range(0, len(ids), _CHUNK))
        return bool(self.permits(ends).any()) or any(self.permits(chunk).any() for chunk in chunks)

    def copy(self) -> LlamaGrammar:
        """Another one at the same point, which goes its own way."""
        other = object.__new__(LlamaGrammar)
        other._take(self._model, self._lib.llama_sampler_clone(self._pointer))
        other.patience = self.patience
        return other

    def close(self) -> None:
        """Free it; it is of no use any more. Idempotent, and happens by itself."""
        self._free()

    def permits(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        """Which of these tokens may come next; end tokens where the grammar is complete."""
        tokens = np.zeros(len(ids), _CANDIDATE)
        tokens["id"] = ids
        data = ctypes.cast(tokens.ctypes.data, ctypes.POINTER(self._lib.llama_token_data))
        self._apply(self._candidates(data, len(tokens)))
        permitted: npt.NDArray[np.bool_] = tokens["logit"] == 0
        return permitted

    def permits_one(self, token: int) -> bool:
        """Whether this token may come next."""
        if not 0 <= token < self._model.vocab_size:
            return False
        self._one.id, self._one.logit = token, 0.0
        self._apply(self._one_array)
        if self._one.logit != 0.0:
            return False
        self._permitted = token
        return True

    def accept(self, token: int) -> None:
        """The text goes on with ``token``; an end token changes nothing.

        Raises:
            GrammarError: it is not permitted. Nothing changes.
        """
        if token != self._permitted and not self.permits_one(token):
            raise GrammarError("a token that the grammar does not permit here", got=token)
        self._lib.llama_sampler_accept(self._pointer, token)
        self._permitted = None

    def allowed(self, drafted: Sequence[int]) -> int:
        """How many of these tokens may come next, one behind the other, nothing behind an end token. Nothing
        changes. Fewer where finding out takes too long: an ambiguous grammar may double its work with each
        character, and no draft is worth that."""
        if not len(drafted) or not self.permits_one(drafted[0]):
            return 0
        give_up = time.perf_counter() + self.patience
        ahead = self.copy()
        try:
            for count, token in enumerate(drafted):
                if not ahead.permits_one(token) or time.perf_counter() > give_up:
                    return count
                if token in self._model.eog_ids:
                    return count + 1
                ahead.accept(token)
            return len(drafted)
        finally:
            ahead.close()
