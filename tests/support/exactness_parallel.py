"""Exactness checks of generations in shared batches, by :mod:`suffixsvc_driver.decode.exactness`.

(a) All operations of the target are repeated in order on an empty target: prompts, shared batches,
kept tokens. Each emitted token must be sampled again, bit for bit, so the run must have begun with
an empty target.

(b) Each text is forced through a separate context, one token at a time.
"""

from __future__ import annotations

from dataclasses import replace

from suffixsvc_driver.decode.exactness import Exactness, flips_alone
from suffixsvc_driver.decode.generation import Result
from suffixsvc_driver.drafts.tree import rows_of
from suffixsvc_driver.sampling.sampler import Sampler
from suffixsvc_driver.targets.parallel import ParallelLlama
from suffixsvc_driver.targets.single import LlamaTarget
from support.recorded_runs import Began, Filled, Parked, RecordedRun, Stepped

__all__ = ["check_parallel"]


def check_parallel(target: ParallelLlama, run: RecordedRun) -> Exactness:
    """Run both checks on the results of a run; afterwards the target holds the texts of the run
    and nothing else.

    Args:
        target: the target of the run while it was empty, or one with the same model and settings.
        run: without a failed batch, whose effect is unknown.
    """
    sampled = any(not result.sampling.greedy for result in run.results)
    found = Exactness(run.tokens, _same_operations(target, run), (), sampled)
    with LlamaTarget(target.model, replace(target.settings, slots=1, branches=0)) as alone:
        for result in run.results:
            found += Exactness(0, 0, tuple(flips_alone(alone, result)))
    return found


def _same_operations(target: ParallelLlama, run: RecordedRun) -> int:
    """Return the number of tokens that were sampled again."""
    target.forget()
    equal = 0
    samplers: dict[int, Sampler | None] = {}  # by lane
    positions: dict[int, int] = {}
    for operation in run.operations:
        match operation:
            case Began(lane, request, prompt_ids, principal):
                target.begin(lane, prompt_ids, principal)
                outcome = run.outcomes[request]
                samplers[lane] = None
                if isinstance(outcome, Result):
                    samplers[lane] = target.sampler(outcome.sampling, prompt_ids)
                positions[lane] = len(prompt_ids)
            case Filled(lane):
                target.prefill(lane)
            case Parked(lanes):
                target.park(lanes)
            case Stepped(steps, emitted):
                logits = target.propose(steps)
                for (lane, drafted, parents), rows, tokens in zip(steps, logits, emitted, strict=True):
                    sampler = samplers[lane]
                    if tokens is None or sampler is None:
                        continue
                    for row, token in zip(rows_of(drafted, parents, tokens), tokens, strict=True):
                        equal += sampler.sample(rows[row], positions[lane]) == token
                        sampler.accept(token)
                        positions[lane] += 1
                target.commit(steps, emitted)
    return equal
