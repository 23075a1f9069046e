"""Tokenizers for building caches: from a GGUF or a tokenizer.json, each with its fingerprint."""
