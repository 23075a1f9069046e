"""Tokenizers for building caches: of a GGUF, of a tokenizer.json, each with its fingerprint."""

from suffixsvc_caches.tokenizers.base import Tokenizer
from suffixsvc_caches.tokenizers.load import TokenizerSource, load_tokenizer, require_fingerprint
from suffixsvc_caches.tokenizers.pieces import encode_texts
from suffixsvc_caches.tokenizers.remembering import MEMO_BYTES

__all__ = [
    "MEMO_BYTES",
    "Tokenizer",
    "TokenizerSource",
    "encode_texts",
    "load_tokenizer",
    "require_fingerprint",
]
