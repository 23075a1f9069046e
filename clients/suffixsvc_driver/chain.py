"""From whatever a layer answered to a chain that can be verified.

Layers may be remote, poisoned or broken. What makes sense is kept, the rest is cut off: a token outside
the vocabulary or a probability that is no number ends the chain, a parent that is not an earlier token
is no parent, probabilities are clamped. Nothing in here raises for the contents of a draft.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from suffixsvc.types import DraftSource

__all__ = ["Chain", "clean_chain"]

#: a layer that answers far more than it was asked for is read no further than this
_READ_AT_MOST = 4096
_KNOWN_SOURCES = frozenset(int(s) for s in DraftSource)


@dataclass(frozen=True, slots=True)
class Chain:
    """A linear draft. ``claims`` are the layer's own probabilities, 0 .. 1. ``junk`` says that
    something had to be cut off or repaired."""

    token_ids: tuple[int, ...] = ()
    claims: tuple[float, ...] = ()
    sources: tuple[int, ...] = ()
    junk: bool = False

    def __len__(self) -> int:
        return len(self.token_ids)


def clean_chain(draft: Any, budget: int, vocab_size: int, default_source: DraftSource) -> Chain:
    """The most probable path of ``draft``, at most ``budget`` tokens of it."""
    try:
        tokens, parents, probs, sources = (
            getattr(draft, name).tolist() for name in ("token_ids", "parents", "probs", "sources")
        )
        count = len(tokens)
        shapes_agree = count == len(parents) == len(probs) == len(sources)
    except (AttributeError, TypeError):
        return Chain(junk=True)
    if not shapes_agree:
        return Chain(junk=True)
    junk = count > _READ_AT_MOST
    path, repaired = _best_path(parents[:_READ_AT_MOST], probs[:_READ_AT_MOST])
    junk = junk or repaired
    out_tokens: list[int] = []
    out_claims: list[float] = []
    out_sources: list[int] = []
    for i in path[:budget]:
        token, claim, source = tokens[i], probs[i], sources[i]
        if not isinstance(token, int) or not 0 <= token < vocab_size or not _is_number(claim):
            junk = True
            break
        out_tokens.append(token)
        out_claims.append(min(1.0, max(0.0, float(claim))))
        known = source in _KNOWN_SOURCES and source != DraftSource.NONE
        out_sources.append(source if known else int(default_source))
    return Chain(tuple(out_tokens), tuple(out_claims), tuple(out_sources), junk)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value)


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
        if rival is None or (_is_number(probs[i]) and not probs[i] <= probs[rival]):
            best_child[parent] = i
    path: list[int] = []
    at = best_child.get(-1)
    while at is not None:
        path.append(at)
        at = best_child.get(at)
    return path, repaired
