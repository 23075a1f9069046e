"""Lane: one generation on one slot. Plans its batches, verifies drafts, and commits the accepted tokens.

Invariant: the slot's KV holds every token except the newest one, and except tokens that have to be replayed
because a recurrent state could not be cut between them.

    prompt p0 .. pn-1          KV: p0 .. pn-2           next batch: [pn-1, d1 .. dk] at position n-1
    emitted t1 .. tj           KV: p0 .. pn-1, t1 .. tj-1       cut at n - 1 + j
      or, with a checkpoint    KV: p0 .. pn-2           next batch: [pn-1, t1 .. tj-1, tj, d1 ..]
                                                                     (replayed)     (verified)

Drafts may be trees if the KV can be cut (:mod:`suffixsvc_driver.targets.branches`). Of the accepted path, the
tokens that were first in the batch are kept, contiguous with the root; the others are replayed at the start
of the next batch. In scattered cells the text would round differently from then on:

    batch     [r, a, b, c, d]     a b is the first path, c d another one
    accepted   r a b              KV: .. r a b     next batch: [t, ..]
    accepted   r c d              KV: .. r         next batch: [c, d, t, ..]
"""

from __future__ import annotations

from collections.abc import Sequence

from suffixsvc.errors import LimitExceededError, ModelError
from suffixsvc_driver.drafts.events import StepResult, TokenLogprobs
from suffixsvc_driver.drafts.tree import branches_of, check_parents, follow, is_chain, leaf_count
from suffixsvc_driver.sampling.logprobs import token_logprobs
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.targets import Batch, LaneStep
from suffixsvc_driver.targets.branches import Branches
from suffixsvc_driver.targets.llama.context import LlamaContext, Part
from suffixsvc_driver.targets.rollback import Rollback
from suffixsvc_driver.targets.slots import Slot


