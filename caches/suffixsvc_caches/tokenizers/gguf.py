"""The tokenizer of a GGUF: its vocabulary only, through llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from suffixsvc_driver.targets.llama_model import LlamaModel

from suffixsvc.types import TokenArray, TokenIds

__all__ = ["GgufTokenizer"]


class GgufTokenizer:
    """See :class:`suffixsvc_caches.tokenizers.Tokenizer`. The vocabulary stays loaded until the end.

    Args:
        path: a GGUF file; its weights are not read.

    Raises:
        MissingExtraError: llama-cpp-python is not installed. ModelError: llama.cpp cannot load the file.
    """

    def __init__(self, path: Path) -> None:
        self._model = LlamaModel(path, vocab_only=True)
        self.vocab_size = self._model.vocab_size

    @property
    def fingerprint(self) -> str:
        return self._model.vocabulary.fingerprint

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        return [np.array(self._model.tokenize(text), np.int32) for text in texts]

    def decode(self, token_ids: TokenIds) -> str:
        return self._model.detokenize(token_ids, special=True)
