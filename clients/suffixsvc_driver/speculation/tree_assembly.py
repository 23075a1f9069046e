"""Draft of one step as a tree, merged from the candidates of all layers.

    prompt lookup   a b c        root - a .6 - b .5 - c .4      equal tokens after the same path are one node,
    suffix          a b d             |          |              which gets the largest of the layers'
                    e                 e .3       d .5           probabilities; siblings sum to at most 1

The result is a chain where a chain gains most. Accepted tokens off the most probable path are recomputed by
the target to be contiguous in the KV cache, so their gain is reduced by the cost of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from suffixsvc.types import DraftSource
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.drafts.events import Considered, Propose, Verify
from suffixsvc_driver.drafts.tree import is_chain, walk
from suffixsvc_driver.policy.chain_gain import MIN_GAIN, Choice, Headroom, best_prefix
from suffixsvc_driver.policy.tree_gain import TreeChoice, best_tree, path_probs
from suffixsvc_driver.speculation.draft_assembly import FILLER, Candidate, describe_continuation

__all__ = ["TreeDraft"]

_NONE: Final = int(DraftSource.NONE)


class TreeDraft:
    """Draft of one step, with the interface of :class:`.draft_assembly.StepDraft`.

    Args:
        curve: current cost of the target's steps.
        rate: tokens per unit of cost so far.
        headroom: limits of the draft.
        max_leaves: leaves that the target accepts.
    """

    def __init__(self, curve: CostCurve, rate: float, headroom: Headroom, max_leaves: int) -> None:
        self.curve, self.rate, self.headroom = curve, rate, headroom
        self._max_leaves = max_leaves
        # share of a token's gain that remains when the target recomputes it
        self._recomputed_share = min(1.0, max(0.0, 1.0 - rate * (curve.cost(2) - 1.0)))
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._probs: list[float] = []
        self._sources: list[int] = []
        self._layers: list[str] = []
        self._child: dict[tuple[int, int], int] = {}
        self._paths: list[float] = []
        self._chosen = TreeChoice()
        self._considered: list[Considered] = []

    @property
    def choice(self) -> Choice:
        """Best subtree so far: its size, the width of its batch and its gain."""
        return Choice(len(self._chosen.nodes), self._chosen.width, self._chosen.gain)

    @property
    def gain(self) -> float:
        """Expected gain of the best subtree so far, tokens."""
        return self._chosen.gain

    @property
    def candidate(self) -> Candidate:
        """Most probable path from the root to a leaf, which a layer may continue."""
        path = self._best_path()
        return Candidate(
            self._layers[path[0]] if path else "",
            tuple(self._tokens[i] for i in path),
            tuple(self._sources[i] for i in path),
            tuple(self._shares(path)),
        )

    @property
    def continuable_gain(self) -> float:
        """Expected gain of :attr:`candidate` alone, tokens."""
        return best_prefix(self.candidate.probs, self.curve, self.rate, self.headroom).gain

    def record_skip(self, layer: str, why: str) -> None:
        """Record why a layer contributes nothing."""
        self._considered.append(Considered(layer, 0, why))

    def consider(
        self, candidate: Candidate, budget: int, after: tuple[int, ...] = (), *, suggested: int = 0
    ) -> None:
        """Merge a chain or a tree into the draft, and choose the best subtree.

        Args:
            budget: tokens that were queried.
            after: tokens of :attr:`candidate` that the new tokens continue.
            suggested: number of following tokens of :attr:`candidate` that were suggested to the layer; for
                the report only, since siblings share their probability in any case.
        """
        root = -1
        for token in after:
            root = self._child[root, token]
        self._merge(candidate, root)
        self._paths = path_probs(self._parents, self._probs)
        first = set(self._best_path())
        gains = [path if i in first else self._recomputed_share * path for i, path in enumerate(self._paths)]
        self._chosen = chosen = best_tree(
            self._parents, gains, self.curve, self.rate, self.headroom, self._max_leaves
        )
        if chosen.gain <= MIN_GAIN:
            self._chosen = chosen = replace(chosen, nodes=(), width=1, gain=0.0)
        self._considered.append(
            Considered(
                candidate.layer,
                budget,
                "",
                candidate.token_ids,
                candidate.probs,
                len(chosen.nodes),
                chosen.width,
                chosen.gain,
                candidate.parents,
                describe_continuation(after, suggested),
            )
        )

    def _merge(self, candidate: Candidate, root: int) -> None:
        nodes: list[int] = []
        for i, token in enumerate(candidate.token_ids):
            before = candidate.parents[i] if candidate.parents else i - 1
            parent = nodes[before] if before >= 0 else root
            node = self._child.get((parent, token))
            if node is None:
                node = self._child[parent, token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(parent)
                self._probs.append(candidate.probs[i])
                self._sources.append(candidate.sources[i])
                self._layers.append(candidate.layer)
            elif candidate.probs[i] > self._probs[node]:
                self._probs[node] = candidate.probs[i]
                self._sources[node] = candidate.sources[i]
                self._layers[node] = candidate.layer
            nodes.append(node)

    def _best_path(self) -> list[int]:
        best: dict[int, int] = {}
        for i, parent in enumerate(self._parents):
            rival = best.get(parent)
            if rival is None or self._paths[i] > self._paths[rival]:
                best[parent] = i
        path: list[int] = []
        at = best.get(-1)
        while at is not None:
            path.append(at)
            at = best.get(at)
        return path

    def _shares(self, nodes: Sequence[int]) -> list[float]:
        """Return P(accepted | parent accepted) of each node, siblings taken into account."""
        above = [self._paths[self._parents[i]] if self._parents[i] >= 0 else 1.0 for i in nodes]
        return [self._paths[i] / p if p > 0.0 else 0.0 for i, p in zip(nodes, above, strict=True)]

    def propose(self) -> Propose:
        """Return the gains of the whole draft, for a shared batch."""
        most = max(0, min(self.headroom.limit, self.headroom.room - 1))
        return Propose(self._chosen.node_gains[:most])

    def decide(self) -> Verify:
        """Return the draft to send."""
        length = len(self._chosen.nodes)
        return self.cut(length, self._chosen.width - 1 - length)

    def cut(self, length: int, padding: int) -> Verify:
        """Return the ``length`` most probable tokens, followed by ``padding`` filler tokens.

        The most probable path comes first and is contiguous: if it is accepted, the KV cache is laid out, and
        rounds, as if a chain had been drafted. The last token is a leaf.
        """
        considered = tuple(self._considered)
        if not length + padding:
            return Verify(considered=considered, rate=self.rate)
        nodes = walk(self._parents, self._chosen.order[:length])
        place = {node: i for i, node in enumerate(nodes)}
        tokens = tuple(self._tokens[i] for i in nodes)
        parents = tuple(place.get(self._parents[i], -1) for i in nodes)
        parents += tuple(range(length - 1, length - 1 + padding))
        layers = tuple(self._layers[i] for i in nodes)
        return Verify(
            token_ids=tokens + (tokens[-1:] or FILLER) * padding,
            sources=tuple(self._sources[i] for i in nodes) + (_NONE,) * padding,
            probs=tuple(self._shares(nodes)) + (0.0,) * padding,
            layer=layers[0] if layers else "",
            padding=padding,
            considered=considered,
            rate=self.rate,
            parents=() if is_chain(parents) else parents,
            layers=layers + ("",) * padding if len(set(layers)) > 1 else (),
        )
