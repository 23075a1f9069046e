"""The tokenizer of a tokenizer.json: the tokenizers library, with words that are remembered."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from suffixsvc_client.text import TextCodec

from suffixsvc.types import TokenArray, TokenIds
from suffixsvc_caches.tokenizers.remembering import RememberingEncoder
from suffixsvc_caches.tokenizers.words import SPLIT_EXPRESSIONS, cut_table

if TYPE_CHECKING:
    import tokenizers

__all__ = ["JsonTokenizer"]


class JsonTokenizer:
    """See :class:`suffixsvc_caches.tokenizers.Tokenizer`. Arguments and errors as ``TextCodec.load``."""

    def __init__(self, path: Path, *, bos: str | int | None = None, eos: str | int | None = None) -> None:
        self._codec = TextCodec.load(path, bos=bos, eos=eos)
        self.fingerprint = self._codec.fingerprint
        self.vocab_size = self._codec.vocab_size
        self._encoder = self._remembering() if _has_known_words(self._codec.library) else None

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        if self._encoder is None:
            return self._codec.encode_batch(texts)
        return [self._encoder.encode(text) for text in texts]

    def decode(self, token_ids: TokenIds) -> str:
        return self._codec.decode(token_ids)

    def _remembering(self) -> RememberingEncoder:
        codec = self._codec
        lengths = np.array([len(codec.token_bytes(i)) for i in range(codec.vocab_size)], np.int64)
        spelled = [token.content.encode() for token in codec.library.get_added_tokens_decoder().values()]

        def encode(text: str) -> TokenArray:
            return codec.encode_batch([text])[0]  # the library keeps the GIL while it encodes one

        normalizes = codec.library.normalizer is not None
        return RememberingEncoder(encode, cut_table(spelled), lengths, normalizes=normalizes)


def _has_known_words(library: tokenizers.Tokenizer) -> bool:
    """Whether it cuts texts into words by an expression that is known, and does nothing else to them."""
    added = library.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return False
    normalizer, splitter = _state(library.normalizer), _state(library.pre_tokenizer)
    parts = splitter.get("pretokenizers", [splitter])
    return (
        normalizer.get("type", "NFC") == "NFC" and any(map(_ends_words, parts)) and all(map(_is_known, parts))
    )


def _state(part: Any) -> dict[str, Any]:
    """A part of a tokenizer as tokenizer.json has it; {} for none."""
    found: dict[str, Any] = json.loads(part.__getstate__()) if part else {}
    return found


def _ends_words(part: dict[str, Any]) -> bool:
    return part.get("type") == "Split" or (part.get("type") == "ByteLevel" and part["use_regex"])


def _is_known(part: dict[str, Any]) -> bool:
    match part:
        case {"type": "ByteLevel", "add_prefix_space": False} | {"type": "Digits"}:
            return True
        case {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}:
            return expression in SPLIT_EXPRESSIONS
    return False
