"""Models that say the same as another in other tokens, and a vocabulary that begins texts with a blank."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gguf import GGUFReader, GGUFWriter, TokenType
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from support import tiny_gguf
from support.tiny_gguf import EOS_ID, SPECIAL, byte_texts, write_tiny_chain, write_tiny_llama

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


def write_cycle(path: Path, pairs: Sequence[str] = (), *, add_bos: bool = False) -> Path:
    """A llama that writes :data:`CYCLE` whatever stands before; ``pairs`` of letters are tokens of it, and it
    writes as many at a time as it can."""
    return write_tiny_chain(path, _followers([*byte_texts(), *SPECIAL, *pairs]), pairs=pairs, add_bos=add_bos)


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
