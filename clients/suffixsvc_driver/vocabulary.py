"""What a vocabulary is, and whether a draft model's fits a target's.

Token ids travel from the draft model to the target, so the same id must mean the same text. The rules are
llama.cpp's own for draft models. Same family is not enough: Qwen distillates differ by exactly the 128
entries that the size rule allows, and fail on a token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc.errors import VocabularyMismatchError

__all__ = ["Vocabulary", "check_vocabulary"]

MAX_SIZE_DIFFERENCE: Final = 128
FIRST_COMPARED_ID: Final = 5
_PADDING: Final = re.compile(rb"\[PAD\d+\]")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """A model's vocabulary.

    Attributes:
        kind: "SPM", "BPE", "WPM", "UGM", "RWKV", "PLAMO2" or "NONE".
        size: number of ids, padding included.
        bos_id, eos_id: -1 = none.
        add_bos, add_eos: whether the tokenizer adds them.
        fingerprint: see ``suffixsvc.fingerprint``.
        texts: bytes of every id; empty or ``[PADn]`` where unused. Shorter than ``size`` only in a
            description that came without texts.
    """

    kind: str
    size: int
    bos_id: int
    eos_id: int
    add_bos: bool
    add_eos: bool
    fingerprint: str
    texts: Sequence[bytes] = ()


def check_vocabulary(draft: Vocabulary, target: Vocabulary) -> None:
    """Can the draft model's ids be verified by the target?

    Raises:
        VocabularyMismatchError: ``rule`` is "vocab-type", "bos", "eos", "size" or "token-text"; the
            last one names the first token that differs.
    """
    if draft.kind != target.kind:
        _fail("vocab-type", "another kind of vocabulary", target.kind, draft.kind)
    if draft.add_bos != target.add_bos or (target.add_bos and draft.bos_id != target.bos_id):
        _fail("bos", "another beginning-of-sequence token", _flagged(target, "bos"), _flagged(draft, "bos"))
    if draft.add_eos != target.add_eos or draft.eos_id != target.eos_id:
        _fail("eos", "another end-of-sequence token", _flagged(target, "eos"), _flagged(draft, "eos"))
    if abs(draft.size - target.size) > MAX_SIZE_DIFFERENCE:
        expected = f"{target.size} ids, give or take {MAX_SIZE_DIFFERENCE}"
        _fail("size", "a vocabulary of another size", expected, f"{draft.size} ids")
    if draft.fingerprint and draft.fingerprint == target.fingerprint:
        return
    for token in range(FIRST_COMPARED_ID, max(draft.size, target.size)):
        ours, theirs = _text(target, token), _text(draft, token)
        if ours != theirs:
            _fail("token-text", f"token {token} means another text", repr(ours), repr(theirs))


def _text(vocabulary: Vocabulary, token: int) -> bytes:
    """Padding and ids behind the end all mean nothing, whatever they are called."""
    text = vocabulary.texts[token] if token < len(vocabulary.texts) else b""
    return b"" if _PADDING.fullmatch(text) else text


def _flagged(vocabulary: Vocabulary, name: str) -> str:
    added = "added" if getattr(vocabulary, f"add_{name}") else "not added"
    return f"id {getattr(vocabulary, f'{name}_id')}, {added}"


def _fail(rule: str, what: str, expected: str, got: str) -> None:
    raise VocabularyMismatchError(
        f"the draft model has {what} (rule {rule!r})"
        if rule != "token-text"
        else f"in the draft model, {what} (rule {rule!r})",
        rule=rule,
        expected=expected,
        got=got,
        remedy="Use a draft model made for this target's tokenizer, or none.",
    )
