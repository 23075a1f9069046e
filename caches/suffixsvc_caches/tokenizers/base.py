"""Tokenizer protocol of cache building."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from suffixsvc.types import TokenArray, TokenIds


class Tokenizer(Protocol):
    """Text to token ids and back. Thread-safe."""

    @property
    def fingerprint(self) -> str:
        """``suffixsvc.fingerprint`` of the vocabulary."""

    @property
    def vocab_size(self) -> int:
        """Ids are 0 .. vocab_size - 1."""

    def encode_batch(self, texts: Sequence[str]) -> list[TokenArray]:
        """Encode each text to token ids, int32[n].

        No special tokens are added; special tokens spelled out in a text become their ids. Releases the GIL.
        """

    def decode(self, token_ids: TokenIds) -> str:
        """Decode tokens to text; incomplete UTF-8 becomes U+FFFD."""
