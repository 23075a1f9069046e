"""Vocabularies, and the rules by which a draft model's must match a target's.

The target verifies the draft model's token ids, so the same id must mean the same text. The rules are
llama.cpp's own for draft models. The same model family is not sufficient: Qwen distillates differ by exactly
the 128 entries that the size rule allows, and fail on a token.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from suffixsvc.errors import VocabularyMismatchError

MAX_SIZE_DIFFERENCE: Final = 128
FIRST_COMPARED_ID: Final = 5
#: names of llama.cpp's numeric vocabulary types
_KINDS: Final = ("NONE", "SPM", "BPE", "WPM", "UGM", "RWKV", "PLAMO2")
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
        texts: bytes of every id; empty or ``[PADn]`` for unused ids. Shorter than ``size`` only in a
            description without texts.
    """

    kind: str
    size: int
    bos_id: int
    eos_id: int
    add_bos: bool
    add_eos: bool
    fingerprint: str
    texts: Sequence[bytes] = ()


@dataclass(frozen=True, slots=True)
class RuleOutcome:
    """Result of one rule for a draft model and a target.

    Attributes:
        rule: "vocab-type", "bos", "eos", "size" or "token-text".
        target, draft: the compared values; for "token-text", of the first token that differs.
        what: the difference, in words; empty if the rule passed.
    """

    rule: str
    passed: bool
    target: str
    draft: str
    what: str = ""


def vocabulary_kind(number: object) -> str:
    """Return the name of llama.cpp's numeric vocabulary type."""
    return _KINDS[number] if isinstance(number, int) and 0 <= number < len(_KINDS) else f"type {number}"


def compare_vocabularies(draft: Vocabulary, target: Vocabulary) -> tuple[RuleOutcome, ...]:
    """Apply all rules, in order."""
    same_bos = draft.add_bos == target.add_bos and (not target.add_bos or draft.bos_id == target.bos_id)
    same_eos = draft.add_eos == target.add_eos and draft.eos_id == target.eos_id
    near = abs(draft.size - target.size) <= MAX_SIZE_DIFFERENCE
    limit = f"{target.size} ids, give or take {MAX_SIZE_DIFFERENCE}"
    rules = (
        ("vocab-type", draft.kind == target.kind, target.kind, draft.kind, "another kind of vocabulary"),
        (
            "bos",
            same_bos,
            _flagged("bos", target),
            _flagged("bos", draft),
            "another beginning-of-sequence token",
        ),
        ("eos", same_eos, _flagged("eos", target), _flagged("eos", draft), "another end-of-sequence token"),
        ("size", near, limit, f"{draft.size} ids", "a vocabulary of another size"),
    )
    return (
        *(RuleOutcome(rule, passed, a, b, "" if passed else what) for rule, passed, a, b, what in rules),
        _compare_texts(draft, target),
    )


def check_vocabulary(draft: Vocabulary, target: Vocabulary) -> None:
    """Check that the target can verify the draft model's ids.

    Raises:
        VocabularyMismatchError: ``rule`` is "vocab-type", "bos", "eos", "size" or "token-text"; the
            last one names the first token that differs.
    """
    failed = next((each for each in compare_vocabularies(draft, target) if not each.passed), None)
    if failed is None:
        return
    where = "in the draft model," if failed.rule == "token-text" else "the draft model has"
    raise VocabularyMismatchError(
        f"{where} {failed.what} (rule {failed.rule!r})",
        rule=failed.rule,
        expected=failed.target,
        got=failed.draft,
        remedy="Use a draft model made for this target's tokenizer, or none.",
    )


def _compare_texts(draft: Vocabulary, target: Vocabulary) -> RuleOutcome:
    if draft.fingerprint and draft.fingerprint == target.fingerprint:
        return RuleOutcome("token-text", True, target.fingerprint, draft.fingerprint)
    for token in range(FIRST_COMPARED_ID, max(draft.size, target.size)):
        ours, theirs = _text(target, token), _text(draft, token)
        if ours != theirs:
            what = f"token {token} means another text"
            return RuleOutcome("token-text", False, repr(ours), repr(theirs), what)
    return RuleOutcome("token-text", True, f"{len(target.texts)} texts", f"{len(draft.texts)} texts")


def _text(vocabulary: Vocabulary, token: int) -> bytes:
    """The text of an id; padding and ids beyond the end have none, whatever their names."""
    text = vocabulary.texts[token] if token < len(vocabulary.texts) else b""
    return b"" if _PADDING.fullmatch(text) else text


def _flagged(name: str, vocabulary: Vocabulary) -> str:
    """The id of a special token, and whether the tokenizer adds it."""
    added = "added" if getattr(vocabulary, f"add_{name}") else "not added"
    return f"id {getattr(vocabulary, f'{name}_id')}, {added}"
