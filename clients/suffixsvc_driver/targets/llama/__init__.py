"""Thin wrappers of llama.cpp's C API: model, context, grammar, tokenizer."""
