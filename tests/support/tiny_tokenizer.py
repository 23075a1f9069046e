"""A byte-level tokenizer.json, and the GGUF of the same vocabulary."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from support.tiny_gguf import EOS_ID, SPECIAL, byte_texts, write_tiny_llama

__all__ = ["EOS", "write_gguf", "write_tokenizer"]

#: as the GGUF has it for both ends of a text
EOS = SPECIAL[0]


def write_tokenizer(path: Path, *, merges: bool = False) -> Path:
    """Every byte a token, ids 0..255, then the special ones; ``merges`` joins a few letters."""
    vocab = {text: i for i, text in enumerate([*byte_texts(), *SPECIAL])}
    pairs = [("t", "h"), ("th", "e"), ("e", "r")] if merges else []
    for a, b in pairs:
        vocab[a + b] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=pairs))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(SPECIAL)
    assert tokenizer.token_to_id(EOS) == EOS_ID
    tokenizer.save(str(path))
    return path


def write_gguf(path: Path) -> Path:
    return write_tiny_llama(path)
