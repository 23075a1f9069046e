"""Tokenizer of a GGUF file: llama.cpp with the vocabulary only."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.types import TokenArray, TokenIds
from suffixsvc_caches.tokenizers.caching_encoder import CachingEncoder
from suffixsvc_caches.tokenizers.words import WORD_RULES, cut_table
from suffixsvc_driver.targets.llama.model import LlamaModel

#: mean characters of a text below which a batch is encoded in the calling thread
_MIN_THREADED_CHARS: Final = 2048
_RULE: Final = "tokenizer.ggml.pre"


class GgufTokenizer:
    """Implementation of :class:`suffixsvc_caches.tokenizers.base.Tokenizer`; the vocabulary stays loaded.

    Args:
        path: a GGUF file; its weights are not read.
        threads: threads that encode a batch; 1 = the calling thread.

    Raises:
        MissingExtraError: llama-cpp-python is not installed. ModelError: llama.cpp cannot load the file.
    """

    def __init__(self, path: Path, threads: int = 1) -> None:
        self._model = LlamaModel(path, vocab_only=True)
        #: None if the word rules of this tokenizer are not known
        self.encoder = self._caching_encoder()
        self._encode = self.encoder.encode if self.encoder else self._model.token_array
        self._pool = ThreadPoolExecutor(threads, "encode") if threads > 1 else None
        self.vocab_size = self._model.vocab_size

    @property
    def fingerprint(self) -> str:
        """``suffixsvc.fingerprint`` of the vocabulary."""
        return self._model.vocabulary.fingerprint

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Encode each text to token ids, int32[n]."""
        # Handing a short text to another thread costs more than encoding it.
        if self._pool is None or len(texts) < 2 or sum(map(len, texts)) < _MIN_THREADED_CHARS * len(texts):
            return list(map(self._encode, texts))
        return list(self._pool.map(self._encode, texts))

    def _caching_encoder(self) -> CachingEncoder | None:
        model, values = self._model, self._model.header.values
        if values.get("tokenizer.ggml.model") != "gpt2" or values.get(_RULE) not in WORD_RULES:
            return None
        special = model.special_tokens
        if values.get("tokenizer.ggml.add_space_prefix") or any(t.strips for t in special):
            return None
        lengths = np.fromiter(map(len, model.vocabulary.texts), np.int64, model.vocab_size)
        cuts = cut_table(token.text for token in special)
        return CachingEncoder(model.token_array, cuts, lengths)

    def decode(self, token_ids: TokenIds) -> str:
        """Decode tokens to text, special tokens included."""
        return self._model.detokenize(token_ids, special=True)
