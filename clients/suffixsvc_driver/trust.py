"""How far each layer's probabilities can be believed, learned while generating.

A layer claims P(accepted) for every token. The target's real tokens label those claims, sent or not:
an unsent draft is labelled by comparing it with what was written. Three levels, each the prior of the
next, so that a poisoned cache is demoted after a few tokens and a good one is not starved:

    layer                 expected vs seen acceptances: scales every claim down, never up
    layer, claim          claims of this size (eight buckets), shrunk towards the level above
    layer, claim, depth   the same at this depth of the draft (four buckets)

Counts halve at a cap, so a layer that changes is believed anew.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final

from suffixsvc_driver.asking import Asking
from suffixsvc_driver.tally import Tally

__all__ = ["Trust"]

#: upper ends of the claim buckets; dense where drafts live
_CLAIM_EDGES: Final = (0.1, 0.3, 0.5, 0.7, 0.85, 0.95, 0.99)
#: first depths of the depth buckets
_DEPTH_EDGES: Final = (1, 4, 10)
#: how many labels the level above weighs
_PRIOR: Final = 4.0
_CAP: Final = 128.0


class Trust:
    """The tables of one pipeline. Not thread-safe; share one between the generations of an agent."""

    def __init__(self) -> None:
        self._layers: dict[str, Tally] = {}
        self._claims: dict[tuple[str, int], Tally] = {}
        self._depths: dict[tuple[str, int, int], Tally] = {}
        self._asking: dict[str, Asking] = {}

    def asking(self, layer: str, guess_seconds: float) -> Asking:
        """What questions to this layer cost and are worth. The first guess of their price stays."""
        if layer not in self._asking:
            self._asking[layer] = Asking(guess_seconds)
        return self._asking[layer]

    def believe(self, layer: str, claim: float, depth: int) -> float:
        """P(accepted | all before accepted) of a token at ``depth`` (0 = first) that ``layer`` gives
        the probability ``claim`` (0 .. 1)."""
        whole = self._layers.get(layer)
        p = claim
        if whole is not None:
            p *= min(1.0, whole.mean(1.0, _PRIOR))
        bucket = bisect_right(_CLAIM_EDGES, claim)
        cell = self._claims.get((layer, bucket))
        if cell is not None:
            p = cell.mean(p, _PRIOR)
        cell = self._depths.get((layer, bucket, bisect_right(_DEPTH_EDGES, depth)))
        if cell is not None:
            p = cell.mean(p, _PRIOR)
        return p

    def learn(self, layer: str, claim: float, depth: int, hit: bool) -> None:
        """A token that was proposed behind accepted ones: did the target write it?"""
        whole = self._layers.setdefault(layer, Tally(_CAP))
        whole.add(hit, claim)
        # A layer that promises too little earns no credit for promising too much later.
        whole.total = min(whole.total, whole.weight + _PRIOR)
        bucket = bisect_right(_CLAIM_EDGES, claim)
        self._claims.setdefault((layer, bucket), Tally(_CAP)).add(hit)
        self._depths.setdefault((layer, bucket, bisect_right(_DEPTH_EDGES, depth)), Tally(_CAP)).add(hit)

    def acceptance(self, layer: str, prior: float) -> float:
        """Share of a layer's labelled tokens that were right, ``prior`` before there are any."""
        hits = seen = 0.0
        for bucket in range(len(_CLAIM_EDGES) + 1):
            cell = self._claims.get((layer, bucket))
            if cell is not None:
                hits, seen = hits + cell.total, seen + cell.weight
        return (hits + _PRIOR * prior) / (seen + _PRIOR)
