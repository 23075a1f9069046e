"""Tiny random models as GGUF files: real weights, real arithmetic, milliseconds a step.

The vocabulary is byte-level: every byte is a token (ids 0..255), then <|endoftext|>, chat markers and
padding. Any text can be tokenized; what the model says about it is noise, but always the same noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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


@dataclass
class TinyWriter:
    """A GGUF file with the byte-level vocabulary, which the kinds of models fill with their tensors.

    Attributes:
        size: tokens of the vocabulary, padding included.
        width: embedding size.
        merges: pairs of tokens that are one, as "a b"; the default is one that no text of ours triggers,
            since llama.cpp wants the list to be there.
        control: texts of control tokens, besides those that begin with "<|".
    """

    path: Path
    arch: str
    seed: int
    width: int
    layers: int
    context: int = 512
    padding: int = PADDING
    texts: list[str] | None = None
    add_bos: bool = False
    eos_id: int = EOS_ID
    merges: Sequence[str] = ("\u0100 \u0100",)
    control: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.tokens = [
            *(self.texts or [*byte_texts(), *SPECIAL]),
            *(f"[PAD{i}]" for i in range(self.padding)),
        ]
        self.size = len(self.tokens)
        self.gguf = GGUFWriter(str(self.path), self.arch)
        self.gguf.add_context_length(self.context)
        self.gguf.add_embedding_length(self.width)
        self.gguf.add_block_count(self.layers)
        self.gguf.add_layer_norm_rms_eps(1e-5)
        self.gguf.add_vocab_size(self.size)
        self._vocabulary()

    def _vocabulary(self) -> None:
        self.gguf.add_tokenizer_model("gpt2")
        self.gguf.add_tokenizer_pre("gpt-2")
        self.gguf.add_token_list(self.tokens)
        kinds = [TokenType.NORMAL] * self.size
        for i, text in enumerate(self.tokens):
            if text.startswith("<|") or text in self.control:
                kinds[i] = TokenType.CONTROL
            elif text.startswith("[PAD"):
                kinds[i] = TokenType.UNUSED
        self.gguf.add_token_types(kinds)
        self.gguf.add_token_merges(list(self.merges))
        self.gguf.add_bos_token_id(self.eos_id)
        self.gguf.add_eos_token_id(self.eos_id)
        self.gguf.add_add_bos_token(self.add_bos)

    def normal(self, name: str, *shape: int, scale: float) -> None:
        """A random tensor, F32; ``shape`` as numpy has it, the reverse of GGUF's."""
        self.gguf.add_tensor(name, (self.rng.standard_normal(shape) * scale).astype(np.float32))

    def ones(self, name: str, size: int) -> None:
        self.gguf.add_tensor(name, np.ones(size, np.float32))

    def attention(self, block: str, heads: int, *, qk_norm: bool = False) -> None:
        """Query, key, value and output; 16 numbers a head."""
        for part in ("attn_q", "attn_k", "attn_v"):
            self.normal(f"{block}.{part}.weight", 16 * heads, self.width, scale=1.5 / self.width**0.5)
        self.normal(f"{block}.attn_output.weight", self.width, 16 * heads, scale=1.5 / self.width**0.5)
        if qk_norm:
            self.ones(f"{block}.attn_q_norm.weight", 16)
            self.ones(f"{block}.attn_k_norm.weight", 16)

    def feed_forward(self, block: str, hidden: int) -> None:
        for part in ("ffn_gate", "ffn_up"):
            self.normal(f"{block}.{part}.weight", hidden, self.width, scale=1.0 / self.width**0.5)
        self.normal(f"{block}.ffn_down.weight", self.width, hidden, scale=1.0 / hidden**0.5)

    def close(self) -> Path:
        self.gguf.write_header_to_file()
        self.gguf.write_kv_data_to_file()
        self.gguf.write_tensors_to_file()
        self.gguf.close()
        return self.path


