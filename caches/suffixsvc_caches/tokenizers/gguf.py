"""The tokenizer of a GGUF: its vocabulary only, through llama.cpp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
from suffixsvc_driver.targets.llama_model import LlamaModel

from suffixsvc.types import TokenArray, TokenIds
from suffixsvc_caches.tokenizers.remembering import RememberingEncoder
from suffixsvc_caches.tokenizers.words import WORD_RULES, cut_table

__all__ = ["GgufTokenizer"]

#: characters a text, on average, from which on threads pay
_FEW: Final = 2048
_RULE: Final = "tokenizer.ggml.pre"


class GgufTokenizer:
    """See :class:`suffixsvc_caches.tokenizers.Tokenizer`. The vocabulary stays loaded until the end.

    Args:
        path: a GGUF file; its weights are not read.
        threads: that encode the texts of a batch; 1 = the caller's own.

    Raises:
        MissingExtraError: llama-cpp-python is not installed. ModelError: llama.cpp cannot load the file.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._model = LlamaModel(path, vocab_only=True)
        self._encode = self._remembering() or self._model.token_array
        self._pool = ThreadPoolExecutor(threads, "encode") if threads > 1 else None
        self.vocab_size = self._model.vocab_size

    @property
    def fingerprint(self) -> str:
        return self._model.vocabulary.fingerprint

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        # Handing a short text to another thread costs more than encoding it.
        if self._pool is None or len(texts) < 2 or sum(map(len, texts)) < _FEW * len(texts):
            return list(map(self._encode, texts))
        return list(self._pool.map(self._encode, texts))

    def _remembering(self) -> Callable[[str], TokenArray] | None:
        """An encoder that remembers words; None where it is not known what this tokenizer's words are."""
        model, values = self._model, self._model.header.values
        if values.get("tokenizer.ggml.model") != "gpt2" or values.get(_RULE) not in WORD_RULES:
            return None
        special = model.special_tokens
        if values.get("tokenizer.ggml.add_space_prefix") or any(t.strips for t in special):
            return None
        lengths = np.fromiter(map(len, model.vocabulary.texts), np.int64, model.vocab_size)
        cuts = cut_table(token.text for token in special)
        return RememberingEncoder(model.token_array, cuts, lengths).encode

    def decode(self, token_ids: TokenIds) -> str:
        return self._model.detokenize(token_ids, special=True)
