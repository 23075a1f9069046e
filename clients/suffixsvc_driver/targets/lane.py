"""One generation on one slot: what goes into the next batch, and what of it stays.

What is in the slot's KV, always: every token but the newest one, and but those that have to be computed
again because a recurrent state could not be cut between them.

    prompt p0 .. pn-1          KV: p0 .. pn-2           next batch: [pn-1, d1 .. dk] at position n-1
    emitted t1 .. tj           KV: p0 .. pn-1, t1 .. tj-1       cut at n - 1 + j
      or, with a checkpoint    KV: p0 .. pn-2           next batch: [pn-1, t1 .. tj-1, tj, d1 ..]
                                                                     (again, silent)   (verified)

Drafts may be trees where the KV can be cut (:mod:`suffixsvc_driver.targets.branches`). Of the path that is
taken only what lay first in the batch stays, in one piece behind the root; the rest is computed again, in
front of the next batch. In cells that lie apart the text would round differently from then on:

    batch  [r, a, b, c, d]     a b is the first path, c d another one
    taken   r a b              KV: .. r a b     next batch: [t, ..]
    taken   r c d              KV: .. r         next batch: [c, d, t, ..]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suffixsvc.errors import LimitExceededError, ModelError
from suffixsvc.types import FloatArray
from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.targets import Batch, StopRule, Verification
from suffixsvc_driver.targets.branches import Branches
from suffixsvc_driver.targets.llama_context import LlamaContext, Part
from suffixsvc_driver.targets.rollback import Rollback
from suffixsvc_driver.targets.slots import Slot
from suffixsvc_driver.tree import branches_of, check_parents, follow, is_chain, leaf_count

__all__ = ["Lane"]


class Lane:
    """The generation that runs on ``slot``. Not thread-safe.

    Args:
        branches: sequences for the leaves of its trees.
        in_order: keep the text's cells in its own order, as above. Where other lanes write into the same
            memory that cannot be had, and paths stay as they are.
    """

    def __init__(
        self,
        context: LlamaContext,
        rollback: Rollback,
        eog_ids: frozenset[int],
        slot: Slot,
        branches: Branches,
        *,
        in_order: bool = True,
    ) -> None:
        self._context, self._rollback, self._eog_ids = context, rollback, eog_ids
        self._branches, self._in_order = branches, in_order
        self.slot = slot
        self._last = -1
        self._again: list[int] = []
        self._written: list[int] = []
        self._settled = 0  # tokens written of which the book is closed

    @property
    def position(self) -> int:
        """Position of the newest token."""
        return len(self.slot.tokens) + len(self._again)

    @property
    def replay(self) -> int:
        """Tokens in front of the newest one that the next batch computes again."""
        return len(self._again)

    @property
    def max_branches(self) -> int:
        """Leaves that a drafted tree may have."""
        return self._branches.most if self._rollback.cuts_anywhere else 1

    def release(self) -> None:
        """The slot is about to be cut or filled anew."""
        self._branches.release()

    def begin(self, slot: Slot, last: int) -> None:
        """A generation starts behind what the slot holds and ``last``."""
        self.slot, self._last = slot, last
        self._again, self._written, self._settled = [], [], 0

    def plan(self, drafted: Sequence[int], parents: Sequence[int] = ()) -> Part:
        """The batch that verifies ``drafted``; logits from the newest token on.

        Raises:
            InvalidInputError: ``parents`` do not make a tree of them.
            LimitExceededError: a tree with too many leaves.
        """
        tokens = (*self._again, self._last, *drafted)
        start, silent = len(self.slot.tokens), len(self._again)
        if not parents:
            return Part(self.slot.index, start, tokens, silent)
        check_parents(parents, len(drafted))
        if is_chain(parents):
            return Part(self.slot.index, start, tokens, silent)
        if leaf_count(parents) > self.max_branches:
            raise LimitExceededError(
                "a drafted tree has too many leaves",
                expected=f"at most {self.max_branches}",
                got=leaf_count(parents),
                remedy="Give the target more branches.",
            )
        return self._tree(start, tokens, silent, tuple(parents))

    def _tree(self, start: int, tokens: tuple[int, ...], silent: int, parents: tuple[int, ...]) -> Part:
        index = self.slot.index
        leaves = tuple(branches_of(parents))
        return Part(index, start, tokens, silent, parents, leaves, self._branches.sequences(index))

    def prepare(self, part: Part) -> None:
        """Before the batch is computed: see to it that its drafts can go again."""
        self._rollback.before(part.slot, len(part.tokens) > part.silent + 1)
        if part.parents:
            self._branches.join(part.slot, part.start, leaf_count(part.parents))

    def undo(self, part: Part) -> None:
        """The batch could not be computed, or not be judged: back to before it, if need be by computing the
        text again.

        Raises:
            ModelError: that fails too. The slot is empty.
        """
        del self._written[self._settled :]
        self._branches.release()
        try:
            self._rollback.after(part.slot, part.start, 0)
        except ModelError:
            self._context.cut(part.slot, 0)
            tokens = tuple(self.slot.tokens)
            self.slot.truncate(0)
            self.fill(tokens)

    def fill(self, tokens: Sequence[int]) -> None:
        """Append tokens without a look at what the model thinks of them.

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

    def judge(
        self,
        rows: Callable[[int], FloatArray],
        drafted: Sequence[int],
        chooser: Chooser,
        max_emit: int,
        stop: StopRule | None = None,
        parents: Sequence[int] = (),
    ) -> Verification:
        """Which of the drafted tokens are the model's own choices, and the one behind them.

        Args:
            rows: logits behind the newest token (0) and behind each drafted one (1 ..).
            chooser: of this generation; it is told every token that is written.
            parents: of a tree.

        Raises:
            What the chooser or ``stop`` raises; the chooser is then as before.
        """
        steps = zip(parents, drafted, strict=True) if parents else ()
        child = {step: i for i, step in enumerate(steps, start=1)}
        emitted: list[int] = []
        accepted = row = 0
        stopped = agrees = True
        try:
            while agrees:
                token = chooser.choose(rows(row), self.position + len(emitted) + 1)
                chooser.accept(token)
                emitted.append(token)
                self._written.append(token)
                if parents:
                    row = child.get((row - 1, token), 0)
                    agrees = row > 0
                else:
                    agrees = row < len(drafted) and drafted[row] == token
                    row += 1
                accepted += agrees
                stopped = stop is not None and stop(self._written)
                if stopped or token in self._eog_ids or len(emitted) >= max_emit:
                    break
        except BaseException:
            chooser.take_back(len(emitted))
            raise
        return Verification(tuple(emitted), accepted, stopped)

    def settle(self, part: Part, emitted: Sequence[int]) -> None:
        """The computed batch gave these tokens: keep what they were computed from, forget the rest."""
        self._settled = len(self._written)
        if part.parents:
            drafted = part.tokens[-len(part.parents) :]
            path = tuple(follow(drafted, part.parents, emitted[:-1]))
            kept = tuple(i for i, node in enumerate(path) if node == i) if self._in_order else path
            self._settle_tree(part, kept)
            self._again, self._last = [drafted[i] for i in path[len(kept) :]], emitted[-1]
            return
        keep = part.silent + len(emitted)
        if keep < len(part.tokens):
            held = self._rollback.after(part.slot, part.start, keep) - part.start
        else:
            held = keep
        # a batch of which nothing is left did not happen, as far as computing it all again goes
        if held:
            self.slot.extend(Batch(part.start, part.tokens), held)
        self._again = list(part.tokens[held:keep])
        self._last = emitted[-1]

    def _settle_tree(self, part: Part, kept: tuple[int, ...]) -> None:
        root = part.start + len(part.tokens) - len(part.parents) - 1
        self._branches.settle(root, len(kept), part.leaves[kept[-1]][0] if kept else 0)
        self.slot.extend(Batch(part.start, part.tokens, part.parents, kept), 0)

    def repeat(self, batch: Batch) -> None:
        """Compute a batch of the slot's history again, without logits, and keep of it what stayed then."""
        if not batch.parents:
            self.fill(batch.token_ids)
            return
        part = self._tree(batch.start, batch.token_ids, len(batch.token_ids), batch.parents)
        self._branches.join(part.slot, part.start, leaf_count(part.parents))
        self._context.decode_parts([part])
        self._settle_tree(part, batch.kept)
