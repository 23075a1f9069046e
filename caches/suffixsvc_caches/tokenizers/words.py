"""Where a text may be cut so that its tokens are those of the pieces: what a memory of words rests on.

A byte-pair tokenizer first cuts a text into words, by a regular expression, and merges bytes within words
only. So a text can be cut wherever two of its words meet for sure, whatever stands around: behind a run of
letters or of digits, before the space that belongs to the letters behind it, between a sign and the digit
behind it. That holds for the expressions that :data:`WORD_RULES` names, each of which was read (llama.cpp,
src/llama-vocab.cpp) and compared with llama.cpp itself; for any other tokenizer there is no table. It holds
in ASCII; other characters are not cut at.

Special tokens are looked for before words are, so no cut may go through the text of one.
"""

from __future__ import annotations

import itertools
import string
from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt

from suffixsvc.core.word_memo import WordCut

__all__ = ["SPLIT_EXPRESSIONS", "WORD_RULES", "cut_table"]

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
#: the same as a tokenizer.json spells them: of Qwen 2, Llama 3, Qwen 3.5, GPT-4o (that of GPT-2 is built in)
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
#: an apostrophe may begin a contraction, which some take to the word before it
_SIGNS: Final = np.frombuffer(string.punctuation.replace("'", "").encode(), np.uint8)
_SPACE: Final = 0x20


def cut_table(special_texts: Iterable[bytes]) -> npt.NDArray[np.uint8]:
    """The cuts of a tokenizer that :data:`WORD_RULES` names, or with one of the :data:`SPLIT_EXPRESSIONS`,
    uint8[128, 128] of ``WordCut``.

    Args:
        special_texts: of the tokens that are looked for in a text as they are spelled.
    """
    table = np.full((128, 128), WordCut.NONE, np.uint8)
    table[np.ix_(_LETTERS, np.concatenate([_DIGITS, _BLANKS, _SIGNS]))] = WordCut.HERE
    table[np.ix_(_DIGITS, np.concatenate([_LETTERS, _BLANKS, _SIGNS]))] = WordCut.HERE
    table[np.ix_(_SIGNS, _DIGITS)] = WordCut.HERE
    before = np.concatenate([_SIGNS, _BLANKS, [ord("'")]])
    table[before, _SPACE] = WordCut.BEFORE_LETTER
    special_texts = list(special_texts)
    if any(text[:1].isalpha() for text in special_texts):  # the letter may be no word's
        table[table == WordCut.BEFORE_LETTER] = WordCut.NONE
    for text in special_texts:
        for a, b in itertools.pairwise(text):
            if a < 128 and b < 128:
                table[a, b] = WordCut.NONE
    return table
