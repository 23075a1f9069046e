"""Draft of one step: the best prefix of the layers' chains or, with trees, the best subtree of all answers.

A tree is merged from the candidates of all layers:

    prompt lookup   a b c        root - a .6 - b .5 - c .4      equal tokens after the same path are one node,
    suffix          a b d             |          |              which gets the largest of the layers'
                    e                 e .3       d .5           probabilities; siblings sum to at most 1

The result is a chain where a chain gains most. Accepted tokens off the most probable path are recomputed by
the target to be contiguous in the KV cache, so their gain is reduced by the cost of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from suffixsvc.types import DraftSource
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_driver.drafts.events import Considered, Propose, Verify
from suffixsvc_driver.drafts.tree import is_chain, most_probable_path, walk
from suffixsvc_driver.policy.expected_gain import (
    MIN_GAIN,
    PLAIN,
    Choice,
    StepParams,
    best_prefix,
    best_tree,
    path_probs,
    recomputations,
)

_NONE: Final = int(DraftSource.NONE)
#: padding of a batch without drafts: a token of every vocabulary
_FILLER: Final = (0,)
#: divisor of the odds of every token of a chain. The maximum over all prefixes of all chains is biased
#: upwards (the optimizer's curse): on recorded calls this is 2 % faster at the costs of two cores, 1 % where
#: a token costs a tenth of a step, and costs nothing on a GPU
_ODDS_DIVISOR: Final = 2.0


class Candidate(NamedTuple):
    """Calibrated draft of a layer: a chain, or a tree with ``parents``.

    Attributes:
        layer: name of the layer.
        token_ids: drafted tokens.
        sources: DraftSource number of each token.
        probs: calibrated probability of each token.
        continued_by: layer of the tokens from index ``continued_at`` on; "" if there is none.
        continued_at: see ``continued_by``.
        parents: of a tree, index of each token's parent.
    """

    layer: str
    token_ids: tuple[int, ...]
    sources: tuple[int, ...]
    probs: tuple[float, ...]
    continued_by: str = ""
    continued_at: int = 0
    parents: tuple[int, ...] = ()

    def head(self, length: int) -> Candidate:
        """Return the first ``length`` tokens of the chain."""
        continued = self.continued_by if length > self.continued_at else ""
        return Candidate(
            self.layer if length else "",
            self.token_ids[:length],
            self.sources[:length],
            self.probs[:length],
            continued,
            self.continued_at if continued else 0,
        )

    def tail(self, at: int) -> Candidate:
        """Return the chain without its first ``at`` tokens."""
        return self._replace(token_ids=self.token_ids[at:], sources=self.sources[at:], probs=self.probs[at:])

    def then(self, other: Candidate, at: int) -> Candidate:
        """Return the first ``at`` tokens of this chain, followed by ``other``."""
        return Candidate(
            self.layer,
            self.token_ids[:at] + other.token_ids,
            self.sources[:at] + other.sources,
            self.probs[:at] + other.probs,
            other.layer,
            at,
        )


_EMPTY: Final = Candidate("", (), (), ())


class StepDraft:
    """Draft of one step: the best prefix of the layers' chains.

    Args:
        step: costs and limits of the draft.

    Attributes:
        choice: best prefix so far.
        candidate: the chain or tree of ``choice``.
        trees: whether the draft may be a tree.
    """

    trees = False

    def __init__(self, step: StepParams) -> None:
        self.step = step
        self.choice = PLAIN
        self.candidate = _EMPTY
        self._forced = False
        self._candidates: list[Candidate] = []
        self._considered: list[Considered] = []

    @property
    def continuable(self) -> Candidate:
        """The chain that a layer may continue."""
        return self.candidate

    def record_skip(self, layer: str, why: str) -> None:
        """Record why a layer contributes nothing."""
        self._considered.append(Considered(layer, 0, why))

    def consider(
        self, candidate: Candidate, budget: int, after: tuple[int, ...] = (), *, suggested: int = 0
    ) -> None:
        """Take a candidate into the draft if that gains more.

        Args:
            budget: tokens that were queried.
            after: tokens of :attr:`continuable` that the candidate continues.
            suggested: number of following tokens of :attr:`continuable` that were suggested to the layer.
        """
        candidate, choice = self._add(candidate, after, suggested)
        how = ""
        if after or suggested:
            where = [f"after {len(after)} tokens"] if after else []
            how = ", ".join([*where, f"with {suggested} suggested"] if suggested else where)
        self._record(candidate, budget, how, choice)

    def take(self, candidate: Candidate, length: int, budget: int) -> None:
        """Take the first ``length`` tokens of a chain whatever their gain (first-match)."""
        choice = Choice(length, length + 1)
        self._record(candidate, budget, "", choice)
        self.choice, self.candidate, self._forced = choice, candidate, True

    def _record(self, candidate: Candidate, budget: int, how: str, choice: Choice) -> None:
        self._considered.append(
            Considered(
                candidate.continued_by or candidate.layer,
                budget,
                "",
                candidate.token_ids,
                candidate.probs,
                choice.length,
                choice.width,
                choice.gain,
                candidate.parents,
                how,
            )
        )

    def _add(self, candidate: Candidate, after: tuple[int, ...], suggested: int) -> tuple[Candidate, Choice]:
        """Add a chain; return it as a whole, and its best prefix."""
        candidate = Candidate(
            candidate.layer, candidate.token_ids, candidate.sources, _discounted(candidate.probs)
        )
        if after:
            candidate = self.candidate.then(candidate, len(after))
        if suggested:
            candidate = self._reconcile(candidate)
        self._candidates.append(candidate)
        return candidate, self._take_best(candidate)

    def _take_best(self, candidate: Candidate) -> Choice:
        """Return the best prefix of a chain, and take it if it gains more than the draft."""
        choice = best_prefix(candidate.probs, self.step)
        if choice.gain > max(self.choice.gain, MIN_GAIN):
            self.choice, self.candidate = choice, candidate
        return choice

    def _reconcile(self, candidate: Candidate) -> Candidate:
        """Reconcile the probabilities of a chain drafted with suggestions with those of earlier candidates.

        Common tokens get the larger probability and stay with the earlier layer. At the first difference at
        most one token is right. On recorded calls the draft model (a 0.5B for a 1.5B of its family) was right
        in 224 of 287 such positions and memory in 6, even where memory was more confident; so the earlier
        token gets at most the probability that the draft model leaves.
        """
        probs = list(candidate.probs)
        owner, at = candidate, 0
        for i, earlier in enumerate(self._candidates):
            agreed = common_prefix(candidate.token_ids, earlier.token_ids)
            common = tuple(map(max, candidate.probs[:agreed], earlier.probs[:agreed]))
            probs[:agreed] = map(max, probs[:agreed], common)
            rest = earlier.probs[agreed:]
            if rest and len(candidate.token_ids) > agreed:
                rest = (min(rest[0], 1.0 - candidate.probs[agreed]), *rest[1:])
            self._candidates[i] = earlier._replace(probs=common + rest)
            if agreed > at:
                owner, at = self._candidates[i], agreed
        self.choice, self.candidate = PLAIN, _EMPTY
        for each in self._candidates:
            self._take_best(each)
        candidate = candidate._replace(probs=tuple(probs))
        return owner.then(candidate.tail(at), at) if at else candidate

    def propose(self) -> Propose:
        """Return the gains of the whole draft, for a shared batch.

        How much of it pays depends on the drafts of the other generations.
        """
        if not self.choice.length and self._candidates:
            self.candidate = max(self._candidates, key=lambda candidate: sum(self._gains(candidate)))
        if self._forced:
            return Propose((1.0,) * self.choice.length, forced=True)
        return Propose(tuple(self._gains(self.candidate)))

    def _gains(self, candidate: Candidate) -> list[float]:
        """Return the gain of each token, as in :func:`best_prefix`."""
        gains, path = [], 1.0
        probs = candidate.probs[: self._most]
        for p, again in zip(probs, recomputations(probs, self.step), strict=True):
            path *= p
            gains.append(path - self.step.rate * again)
        return gains

    @property
    def _most(self) -> int:
        return max(0, min(self.step.limit, self.step.room - 1))

    def decide(self) -> Verify:
        """Return the draft to send."""
        return self.cut(self.choice.length, self.choice.width - 1 - self.choice.length)

    def cut(self, length: int, padding: int) -> Verify:
        """Return the first ``length`` tokens of the draft, followed by ``padding`` filler tokens."""
        return self._sent(self.candidate.head(length), padding)

    def _sent(self, chosen: Candidate, padding: int) -> Verify:
        """Return the tokens of ``chosen``, followed by ``padding`` filler tokens."""
        return Verify(
            chosen.token_ids + (chosen.token_ids[-1:] or _FILLER) * padding,
            chosen.sources + (_NONE,) * padding,
            chosen.probs + (0.0,) * padding,
            chosen.layer,
            padding,
            chosen.continued_by,
            chosen.continued_at,
            tuple(self._considered),
            self.step.rate,
        )


class TreeDraft(StepDraft):
    """Draft of one step: the best subtree of the tree that is merged from all candidates.

    Args:
        max_leaves: leaves that the target accepts.
    """

    trees = True

    def __init__(self, step: StepParams, max_leaves: int) -> None:
        super().__init__(step)
        self._max_leaves = max_leaves
        # share of a token's gain that remains when the target recomputes it
        self._recomputed_share = min(1.0, max(0.0, 1.0 - step.rate * (step.curve.cost(2) - 1.0)))
        self._parents: list[int] = []
        self._tokens: list[int] = []
        self._probs: list[float] = []
        self._sources: list[int] = []
        self._layers: list[str] = []
        self._child: dict[tuple[int, int], int] = {}
        self._order: list[int] = []
        self._node_gains: list[float] = []
        self._path: list[int] = []  # the most probable one from the root to a leaf

    @property
    def continuable(self) -> Candidate:
        """The most probable path, which a layer may continue."""
        draft, path = self.candidate, self._path
        return Candidate(
            self._layers[path[0]] if path else "",
            tuple(draft.token_ids[i] for i in path),
            tuple(draft.sources[i] for i in path),
            tuple(draft.probs[i] for i in path),
        )

    def _add(self, candidate: Candidate, after: tuple[int, ...], suggested: int) -> tuple[Candidate, Choice]:
        """Merge a chain or a tree into the draft; return it, and the best subtree of the draft."""
        root = -1
        for token in after:
            root = self._child[root, token]
        self._merge(candidate, root)
        parents = self._parents
        paths = path_probs(parents, self._probs)
        self._path = most_probable_path(parents, paths)
        first = set(self._path)
        self._node_gains = [
            path if i in first else self._recomputed_share * path for i, path in enumerate(paths)
        ]
        choice, self._order = best_tree(parents, self._node_gains, self.step, self._max_leaves)
        above = [paths[parent] if parent >= 0 else 1.0 for parent in parents]
        shares = (path / p if p > 0.0 else 0.0 for path, p in zip(paths, above, strict=True))
        self.candidate = Candidate("", tuple(self._tokens), tuple(self._sources), tuple(shares))
        self.choice = choice if choice.gain > MIN_GAIN else PLAIN
        return candidate, self.choice

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

    def propose(self) -> Propose:
        """Return the gains of the whole draft, for a shared batch."""
        return Propose(tuple(self._node_gains[i] for i in self._order[: self._most]))

    def cut(self, length: int, padding: int) -> Verify:
        """Return the ``length`` most probable tokens of the tree, followed by ``padding`` filler tokens.

        The most probable path comes first and is contiguous: if it is accepted, the KV cache is laid out, and
        rounds, as if a chain had been drafted. The last token is a leaf.
        """
        draft, nodes = self.candidate, walk(self._parents, self._order[:length])
        layers = tuple([self._layers[i] for i in nodes])
        chosen = Candidate(
            layers[0] if layers else "",
            tuple([draft.token_ids[i] for i in nodes]),
            tuple([draft.sources[i] for i in nodes]),
            tuple([draft.probs[i] for i in nodes]),
        )
        sent = self._sent(chosen, padding)
        if not nodes:
            return sent
        place = {node: i for i, node in enumerate(nodes)}
        parents = tuple([place.get(self._parents[i], -1) for i in nodes])
        parents += tuple(range(len(nodes) - 1, len(nodes) - 1 + padding))
        return sent._replace(
            parents=() if is_chain(parents) else parents,
            layers=layers + ("",) * padding if len(set(layers)) > 1 else (),
        )


def _discounted(probs: Sequence[float]) -> tuple[float, ...]:
    """Return the probabilities with their odds divided by _ODDS_DIVISOR."""
    return tuple([p / (_ODDS_DIVISOR - (_ODDS_DIVISOR - 1.0) * p) for p in probs])