class Lane:
    """The generation that runs on ``slot``. Not thread-safe.

    Args:
        branches: sequences for the leaves of its trees.
    """

    def __init__(
        self,
        context: LlamaContext,
        rollback: Rollback,
        eog_ids: frozenset[int],
        slot: Slot,
        branches: Branches,
    ) -> None:
        self._context, self._rollback, self._eog_ids = context, rollback, eog_ids
        self._branches = branches
        self.slot = slot
        #: largest number of leaves of a drafted tree
        self.max_branches = branches.max_leaves if rollback.cuts_anywhere else 1
        self._last = -1
        self._again: list[int] = []
        self._emitted: list[int] = []
        self._committed = 0  # number of emitted tokens that are committed

    @property
    def position(self) -> int:
        """Position of the newest token."""
        return len(self.slot.tokens) + len(self._again)

    @property
    def replay(self) -> int:
        """Number of tokens before the newest one that the next batch computes again."""
        return len(self._again)

    def release(self) -> None:
        """Drop the branches, before the slot is cut or refilled."""
        self._branches.release()

    def begin(self, slot: Slot, last: int) -> None:
        """Start a generation after the tokens of the slot and ``last``."""
        self.slot, self._last = slot, last
        self._again, self._emitted, self._committed = [], [], 0

    def plan(self, drafted: Sequence[int], parents: Sequence[int] = ()) -> Part:
        """Return the batch part that verifies ``drafted``; logits from the newest token on.

        Raises:
            InvalidInputError: ``parents`` are not a tree.
            LimitExceededError: a tree with too many leaves.
        """
        tokens = (*self._again, self._last, *drafted)
        start, logits_from = len(self.slot.tokens), len(self._again)
        if parents:
            check_parents(parents, len(drafted))
        if is_chain(parents):  # no parents are a chain, too
            return Part(self.slot.index, start, tokens, logits_from)
        if leaf_count(parents) > self.max_branches:
            raise LimitExceededError(
                "a drafted tree has too many leaves",
                expected=f"at most {self.max_branches}",
                got=leaf_count(parents),
                remedy="Give the target more branches.",
            )
        return self._tree(start, tokens, logits_from, tuple(parents))

    def _tree(self, start: int, tokens: tuple[int, ...], logits_from: int, parents: tuple[int, ...]) -> Part:
        index = self.slot.index
        leaves = tuple(branches_of(parents))
        return Part(index, start, tokens, logits_from, parents, leaves, self._branches.sequences(index))

    def prepare(self, part: Part) -> None:
        """Prepare the rollback of a part, before its batch is computed."""
        self._rollback.before(part.slot, len(part.tokens) > part.logits_from + 1)
        if part.parents:
            self._branches.join(part.slot, part.start, leaf_count(part.parents))

    def undo(self, part: Part) -> None:
        """Restore the state before a part that could not be computed or verified, if necessary by computing
        the text again.

        Raises:
            ModelError: that fails too. The slot is empty.
        """
        del self._emitted[self._committed :]
        self._branches.release()
        try:
            self._rollback.after(part.slot, part.start, 0)
        except ModelError:
            self._context.cut(part.slot, 0)
            tokens = tuple(self.slot.tokens)
            self.slot.truncate(0)
            self.fill(tokens)

    def fill(self, tokens: Sequence[int]) -> None:
        """Append tokens without logits.

        Raises:
            ModelError: llama.cpp failed. The slot is empty.
        """
        size = self._context.settings.batch_size
        for at in range(0, len(tokens), size):
            piece = tuple(tokens[at : at + size])
            part = Part(self.slot.index, len(self.slot.tokens), piece, len(piece))
            try:
                self._context.decode_part(part)
            except ModelError:
                self._context.cut(part.slot, 0)
                self.slot.truncate(0)
                raise
            self.slot.extend(Batch(part.start, piece), len(piece))

    def score(self, tokens: Sequence[int], following: Sequence[int], count: int) -> list[TokenLogprobs]:
        """Append tokens with logits, at most ``max_width``; return the log probabilities of the token after
        each.

        Args:
            tokens: at least one.
            following: the token after them; none if it is the newest one.
            count: number of most probable tokens to report.

        Raises:
            ModelError: llama.cpp failed. The slot is empty.
        """
        part = Part(self.slot.index, len(self.slot.tokens), tuple(tokens))
        try:
            self._context.decode_part(part)
        except ModelError:
            self._context.cut(part.slot, 0)
            self.slot.truncate(0)
            raise
        self.slot.extend(Batch(part.start, part.tokens), len(part.tokens))
        after = [*tokens[1:], *(following or [self._last])]
        return [token_logprobs(self._context.logits(row), token, count) for row, token in enumerate(after)]

    def verify(self, step: LaneStep, sampler: Sampler, part: Part, offset: int) -> StepResult:
        """Verify a draft: sample at each accepted token, until a sampled token was not drafted.

        Args:
            sampler: of this generation; it accepts every emitted token.
            part: the computed part.
            offset: index of its first token in the batch.

        Raises:
            GrammarError, ModelError: no token can be sampled. The sampler is unchanged; the same holds for
                an error of the stop rule.
        """
        stop, first = step.stop, offset + part.logits_from
        child: dict[tuple[int, int], int] = {}
        if step.drafted:
            parents = part.parents or range(-1, len(step.drafted) - 1)
            # (row of the parent, token) -> row of the token
            steps = zip(parents, step.drafted, strict=True)
            child = {(parent + 1, token): row for row, (parent, token) in enumerate(steps, start=1)}
        emitted: list[int] = []
        wanted, logprobs = sampler.sampling.logprobs, list[TokenLogprobs]()
        accepted = row = 0
        stopped = agrees = True
        try:
            while agrees:
                logits = self._context.logits(first + row)
                token = sampler.sample(logits, self.position + len(emitted) + 1)
                sampler.accept(token)
                if wanted is not None:
                    logprobs.append(token_logprobs(logits, token, wanted))
                emitted.append(token)
                self._emitted.append(token)
                row = child.get((row, token), 0)
                agrees = row > 0
                accepted += agrees
                stopped = stop is not None and stop(self._emitted)
                if stopped or token in self._eog_ids or len(emitted) >= step.max_emit:
                    break
        except BaseException:
            sampler.rollback(len(emitted))
            raise
        return StepResult(tuple(emitted), accepted, stopped=stopped, logprobs=tuple(logprobs))

    def commit(self, part: Part, emitted: Sequence[int]) -> None:
        """Commit a verified part: keep the KV that the emitted tokens were computed from, drop the rest."""
        self._committed = len(self._emitted)
        if part.parents:
            drafted = part.tokens[-len(part.parents) :]
            path = tuple(follow(drafted, part.parents, emitted[:-1]))
            kept = tuple(i for i, node in enumerate(path) if node == i)
            self._commit_tree(part, kept)
            self._again, self._last = [drafted[i] for i in path[len(kept) :]], emitted[-1]
            return
        keep = part.logits_from + len(emitted)
        if keep < len(part.tokens):
            held = self._rollback.after(part.slot, part.start, keep) - part.start
        else:
            held = keep
        # a batch of which nothing is kept is not part of the history
        if held:
            self.slot.extend(Batch(part.start, part.tokens), held)
        self._again = list(part.tokens[held:keep])
        self._last = emitted[-1]

    def _commit_tree(self, part: Part, kept: tuple[int, ...]) -> None:
        root = part.start + len(part.tokens) - len(part.parents) - 1
        self._branches.commit(root, len(kept), part.leaves[kept[-1]][0] if kept else 0)
        self.slot.extend(Batch(part.start, part.tokens, part.parents, kept), 0)

    def repeat(self, batch: Batch) -> None:
        """Compute a batch of the slot's history again, without logits, and keep the same tokens."""
        if not batch.parents:
            self.fill(batch.token_ids)
            return
        part = self._tree(batch.start, batch.token_ids, len(batch.token_ids), batch.parents)
        self._branches.join(part.slot, part.start, leaf_count(part.parents))
        self._context.decode_parts([part])
        self._commit_tree(part, batch.kept)
