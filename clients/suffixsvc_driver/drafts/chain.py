"""Validation of a layer's answer: reduces it to a chain or a tree that can be verified.

Layers may be remote, poisoned or broken. The valid part of an answer is kept and the rest is removed: a
chain, or a branch of a tree, ends before a token outside the vocabulary, a probability that is not a
finite number, or a parent that is not an earlier token. Probabilities are clamped to 0 .. 1. No content of
a draft raises.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from suffixsvc.types import DraftSource, ListedDraft
from suffixsvc_driver.drafts.tree import is_chain, most_probable_path

#: tokens of an answer that are read at most, whatever the budget
_MAX_READ = 4096
#: parent of a token whose parent is invalid
_NOWHERE = -2
_KNOWN_SOURCES = frozenset(int(s) for s in DraftSource)
_ORIGINS = _KNOWN_SOURCES - {int(DraftSource.NONE)}
#: parents of a chain, as long as those that are checked in whole columns
_CHAIN: Final = list(range(-1, 255))
_INTS: Final = {int}
_FLOATS: Final = {float}
#: tokens, parents, probabilities and sources
_Columns = tuple[list[Any], list[Any], list[Any], list[Any]]


class CleanDraft(NamedTuple):
    """Valid part of a layer's answer.

    Attributes:
        token_ids: drafted tokens; siblings differ.
        raw_probs: probabilities given by the layer, clamped to 0 .. 1.
        sources: DraftSource number of each token.
        junk: whether a part of the answer was removed or repaired.
        parents: index of each token's parent, -1 for the root; empty for a chain.
    """

    token_ids: tuple[int, ...] = ()
    raw_probs: tuple[float, ...] = ()
    sources: tuple[int, ...] = ()
    junk: bool = False
    parents: tuple[int, ...] = ()


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix, comparing whole slices (fast for lists of any type)."""
    limit = min(len(a), len(b))
    if list(a[:limit]) == list(b[:limit]):
        return limit
    low, high = 0, limit
    while low < high:
        middle = (low + high + 1) // 2
        if list(a[:middle]) == list(b[:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def valid_draft(
    draft: Any,
    budget: int,
    vocab_size: int,
    default_source: DraftSource,
    ends: frozenset[int] = frozenset(),
    *,
    trees: bool = False,
) -> CleanDraft:
    """Return the valid part of ``draft``: its first ``budget`` valid tokens with valid parents.

    Of equal siblings the first is kept. Tokens after an end-of-generation token are removed.

    Args:
        draft: the answer of a layer; any object.
        budget: largest number of tokens.
        vocab_size: ids at or above it are invalid.
        default_source: of tokens with an invalid source.
        ends: end-of-generation tokens.
        trees: return a tree; otherwise the most probable path is returned as a chain.
    """
    columns = columns_of(draft)
    if columns is None:
        return CleanDraft(junk=True)
    tokens, parents, probs, sources = columns
    if parents == _CHAIN[: len(parents)]:
        found = CleanDraft(tuple(tokens[:budget]), tuple(probs[:budget]), tuple(sources[:budget]))
        if {*map(type, parents)} == _INTS and _is_valid(found, vocab_size, ends):
            return found
    try:
        return _repaired(columns, budget, vocab_size, default_source, ends, trees=trees)
    except Exception:  # of the code of an element, in an answer that is not one of the engine's
        return CleanDraft(junk=True)


def _repaired(
    columns: _Columns,
    budget: int,
    vocab_size: int,
    default_source: DraftSource,
    ends: frozenset[int],
    *,
    trees: bool,
) -> CleanDraft:
    """Return the valid part of an answer, in plain ints and floats; see :func:`valid_draft`."""
    tokens, parents, probs, sources = columns
    count = min(len(tokens), _MAX_READ)
    junk = len(tokens) > _MAX_READ
    nodes: Sequence[int] = range(count)
    if not trees and not is_chain(parents[:count]):
        valid = [isinstance(parent, int) and -1 <= parent < i for i, parent in enumerate(parents[:count])]
        junk = junk or not all(valid)
        nodes = most_probable_path(
            [parent if fits else _NOWHERE for parent, fits in zip(parents, valid, strict=False)],
            [float(p) if _is_number(p) else -math.inf for p in probs[:count]],
        )
    kept: dict[int, int] = {-1: -1}  # index in the draft -> index in ``out``
    seen: set[tuple[int, int]] = set()
    out: list[tuple[int, float, int, int]] = []
    for i in nodes:
        if len(out) >= budget:
            break
        token, parent, raw_prob = tokens[i], parents[i], probs[i]
        at = kept.get(parent) if isinstance(parent, int) else None
        if at is not None and at >= 0 and out[at][0] in ends:
            kept[i] = at
            continue
        if at is None or not _is_token(token, raw_prob, vocab_size) or (at, token) in seen:
            junk = True
            continue
        seen.add((at, token))
        kept[i] = len(out)
        token = int.__index__(token)  # neither a bool nor a subclass
        out.append((token, min(1.0, max(0.0, float(raw_prob))), _source(sources[i], default_source), at))
    if not out:
        return CleanDraft(junk=junk)
    token_ids, raw_probs, known, at_parents = zip(*out, strict=True)
    return CleanDraft(token_ids, raw_probs, known, junk, () if is_chain(at_parents) else at_parents)


def _is_valid(chain: CleanDraft, vocab_size: int, ends: frozenset[int]) -> bool:
    """Whether a chain needs no change. Nearly all answers need none, so whole columns are checked."""
    tokens, probs, sources = chain.token_ids, chain.raw_probs, chain.sources
    return (
        {*map(type, tokens), *map(type, sources)} == _INTS
        and {*map(type, probs)} == _FLOATS
        and min(tokens) >= 0
        and max(tokens) < vocab_size
        and ends.isdisjoint(tokens)
        and min(probs) >= 0.0
        and max(probs) <= 1.0
        and math.isfinite(sum(probs))  # comparisons with NaN are false
        and _ORIGINS.issuperset(sources)
    )


def columns_of(draft: Any) -> _Columns | None:
    """Return tokens, parents, probabilities and sources as lists of the same length, or None.

    An answer with lazy columns may raise any exception when they are accessed.
    """
    if type(draft) is ListedDraft and draft.lists is not None:
        return draft.lists[:4]
    try:
        tokens, parents, probs, sources = (
            getattr(draft, name).tolist() for name in ("token_ids", "parents", "probs", "sources")
        )
        shapes_agree = len(tokens) == len(parents) == len(probs) == len(sources)
    except Exception:
        return None
    return (tokens, parents, probs, sources) if shapes_agree else None


def _is_token(token: Any, raw_prob: Any, vocab_size: int) -> bool:
    return isinstance(token, int) and 0 <= token < vocab_size and _is_number(raw_prob)


def _source(source: Any, default: DraftSource) -> int:
    known = isinstance(source, int) and source in _KNOWN_SOURCES and source != DraftSource.NONE
    return source if known else int(default)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # an int beyond the range of float
        return False
