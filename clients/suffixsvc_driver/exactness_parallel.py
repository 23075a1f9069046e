"""The checks of :mod:`suffixsvc_driver.exactness`, of generations that shared their batches.

(a) All that the target did is done again, in order, from an empty memory on: prompts, shared batches, what
was
    kept of them. Each written token must come out again, bit for bit. So the run that is checked must have
    begun with an empty target.
(b) Each text by itself, a token at a time, on a context of its own.
"""

from __future__ import annotations

from dataclasses import replace

from suffixsvc_driver.chooser import Chooser
from suffixsvc_driver.exactness import Exactness, flips_alone
from suffixsvc_driver.generation import Result
from suffixsvc_driver.parallel import Began, Filled, Run, Stepped
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.tree import rows_of

__all__ = ["check_parallel"]


def check_parallel(target: ParallelLlama, run: Run) -> Exactness:
    """Recompute a run both ways, the tokens of its results. Afterwards the target holds the run's texts and
    nothing else.

    Args:
        run: began on this target, or on one with the same model and settings, while that was empty. No batch
            of it may have failed: it is not known what that left undone.
    """
    sampled = any(not result.sampling.greedy for result in run.results)
    found = Exactness(run.tokens, _same_operations(target, run), (), sampled)
    with LlamaTarget(target.model, replace(target.settings, slots=1, branches=0)) as alone:
        for result in run.results:
            found += Exactness(0, 0, tuple(flips_alone(alone, result)))
    return found


def _same_operations(target: ParallelLlama, run: Run) -> int:
    """How many tokens came out again."""
    target.forget()
    equal = 0
    choosers: dict[int, Chooser | None] = {}  # by lane
    positions: dict[int, int] = {}
    for operation in run.operations:
        match operation:
            case Began(lane, request, prompt_ids):
                target.begin(lane, prompt_ids)
                outcome = run.outcomes[request]
                choosers[lane] = None
                if isinstance(outcome, Result):
                    choosers[lane] = target.chooser(outcome.sampling, prompt_ids)
                positions[lane] = len(prompt_ids)
            case Filled(lane):
                target.prefill(lane)
            case Stepped(steps, emitted):
                logits = target.propose_many(steps)
                for (lane, drafted, parents), rows, tokens in zip(steps, logits, emitted, strict=True):
                    chooser = choosers[lane]
                    if tokens is None or chooser is None:
                        continue
                    for row, token in zip(rows_of(drafted, parents, tokens), tokens, strict=True):
                        equal += chooser.choose(rows[row], positions[lane]) == token
                        chooser.accept(token)
                        positions[lane] += 1
                target.settle_many(steps, emitted)
    return equal
