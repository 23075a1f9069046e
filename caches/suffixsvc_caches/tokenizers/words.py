"""Word boundaries of byte-pair tokenizers: positions where a cut does not change the tokens of a text.

A byte-pair tokenizer first splits a text into words by a regular expression, and merges bytes within words
only. A text can therefore be cut wherever two words meet regardless of the context: after a run of letters or
digits, before a space that is followed by a letter, between a punctuation character and a digit. This holds
for the expressions of :data:`WORD_RULES` and :data:`SPLIT_EXPRESSIONS` (source: llama.cpp,
src/llama-vocab.cpp; compared with llama.cpp's own tokens). There is no table for other tokenizers. Cuts are
between ASCII characters only.

Special tokens are matched before the text is split, so no cut may fall into the text of one.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt


class WordCut(IntEnum):
    """Rule for a cut between two bytes."""

    NONE = 0
    HERE = 1
    #: if the byte after the second one is an ASCII letter
    BEFORE_LETTER = 2


#: tokenizer.ggml.pre of llama.cpp: the expressions of GPT-2, Llama 3, Qwen 2, DeepSeek, Tekken, GPT-4o and
#: StarCoder, under all their names
WORD_RULES: Final = frozenset((
    "gpt-2", "phi-2", "mpt", "olmo", "mellum", "starcoder", "refact", "command-r", "smollm", "codeshell",
    "falcon", "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "lfm2", "dbrx",
    "smaug-bpe", "glm4", "glm5", "chatglm-bpe", "qwen2", "deepseek-r1-qwen", "qwen35", "stablelm2", "grok-2",
    "hunyuan", "seed-coder", "deepseek-llm", "deepseek-coder", "deepseek-v3", "hunyuan-dense", "tekken",
    "gpt-4o", "llama4", "kanana2", "minimax-m2",
))  # fmt: skip

_CONTRACTIONS: Final = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST: Final = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
#: the expressions as a tokenizer.json has them: Qwen 2, Llama 3, Qwen 3.5, GPT-4o (GPT-2's is built in)
SPLIT_EXPRESSIONS: Final = frozenset((
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}",
    rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+" rf"{_CONTRACTIONS}?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*" rf"{_CONTRACTIONS}?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
))  # fmt: skip

_LETTERS: Final = np.frombuffer(string.ascii_letters.encode(), np.uint8)
_DIGITS: Final = np.frombuffer(string.digits.encode(), np.uint8)
_BLANKS: Final = np.frombuffer(b" \t\n\r", np.uint8)
#: without the apostrophe, which may begin a contraction that belongs to the word before it
_SIGNS: Final = np.frombuffer(string.punctuation.replace("'", "").encode(), np.uint8)
_SPACE: Final = 0x20


def cut_table(special_texts: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    """Return the cuts of a tokenizer of :data:`WORD_RULES` or :data:`SPLIT_EXPRESSIONS`.

    Args:
        special_texts: texts of the special tokens that are matched in a text.

    Returns:
        uint8[128, 128] of ``WordCut``.
    """
    table = np.full((128, 128), WordCut.NONE, np.uint8)
    table[np.ix_(_LETTERS, np.concatenate([_DIGITS, _BLANKS, _SIGNS]))] = WordCut.HERE
    table[np.ix_(_DIGITS, np.concatenate([_LETTERS, _BLANKS, _SIGNS]))] = WordCut.HERE
    table[np.ix_(_SIGNS, _DIGITS)] = WordCut.HERE
    before = np.concatenate([_SIGNS, _BLANKS, [ord("'")]])
    table[before, _SPACE] = WordCut.BEFORE_LETTER
    special_texts = list(special_texts)
    if any(text[:1].isalpha() for text in special_texts):  # the letter may begin a special token
        table[table == WordCut.BEFORE_LETTER] = WordCut.NONE
    for text in special_texts:
        for a, b in itertools.pairwise(text):
            if a < 128 and b < 128:
                table[a, b] = WordCut.NONE
    return table
