"""Tokenizers for building caches: from a GGUF or a tokenizer.json, each with its fingerprint."""

from suffixsvc_caches.tokenizers.base import Tokenizer
from suffixsvc_caches.tokenizers.caching_encoder import WORD_CACHE_BYTES
from suffixsvc_caches.tokenizers.load import TokenizerSource, load_tokenizer, require_fingerprint
from suffixsvc_caches.tokenizers.pieces import encode_texts

__all__ = [
    "WORD_CACHE_BYTES",
    "Tokenizer",
    "TokenizerSource",
    "encode_texts",
    "load_tokenizer",
    "require_fingerprint",
]
