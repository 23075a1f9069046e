"""Tokenizers for building caches: of a GGUF, of a tokenizer.json, each with its fingerprint."""

from suffixsvc_caches.tokenizers.base import Tokenizer

__all__ = ["Tokenizer"]
