"""From whatever a layer answered to a chain or a tree that can be verified.

Layers may be remote, poisoned or broken. What makes sense is kept, the rest is cut off: a token outside
the vocabulary or a probability that is no number ends a chain, or a branch of a tree; a parent that is not an
earlier token is no parent, probabilities are clamped. Nothing in here raises for the contents of a draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from suffixsvc.types import DraftSource
from suffixsvc_driver.tree import is_chain

__all__ = ["CleanDraft", "clean_chain", "clean_tree", "common_prefix"]

#: a layer that answers far more than it was asked for is read no further than this
_READ_AT_MOST = 4096
_KNOWN_SOURCES = frozenset(int(s) for s in DraftSource)


@dataclass(frozen=True, slots=True)
class CleanDraft:
    """A draft that can be verified.

    Attributes:
        token_ids: its tokens; siblings differ.
        claims: the layer's own probabilities, 0 .. 1.
        sources: DraftSource numbers.
        junk: something had to be cut off or repaired.
        parents: of each token, an earlier one or -1; empty where each follows the one before it.
    """

    token_ids: tuple[int, ...] = ()
    claims: tuple[float, ...] = ()
    sources: tuple[int, ...] = ()
    junk: bool = False
    parents: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.token_ids)


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Length of the longest common prefix."""
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


def clean_chain(
    draft: Any,
    budget: int,
    vocab_size: int,
    default_source: DraftSource,
    ends: frozenset[int] = frozenset(),
) -> CleanDraft:
    """The most probable path of ``draft``, at most ``budget`` tokens of it, and nothing behind one of
    ``ends``: a generation is over there."""
    columns = _columns(draft)
    if columns is None:
        return CleanDraft(junk=True)
    tokens, parents, probs, sources = columns
    junk = len(tokens) > _READ_AT_MOST
    path, repaired = _best_path(parents[:_READ_AT_MOST], probs[:_READ_AT_MOST])
    junk = junk or repaired
    out_tokens: list[int] = []
    out_claims: list[float] = []
    out_sources: list[int] = []
    for i in path[:budget]:
        if not _makes_sense(tokens[i], probs[i], vocab_size):
            junk = True
            break
        out_tokens.append(tokens[i])
        out_claims.append(min(1.0, max(0.0, float(probs[i]))))
        out_sources.append(_source(sources[i], default_source))
        if tokens[i] in ends:
            break
    return CleanDraft(tuple(out_tokens), tuple(out_claims), tuple(out_sources), junk)


def clean_tree(
    draft: Any,
    budget: int,
    vocab_size: int,
    default_source: DraftSource,
    ends: frozenset[int] = frozenset(),
) -> CleanDraft:
    """The first ``budget`` tokens of ``draft`` that make sense and whose parents do, nothing behind one of
    ``ends``; of siblings that are the same token, the first."""
    columns = _columns(draft)
    if columns is None:
        return CleanDraft(junk=True)
    tokens, parents, probs, sources = columns
    junk = len(tokens) > _READ_AT_MOST
    kept: dict[int, int] = {-1: -1}  # index in the draft -> index in what is kept
    seen: set[tuple[int, int]] = set()
    out: list[tuple[int, float, int, int]] = []
    for i in range(min(len(tokens), _READ_AT_MOST)):
        if len(out) >= budget:
            break
        token, parent, claim = tokens[i], parents[i], probs[i]
        at = kept.get(parent) if isinstance(parent, int) else None
        if at is None or not _makes_sense(token, claim, vocab_size) or (at, token) in seen:
            junk = True
            continue
        seen.add((at, token))
        if at >= 0 and out[at][0] in ends:
            continue
        kept[i] = len(out)
        out.append((token, min(1.0, max(0.0, float(claim))), _source(sources[i], default_source), at))
    if not out:
        return CleanDraft(junk=junk)
    token_ids, claims, known, at_parents = zip(*out, strict=True)
    return CleanDraft(token_ids, claims, known, junk, () if is_chain(at_parents) else at_parents)


def _columns(draft: Any) -> tuple[list[Any], list[Any], list[Any], list[Any]] | None:
    """Tokens, parents, probabilities and sources, one of each for every token; None for anything else.

    An answer that is computed or read only when its columns are looked up may raise anything."""
    try:
        tokens, parents, probs, sources = (
            getattr(draft, name).tolist() for name in ("token_ids", "parents", "probs", "sources")
        )
        shapes_agree = len(tokens) == len(parents) == len(probs) == len(sources)
    except Exception:
        return None
    return (tokens, parents, probs, sources) if shapes_agree else None


def _makes_sense(token: Any, claim: Any, vocab_size: int) -> bool:
    return isinstance(token, int) and 0 <= token < vocab_size and _is_number(claim)


def _source(source: Any, default: DraftSource) -> int:
    known = isinstance(source, int) and source in _KNOWN_SOURCES and source != DraftSource.NONE
    return source if known else int(default)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, (int, float)) and math.isfinite(value)
    except OverflowError:  # an int that no float holds
        return False


def _rank(prob: Any) -> float:
    """By which siblings are compared: what is no probability comes last."""
    return float(prob) if _is_number(prob) else -math.inf


def _best_path(parents: Sequence[Any], probs: Sequence[Any]) -> tuple[list[int], bool]:
    """Indices from the root along the most probable child each time, the first one on ties; and whether
    some parent was not an earlier token."""
    if all(parent == i - 1 for i, parent in enumerate(parents)):
        return list(range(len(parents))), False
    best_child: dict[int, int] = {}
    repaired = False
    for i, parent in enumerate(parents):
        if not isinstance(parent, int) or not -1 <= parent < i:
            repaired = True
            continue
        rival = best_child.get(parent)
        if rival is None or _rank(probs[i]) > _rank(probs[rival]):
            best_child[parent] = i
    path: list[int] = []
    at = best_child.get(-1)
    while at is not None:
        path.append(at)
        at = best_child.get(at)
    return path, repaired
