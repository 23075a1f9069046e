"""Models that say the same as another in other tokens, and a vocabulary that begins texts with a blank."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader, GGUFWriter, TokenType
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from support import tiny_gguf
from support.tiny_gguf import EOS_ID, SPECIAL, TinyWriter, byte_texts, write_tiny_llama

__all__ = ["CYCLE", "PAIRS", "write_ascii_llama", "write_cycle", "write_spm_vocabulary"]

#: what the models of :func:`write_cycle` write, for ever
CYCLE = "abcdefghijklmnopqrstuvwxyz0123456789"
#: the tokens of the one that writes two letters at a time
PAIRS = [CYCLE[i : i + 2] for i in range(0, 26, 2)]


def write_ascii_llama(path: Path, order: Sequence[int] | None = None, *, seed: int = 7) -> Path:
    """A tiny random llama that writes ASCII, so that its text can go anywhere.

    Args:
        order: of the 259 tokens: what is token i elsewhere is token ``order[i]`` here, and the same is said
            in other ids.
    """
    texts = [*byte_texts(), *SPECIAL]
    order = range(len(texts)) if order is None else order
    moved = dict(zip(order, texts, strict=True))
    write_tiny_llama(path, seed=seed, texts=[moved[i] for i in range(len(texts))], eos_id=order[EOS_ID])
    reader = GGUFReader(path, "r+")
    for tensor in reader.tensors:
        if tensor.name in ("token_embd.weight", "output.weight"):
            rows = tensor.data.copy()
            if tensor.name == "output.weight":
                rows[128:] = 0.0  # never the most likely token
            tensor.data[list(order)] = rows[: len(texts)]
            tensor.data[len(texts) :] = rows[len(texts) :]
    return path


class _Paired(TinyWriter):
    """Byte-level, with pairs of letters as tokens."""

    def _vocabulary(self) -> None:
        super()._vocabulary()
        pairs = [text for text in self.tokens if text in PAIRS]
        del self.gguf.kv_data[0]["tokenizer.ggml.merges"]
        self.gguf.add_token_merges([f"{a} {b}" for a, b in pairs] or ["\u0100 \u0100"])


def write_cycle(path: Path, pairs: Sequence[str] = (), *, add_bos: bool = False) -> Path:
    """An F32 llama that writes :data:`CYCLE` whatever stands before; ``pairs`` of letters are tokens of it,
    and it writes as many at a time as it can. Its logits are 0 or large, so that no processor disagrees."""
    texts = [*byte_texts(), *SPECIAL, *pairs]
    width = 304  # a number of its own for each token, and a whole number of heads
    tiny = _Paired(path, "llama", 0, width, 1, texts=texts, add_bos=add_bos)
    tiny.gguf.add_feed_forward_length(32)
    tiny.gguf.add_head_count(width // 16)
    tiny.gguf.add_head_count_kv(width // 16)
    tiny.gguf.add_rope_dimension_count(16)
    tiny.gguf.add_tensor("token_embd.weight", np.eye(tiny.size, width, dtype=np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        tiny.ones(f"{name}.weight", width)
    # neither attention nor the feed-forward part adds anything
    shapes = {f"attn_{part}": (width, width) for part in ("q", "k", "v", "output")}
    shapes |= {"ffn_gate": (32, width), "ffn_up": (32, width), "ffn_down": (width, 32)}
    for name, shape in shapes.items():
        tiny.gguf.add_tensor(f"blk.0.{name}.weight", np.zeros(shape, np.float32))
    output = np.zeros((tiny.size, width), np.float32)
    for token, follower in _followers(texts).items():
        output[follower, token] = 1000.0
    tiny.gguf.add_tensor("output.weight", output)
    return tiny.close()


def _followers(texts: Sequence[str]) -> Mapping[int, int]:
    """What each token of the cycle is followed by; everything else by the cycle's beginning."""
    ids = {text: token for token, text in enumerate(texts)}

    def next_token(letter: str) -> int:
        at = (CYCLE.index(letter) + 1) % len(CYCLE)
        return ids.get(CYCLE[at : at + 2], ids[CYCLE[at]])

    start = next_token(CYCLE[-1])
    return {token: next_token(text[-1]) if text[-1] in CYCLE else start for text, token in ids.items()}


def write_spm_vocabulary(path: Path) -> Path:
    """A GGUF without weights whose tokenizer is Llama 2's: a blank in front of what begins, unknown bytes as
    tokens of their own, no words."""
    pieces = _pieces()
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *pieces]
    kinds = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL, *[TokenType.BYTE] * 256]
    writer = GGUFWriter(str(path), "llama")
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_types([*kinds, *[TokenType.NORMAL] * len(pieces)])
    writer.add_token_scores([0.0] * len(kinds) + [-float(i) for i in range(len(pieces))])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_add_space_prefix(True)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


@functools.cache
def _pieces() -> tuple[str, ...]:
    """Learnt from source code, the earliest first."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never", split=True)
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False, special_tokens=[])
    source = "".join(c for c in inspect.getsource(tiny_gguf) if c.isascii() and c.isprintable())
    tokenizer.train_from_iterator([source], trainer)
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    return tuple(sorted(vocabulary, key=vocabulary.__getitem__))
