"""The drafted tree of one step, put together from everything that the layers offered.

    prompt lookup   a b c        root - a .6 - b .5 - c .4      tokens behind the same text are one node; of
    suffix          a b d             |          |              what several layers believe of it, the most
                    e                 e .3       d .5           counts; siblings above 1 together share it

A chain falls out where that is best. What is taken of a tree beside its most probable path is computed again
by the target, to lie in one piece, so tokens beside it are worth less by what a token costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from suffixsvc.types import DraftSource
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.drafting import Offer, behind
from suffixsvc_driver.events import Considered, Propose, Verify
from suffixsvc_driver.policy import LEAST_GAIN, Choice, Headroom, best_prefix
from suffixsvc_driver.tree import is_chain, walk
from suffixsvc_driver.tree_policy import TreeChoice, best_tree, path_probs

__all__ = ["TreeDraft"]

_NONE: Final = int(DraftSource.NONE)
#: see :mod:`suffixsvc_driver.drafting`
_ANY: Final = (0,)


class TreeDraft:
    """Of one step; stands where :class:`suffixsvc_driver.drafting.StepDraft` does, and is used likewise.

    Args:
        max_leaves: that the target takes.
    """

    def __init__(self, curve: CostCurve, rate: float, headroom: Headroom, max_leaves: int) -> None:
        self.curve, self.rate, self.headroom = curve, rate, headroom
        self._max_leaves = max_leaves
        # what is left of a token's worth when it has been computed again
        self._again = min(1.0, max(0.0, 1.0 - rate * (curve.cost(2) - 1.0)))
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._probs: list[float] = []
        self._sources: list[int] = []
        self._layers: list[str] = []
        self._child: dict[tuple[int, int], int] = {}
        self._paths: list[float] = []
        self._chosen = TreeChoice()
        self._looked_at: list[Considered] = []

    @property
    def choice(self) -> Choice:
        """How many tokens, in how wide a batch, and what they gain."""
        return Choice(len(self._chosen.nodes), self._chosen.width, self._chosen.gain)

    @property
    def gain(self) -> float:
        """Of the best part of the tree so far, tokens."""
        return self._chosen.gain

    @property
    def offer(self) -> Offer:
        """The most probable path from the root to a leaf: what one may go on behind."""
        path = self._best_path()
        return Offer(
            self._layers[path[0]] if path else "",
            tuple(self._tokens[i] for i in path),
            tuple(self._sources[i] for i in path),
            tuple(self._shares(path)),
        )

    @property
    def gain_behind(self) -> float:
        """Of that path alone."""
        return best_prefix(self.offer.probs, self.curve, self.rate, self.headroom).gain

    def leave_alone(self, layer: str, why: str) -> None:
        """A layer was not asked."""
        self._looked_at.append(Considered(layer, 0, why))

    def consider(self, offer: Offer, budget: int, after: tuple[int, ...] = (), *, suggested: int = 0) -> None:
        """Add a chain or a tree of tokens to what is there, and choose anew.

        Args:
            after: the tokens of :attr:`offer` it goes on behind.
            suggested: so many of the tokens behind these were suggested to whoever offers this. In a tree
                siblings share what they are believed in any case.
        """
        root = -1
        for token in after:
            root = self._child[root, token]
        self._merge(offer, root)
        self._paths = path_probs(self._parents, self._probs)
        first = set(self._best_path())
        worth = [path if i in first else self._again * path for i, path in enumerate(self._paths)]
        self._chosen = chosen = best_tree(
            self._parents, worth, self.curve, self.rate, self.headroom, self._max_leaves
        )
        if chosen.gain <= LEAST_GAIN:
            self._chosen = chosen = replace(chosen, nodes=(), width=1, gain=0.0)
        self._looked_at.append(
            Considered(
                offer.layer,
                budget,
                "",
                offer.token_ids,
                offer.probs,
                len(chosen.nodes),
                chosen.width,
                chosen.gain,
                offer.parents,
                behind(after, suggested),
            )
        )

    def _merge(self, offer: Offer, root: int) -> None:
        nodes: list[int] = []
        for i, token in enumerate(offer.token_ids):
            before = offer.parents[i] if offer.parents else i - 1
            parent = nodes[before] if before >= 0 else root
            node = self._child.get((parent, token))
            if node is None:
                node = self._child[parent, token] = len(self._tokens)
                self._tokens.append(token)
                self._parents.append(parent)
                self._probs.append(offer.probs[i])
                self._sources.append(offer.sources[i])
                self._layers.append(offer.layer)
            elif offer.probs[i] > self._probs[node]:
                self._probs[node] = offer.probs[i]
                self._sources[node] = offer.sources[i]
                self._layers[node] = offer.layer
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
        """P(accepted | parent accepted), siblings taken into account."""
        above = [self._paths[self._parents[i]] if self._parents[i] >= 0 else 1.0 for i in nodes]
        return [self._paths[i] / p if p > 0.0 else 0.0 for i, p in zip(nodes, above, strict=True)]

    def propose(self) -> Propose:
        """What could be sent, however much of it pays, for a batch that is shared."""
        most = max(0, min(self.headroom.limit, self.headroom.room - 1))
        return Propose(self._chosen.worth[:most])

    def decide(self) -> Verify:
        """What to send."""
        length = len(self._chosen.nodes)
        return self.cut(length, self._chosen.width - 1 - length)

    def cut(self, length: int, padding: int) -> Verify:
        """Send so many tokens, the most probable ones, and so many behind the last of them that only fill the
        batch.

        The most probable path comes first and in one piece: where it is taken, the text lies in the KV as if
            a
        chain had been drafted, and rounds as one. The last token is a leaf."""
        considered = tuple(self._looked_at)
        if not length + padding:
            return Verify(considered=considered, rate=self.rate)
        nodes = walk(self._parents, self._chosen.order[:length])
        place = {node: i for i, node in enumerate(nodes)}
        tokens = tuple(self._tokens[i] for i in nodes)
        parents = tuple(place.get(self._parents[i], -1) for i in nodes)
        parents += tuple(range(length - 1, length - 1 + padding))
        layers = tuple(self._layers[i] for i in nodes)
        return Verify(
            token_ids=tokens + (tokens[-1:] or _ANY) * padding,
            sources=tuple(self._sources[i] for i in nodes) + (_NONE,) * padding,
            probs=tuple(self._shares(nodes)) + (0.0,) * padding,
            layer=layers[0] if layers else "",
            padding=padding,
            considered=considered,
            rate=self.rate,
            parents=() if is_chain(parents) else parents,
            layers=layers + ("",) * padding if len(set(layers)) > 1 else (),
        )
