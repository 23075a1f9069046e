"""Tiny random llama models as GGUF files: real weights, real arithmetic, milliseconds a step.

The vocabulary is byte-level: every byte is a token (ids 0..255), then <|endoftext|>, chat markers and
padding. Any text can be tokenized; what the model says about it is noise, but always the same noise.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from gguf import GGUFWriter, TokenType

EOS_ID = 256
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
PADDING = 5
VOCAB_SIZE = 256 + len(SPECIAL) + PADDING


def byte_texts() -> list[str]:
    """GPT-2's printable stand-ins for the 256 bytes, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    texts, extra = {}, 0
    for byte in range(256):
        if byte in printable:
            texts[byte] = chr(byte)
        else:
            texts[byte] = chr(256 + extra)
            extra += 1
    return [texts[b] for b in range(256)]


def write_tiny_llama(
    path: Path,
    *,
    seed: int = 0,
    context: int = 512,
    width: int = 32,
    layers: int = 2,
    sharpness: float = 4.0,
    padding: int = PADDING,
    texts: list[str] | None = None,
    add_bos: bool = False,
    eos_id: int = EOS_ID,
) -> Path:
    """Write an F32 llama model.

    Args:
        width: embedding size; the heads are 16 wide.
        sharpness: scale of the output matrix; higher means more confident, less even distributions.
        texts: texts of the tokens instead of the byte-level ones.
    """
    rng = np.random.default_rng(seed)
    tokens = [*(texts or [*byte_texts(), *SPECIAL]), *(f"[PAD{i}]" for i in range(padding))]
    size, hidden = len(tokens), 2 * width

    def normal(*shape: int, scale: float) -> np.ndarray:
        return (rng.standard_normal(shape) * scale).astype(np.float32)

    writer = GGUFWriter(str(path), "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(width // 16)
    writer.add_head_count_kv(width // 16)
    writer.add_rope_dimension_count(16)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(size)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    kinds = [TokenType.NORMAL] * size
    for i, text in enumerate(tokens):
        if text.startswith("<|"):
            kinds[i] = TokenType.CONTROL
        elif text.startswith("[PAD"):
            kinds[i] = TokenType.UNUSED
    writer.add_token_types(kinds)
    # one merge that no text of ours triggers: llama.cpp wants the list to be there
    writer.add_token_merges(["\u0100 \u0100"])
    writer.add_bos_token_id(eos_id)
    writer.add_eos_token_id(eos_id)
    writer.add_add_bos_token(add_bos)
    writer.add_tensor("token_embd.weight", normal(size, width, scale=1.0))
    for i in range(layers):
        name = f"blk.{i}"
        writer.add_tensor(f"{name}.attn_norm.weight", np.ones(width, np.float32))
        writer.add_tensor(f"{name}.ffn_norm.weight", np.ones(width, np.float32))
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            writer.add_tensor(f"{name}.{part}.weight", normal(width, width, scale=1.5 / width**0.5))
        for part in ("ffn_gate", "ffn_up"):
            writer.add_tensor(f"{name}.{part}.weight", normal(hidden, width, scale=1.0 / width**0.5))
        writer.add_tensor(f"{name}.ffn_down.weight", normal(width, hidden, scale=1.0 / hidden**0.5))
    writer.add_tensor("output_norm.weight", np.ones(width, np.float32))
    writer.add_tensor("output.weight", normal(size, width, scale=sharpness / width**0.5))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
