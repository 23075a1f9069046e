"""Vocabularies that show where llama.cpp ends a word: their merges go across words, so that whatever stands
in one word becomes other tokens when it is cut."""

from __future__ import annotations

import functools
import inspect
import json
import random
from collections.abc import Sequence
from pathlib import Path

from gguf import GGUFWriter, TokenType
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from support import tiny_gguf

__all__ = ["SPELLED", "texts_of_words", "write_word_tokenizer", "write_word_vocabulary"]

#: special tokens: with blanks, signs, digits and letters in them
SPELLED = ["<|endoftext|>", "<|a b|>", "</x_y>", "  ", "#1)", "[T 2]"]
_SOURCE = inspect.getsource(tiny_gguf)
_CONTRACTIONS = ["'s", "'t", "'re", "'VE", "'ll", "'D", " 's", "n't"]
_OTHERS = [
    "é", "ü", "中文", "\u0301", "\u00a0", "\u3000", "🙂", "²", "\u0661",
    "\u0344", "\u212b", "\u2126", "\x0b", "\x0c", "\x00", "\x1f", "\x7f",
    "\u200b", "ß", "İ", "\ufeff",
]  # fmt: skip


def texts_of_words(seed: int, count: int, spelled: Sequence[str] = SPELLED) -> list[str]:
    """Short texts of letters, digits, blanks, signs, contractions, other scripts, special tokens and parts of
    them, in all neighbourhoods."""
    chance = random.Random(seed)
    return ["".join(_part(chance, spelled) for _ in range(chance.randint(1, 40))) for _ in range(count)]


def _part(chance: random.Random, specials: Sequence[str]) -> str:
    kind = chance.random()
    if kind < 0.25:
        return "".join(chance.choices("abcdefgXYZIt", k=chance.randint(1, 6)))
    if kind < 0.35:
        return str(chance.randrange(10 ** chance.randint(1, 12)))
    if kind < 0.5:
        return "".join(chance.choices(" \t\n\r  ", k=chance.randint(1, 6)))
    if kind < 0.65:
        return "".join(chance.choices("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", k=chance.randint(1, 4)))
    if kind < 0.72:
        return chance.choice(_CONTRACTIONS)
    if kind < 0.78:
        return chance.choice(_OTHERS)
    if kind < 0.84:
        spelled = chance.choice(specials)
        return spelled if chance.random() < 0.6 else spelled[: chance.randint(1, len(spelled))]
    if kind < 0.95:
        return " "
    at = chance.randrange(len(_SOURCE) - 40)
    return _SOURCE[at : at + chance.randint(1, 40)]


def write_word_vocabulary(path: Path, rule: str, *, special: Sequence[str] = SPELLED) -> Path:
    """A GGUF without weights; ``rule`` is its tokenizer.ggml.pre, "" = none."""
    learnt, merges = _vocabulary()
    # llama.cpp aborts where two tokens are spelled alike.
    tokens = [*learnt, *(text for text in special if text not in learnt)]
    kinds = [TokenType.USER_DEFINED if text in special else TokenType.NORMAL for text in tokens]
    writer = GGUFWriter(str(path), "llama")
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    if rule:
        writer.add_tokenizer_pre(rule)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(list(merges))
    writer.add_bos_token_id(tokens.index(special[0]))
    writer.add_eos_token_id(tokens.index(special[0]))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    return path


def write_word_tokenizer(
    path: Path,
    splitter: pre_tokenizers.PreTokenizer,
    *,
    special: Sequence[AddedToken] = (),
    normalizer: normalizers.Normalizer | None = None,
    merging: bool = True,
) -> Path:
    """A tokenizer.json of the same tokens that cuts texts with ``splitter``; not ``merging``: every byte is a
    token."""
    tokens, merges = _vocabulary() if merging else (tuple(tiny_gguf.byte_texts()), ())
    pairs = [(a, b) for a, b in (merge.split(" ") for merge in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={text: i for i, text in enumerate(tokens)}, merges=pairs))
    tokenizer.pre_tokenizer = splitter
    tokenizer.decoder = decoders.ByteLevel()
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.add_special_tokens([*(AddedToken(text, normalized=False) for text in SPELLED), *special])
    tokenizer.save(str(path))
    return path


@functools.cache
def _vocabulary() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Tokens by id, and merges, learnt from texts that were not cut into words."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    trainer = trainers.BpeTrainer(
        vocab_size=4000, show_progress=False, initial_alphabet=tiny_gguf.byte_texts(), special_tokens=[]
    )
    tokenizer.train_from_iterator([*texts_of_words(0, 3000), *_SOURCE.splitlines(keepends=True)], trainer)
    model = json.loads(tokenizer.to_str())["model"]
    by_id = sorted(model["vocab"], key=model["vocab"].__getitem__)
    return tuple(by_id), tuple(pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"])
