"""Execution of a workload: every job answered by every variant, interleaved where variants can pause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any, Final

from suffixsvc.errors import SuffixError
from suffixsvc_bench.decode.variants.variants import StepwiseVariant, WholeVariant
from suffixsvc_bench.decode.workload.interleaving import interleave
from suffixsvc_bench.decode.workload.jobs import Job, Workload
from suffixsvc_bench.decode.workload.prefill import Prefill
from suffixsvc_bench.speculation.paired import Outcome, Pair
from suffixsvc_driver.targets import Target

#: job key of the calls of ``on_answer`` before a variant's warm-up
WARMUP: Final = "warm-up"

OnAnswer = Callable[[str, str], None]
OnFailure = Callable[[str, SuffixError], None]


def run_workload(
    workload: Workload,
    reference: StepwiseVariant,
    stepwise: Sequence[StepwiseVariant],
    whole: Sequence[WholeVariant],
    targets: Sequence[Target],
    rounds: int,
    prefill: Prefill,
    on_answer: OnAnswer = lambda variant, job: None,
    on_failure: OnFailure = lambda variant, error: None,
) -> dict[str, list[Pair]]:
    """Answer every job of a workload with every variant; return the pairs by variant name.

    The reference and the stepwise variants answer a job interleaved, a few tokens of each at a time. From job
    to job another variant goes first and each variant uses the next target, so that no variant always has the
    better memory pages. Whole variants answer before or after them, alternating by job. In every round each
    variant starts from the workload's warm-up only. Whole variants are external programs: one that fails has
    no pairs, and the run continues without it.

    Args:
        reference: usually plain decoding.
        stepwise, whole: variants to compare.
        targets: targets of the same model, one for each of reference and stepwise variants.
        rounds: repetitions of the whole workload.
        prefill: prepares all targets for a prompt.
        on_answer: called before each answer with the variant's name and the job's key, and with
            :data:`WARMUP` before a variant starts.
        on_failure: called with the name and the error of a variant that is excluded from then on.
    """
    interleaved, peers = [reference, *stepwise], list(whole)
    pairs: dict[str, list[Pair]] = {variant.name: [] for variant in (*stepwise, *whole)}

    def with_peers(what: str, call: Callable[[WholeVariant], Any]) -> dict[str, Any]:
        """Call each peer; exclude those that fail."""
        found = {}
        for peer in list(peers):
            on_answer(peer.name, what)
            try:
                found[peer.name] = call(peer)
            except SuffixError as error:
                peers.remove(peer)
                del pairs[peer.name]
                on_failure(peer.name, error)
        return found

    for number in range(rounds):
        for variant in interleaved:
            on_answer(variant.name, WARMUP)
            variant.begin(workload.name, workload.warmup, number)
        with_peers(WARMUP, methodcaller("begin", workload.name, workload.warmup, number))
        for turn, job in enumerate(workload.jobs, number):
            answer = methodcaller("answer", job)
            found = with_peers(job.key, answer) if turn % 2 else {}
            prefill(job.prompt_ids)
            found |= _interleaved(job, interleaved, targets, turn, on_answer)
            found |= {} if turn % 2 else with_peers(job.key, answer)
            base = found.pop(reference.name)
            for name, outcome in found.items():
                if name in pairs:
                    pairs[name].append(Pair(job.key, job.agent, outcome, base, len(job.prompt_ids)))
    return pairs


def _interleaved(
    job: Job, variants: Sequence[StepwiseVariant], targets: Sequence[Target], number: int, on_answer: OnAnswer
) -> dict[str, Outcome]:
    first = number % len(variants)
    rotated = [*variants[first:], *variants[:first]]
    for variant in rotated:
        on_answer(variant.name, job.key)
    answers = [variant.answering(job, targets[i]) for i, variant in enumerate(rotated)]
    return {variant.name: outcome for variant, outcome in zip(rotated, interleave(answers), strict=True)}
