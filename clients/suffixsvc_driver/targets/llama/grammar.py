"""State of a text in a grammar, on llama.cpp's grammar sampler.

llama.cpp aborts the process if a token is accepted that the grammar does not permit, so every token is
checked before it is accepted.
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
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_driver.sampling.gbnf import check_grammar
from suffixsvc_driver.sampling.settings import IdArray
from suffixsvc_driver.targets.llama.binding import llama, recent_log
from suffixsvc_driver.targets.llama.model import LlamaModel

#: llama_token_data
_CANDIDATE: Final = np.dtype([("id", "<i4"), ("logit", "<f4"), ("p", "<f4")])
#: tokens of one check when the start of a grammar is checked
_CHUNK: Final = 4096
#: default of :attr:`LlamaGrammar.time_limit`; a token usually takes 30 microseconds
_TIME_LIMIT: Final = 0.02


class LlamaGrammar(ClosedOnExit):
    """A grammar at a point of a text. Not thread-safe. It must not outlive the model.

    Args:
        model: model of the tokens.
        text: GBNF.

    Attributes:
        time_limit: seconds that checking one draft may take.

    Raises:
        GrammarError: malformed, too large for llama.cpp, or no token of the vocabulary can start it.
    """

    def __init__(self, model: LlamaModel, text: str) -> None:
        check_grammar(text)
        if not model.eog_ids:
            raise GrammarError(
                f"{model.path.name} has no end-of-generation token, which every complete grammar needs",
                remedy="Use a stop rule instead of a grammar.",
            )
        handle = llama().llama_sampler_init_grammar(model.vocab, text.encode(), b"root")
        if not handle:
            raise GrammarError("llama.cpp refuses the grammar", got=recent_log() or "no reason given")
        self._take(model, handle)
        if not self._can_start():
            raise GrammarError(
                f"the grammar permits none of the tokens of {model.path.name} at its start",
                expected="a grammar that starts with a token of the vocabulary",
            )

    def _take(self, model: LlamaModel, handle: Any) -> None:
        self.time_limit = _TIME_LIMIT
        self._model = model
        self._lib = llama()
        self._handle = handle
        self._free = weakref.finalize(self, self._lib.llama_sampler_free, handle)
        #: the last token that was checked and is permitted here
        self._permitted: int | None = None
        # allocated once, since it is used at every position
        self._one = self._lib.llama_token_data()
        self._one_array = self._candidates(ctypes.pointer(self._one), 1)

    def _candidates(self, data: Any, size: int) -> Any:
        return self._lib.llama_token_data_array(data=data, size=size, selected=-1, sorted=False)

    @property
    def _pointer(self) -> Any:
        """The C pointer. Raises ModelError after this grammar or the model was closed."""
        if not self._free.alive:
            raise ModelError("the grammar was closed", remedy="Create another one.")
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
        """Return an independent copy at the same point."""
        other = object.__new__(LlamaGrammar)
        other._take(self._model, self._lib.llama_sampler_clone(self._pointer))
        other.time_limit = self.time_limit
        return other

    def close(self) -> None:
        """Free the sampler. Idempotent; also done by the garbage collector."""
        self._free()

    def permits(self, ids: IdArray) -> npt.NDArray[np.bool_]:
        """Return which of these tokens may come next; end tokens may if the grammar is complete."""
        tokens = np.zeros(len(ids), _CANDIDATE)
        tokens["id"] = ids
        data = ctypes.cast(tokens.ctypes.data, ctypes.POINTER(self._lib.llama_token_data))
        self._apply(self._candidates(data, len(tokens)))
        permitted: npt.NDArray[np.bool_] = tokens["logit"] == 0
        return permitted

    def permits_one(self, token: int) -> bool:
        """Return whether this token may come next."""
        if not 0 <= token < self._model.vocab_size:
            return False
        self._one.id, self._one.logit = token, 0.0
        self._apply(self._one_array)
        if self._one.logit != 0.0:
            return False
        self._permitted = token
        return True

    def accept(self, token: int) -> None:
        """Append ``token`` to the text; an end token changes nothing.

        Raises:
            GrammarError: it is not permitted. Nothing changes.
        """
        if token != self._permitted and not self.permits_one(token):
            raise GrammarError("the grammar does not permit this token here", got=token)
        self._lib.llama_sampler_accept(self._pointer, token)
        self._permitted = None

    def allowed(self, drafted: Sequence[int]) -> int:
        """Return how many of these tokens may follow in sequence, none after an end token. Changes nothing.

        The count is lower if the check exceeds :attr:`time_limit`: the work of an ambiguous grammar may
        double with each character.
        """
        if not len(drafted) or not self.permits_one(drafted[0]):
            return 0
        deadline = time.perf_counter() + self.time_limit
        with self.copy() as ahead:
            for count, token in enumerate(drafted):
                if not ahead.permits_one(token) or time.perf_counter() > deadline:
                    return count
                if token in self._model.eog_ids:
                    return count + 1
                ahead.accept(token)
        return len(drafted)
