"""Tokenizer of a tokenizer.json file: the tokenizers library with a word cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from suffixsvc.types import TokenArray, TokenIds
from suffixsvc_caches.tokenizers.caching_encoder import CachingEncoder
from suffixsvc_caches.tokenizers.words import SPLIT_EXPRESSIONS, cut_table
from suffixsvc_client.text import TextCodec

if TYPE_CHECKING:
    import tokenizers


class JsonTokenizer:
    """Implementation of :class:`suffixsvc_caches.tokenizers.base.Tokenizer`.

    Arguments as ``TextCodec.load``.
    """

    def __init__(self, path: Path, *, bos: str | int | None = None, eos: str | int | None = None) -> None:
        self._codec = TextCodec.load(path, bos=bos, eos=eos)
        self.fingerprint = self._codec.fingerprint
        self.vocab_size = self._codec.vocab_size
        #: None if the word rules of this tokenizer are not known
        self.encoder = self._caching_encoder() if _has_known_words(self._codec.library) else None

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Encode each text to token ids, int32[n]."""
        if self.encoder is None:
            return self._codec.encode_batch(texts)
        return [self.encoder.encode(text) for text in texts]

    def decode(self, token_ids: TokenIds) -> str:
        """Decode tokens to text."""
        return self._codec.decode(token_ids)

    def _caching_encoder(self) -> CachingEncoder:
        codec = self._codec
        lengths = np.array([len(codec.token_bytes(i)) for i in range(codec.vocab_size)], np.int64)
        spelled = [token.content.encode() for token in codec.library.get_added_tokens_decoder().values()]

        def encode(text: str) -> TokenArray:
            return codec.encode_batch([text])[0]  # encode() of the library holds the GIL

        normalizes = codec.library.normalizer is not None
        return CachingEncoder(encode, cut_table(spelled), lengths, normalizes=normalizes)


def _has_known_words(library: tokenizers.Tokenizer) -> bool:
    """Whether the pre-tokenizer splits by a known expression and the normalizer is NFC or absent."""
    added = library.get_added_tokens_decoder().values()
    if any(token.lstrip or token.rstrip or token.single_word for token in added):
        return False
    normalizer, splitter = _state(library.normalizer), _state(library.pre_tokenizer)
    parts = splitter.get("pretokenizers", [splitter])
    return (
        normalizer.get("type", "NFC") == "NFC"
        and any(map(_splits_words, parts))
        and all(map(_is_known, parts))
    )


def _state(part: Any) -> dict[str, Any]:
    """Serialized state of a tokenizer component; {} if absent."""
    found: dict[str, Any] = json.loads(part.__getstate__()) if part else {}
    return found


def _splits_words(part: dict[str, Any]) -> bool:
    return part.get("type") == "Split" or (part.get("type") == "ByteLevel" and part["use_regex"])


def _is_known(part: dict[str, Any]) -> bool:
    match part:
        case {"type": "ByteLevel", "add_prefix_space": False} | {"type": "Digits"}:
            return True
        case {"type": "Split", "pattern": {"Regex": expression}, "behavior": "Isolated", "invert": False}:
            return expression in SPLIT_EXPRESSIONS
    return False