#: size of a chain's heads; few large ones, since llama.cpp's flash attention takes time for each
_CHAIN_HEAD: Final = 96


def write_tiny_chain(
    path: Path,
    follows: Mapping[int, int],
    *,
    context: int = 512,
    pairs: Sequence[str] = (),
    add_bos: bool = False,
) -> Path:
    """Write an F32 llama that says one thing behind each token, whatever stands before: ``follows[token]``,
    and the end token where that says nothing. Its logits are 0 or large, so that no processor disagrees.

    Args:
        pairs: of characters that are one token, from id 259 on; 24 at most.
    """
    width = 288  # a number of its own for each token, and a whole number of heads
    tiny = TinyWriter(path, "llama", 0, width, 1, context, add_bos=add_bos, **_with_pairs(pairs))
    return fill_chain(tiny, follows)


def fill_chain(tiny: TinyWriter, follows: Mapping[int, int]) -> Path:
    """Write the tensors of a chain (:func:`write_tiny_chain`) and close the file."""
    width = tiny.width
    heads = width // _CHAIN_HEAD
    tiny.gguf.add_feed_forward_length(32)
    tiny.gguf.add_head_count(heads)
    tiny.gguf.add_head_count_kv(heads)
    tiny.gguf.add_rope_dimension_count(_CHAIN_HEAD)
    tiny.gguf.add_tensor("token_embd.weight", np.eye(tiny.size, width, dtype=np.float32))
    tiny.ones("blk.0.attn_norm.weight", width)
    tiny.ones("blk.0.ffn_norm.weight", width)
    # neither attention nor the feed-forward part adds anything
    shapes = {f"attn_{part}": (width, width) for part in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (32, width), "ffn_up": (32, width), "ffn_down": (width, 32)}
    for name, shape in shapes.items():
        tiny.gguf.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
    tiny.ones("output_norm.weight", width)
    output = np.zeros((tiny.size, width), np.float32)
    for token in range(tiny.size):
        output[follows.get(token, tiny.eos_id), token] = 1.0
    tiny.gguf.add_tensor("output.weight", output)
    return tiny.close()


def _with_pairs(pairs: Sequence[str]) -> dict[str, Any]:
    if not pairs:
        return {}
    return {"texts": [*byte_texts(), *SPECIAL, *pairs], "merges": [f"{a} {b}" for a, b in pairs]}


def chain_of(text: str) -> dict[int, int]:
    """Bytes of a text, each followed by the next, the last by the first; no byte twice."""
    ids = list(text.encode())
    assert len(set(ids)) == len(ids)
    return dict(zip(ids, [*ids[1:], ids[0]], strict=True))


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
    head: int = 16,
    merges: Sequence[str] | None = None,
) -> Path:
    """Write an F32 llama model.

    Args:
        width: embedding size.
        head: size of a head, which divides the width.
        sharpness: scale of the output matrix; higher means more confident, less even distributions.
        texts: texts of the tokens instead of the byte-level ones.
        merges: see :class:`TinyWriter`.
    """
    more = {} if merges is None else {"merges": merges}
    tiny = TinyWriter(path, "llama", seed, width, layers, context, padding, texts, add_bos, eos_id, **more)
    tiny.gguf.add_feed_forward_length(2 * width)
    tiny.gguf.add_head_count(width // head)
    tiny.gguf.add_head_count_kv(width // head)
    tiny.gguf.add_rope_dimension_count(head)
    tiny.normal("token_embd.weight", tiny.size, width, scale=1.0)
    for i in range(layers):
        block = f"blk.{i}"
        tiny.ones(f"{block}.attn_norm.weight", width)
        tiny.ones(f"{block}.ffn_norm.weight", width)
        tiny.attention(block, width // 16)
        tiny.feed_forward(block, 2 * width)
    tiny.ones("output_norm.weight", width)
    tiny.normal("output.weight", tiny.size, width, scale=sharpness / width**0.5)
    return tiny.close()
