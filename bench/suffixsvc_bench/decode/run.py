"""Execution of a workload: every job answered by every variant, interleaved where variants can pause."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from suffixsvc.errors import SuffixError
from suffixsvc_bench.decode.figures import Pair
from suffixsvc_bench.decode.variants.variants import StepwiseVariant, WholeVariant
from suffixsvc_bench.decode.workload.interleaving import interleave
from suffixsvc_bench.decode.workload.jobs import Job, Workload
from suffixsvc_bench.decode.workload.outcome import Outcome
from suffixsvc_bench.decode.workload.prefill import Prefill
from suffixsvc_driver.targets import Target

__all__ = ["WARMUP", "run_workload"]

#: job key of the calls of ``on_answer`` before a variant's warm-up
WARMUP: Final = "warm-up"

T = TypeVar("T")
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
    interleaved = [reference, *stepwise]
    peers = _Peers(whole, on_answer, on_failure)
    pairs: dict[str, list[Pair]] = {variant.name: [] for variant in (*stepwise, *whole)}
    for round_number in range(rounds):
        for variant in interleaved:
            on_answer(variant.name, WARMUP)
            variant.begin(workload.name, workload.warmup, round_number)
        peers.begin(workload, round_number)
        for number, job in enumerate(workload.jobs):
            found: dict[str, Outcome] = {}
            if (number + round_number) % 2:
                found |= peers.answer(job)
            prefill(job.prompt_ids)
            found |= _interleaved(job, interleaved, targets, number + round_number, on_answer)
            if (number + round_number) % 2 == 0:
                found |= peers.answer(job)
            base = found[reference.name]
            for name, outcome in found.items():
                if name != reference.name:
                    pairs[name].append(Pair(job.key, job.agent, outcome, base))
    return {name: of for name, of in pairs.items() if name not in peers.failed}


class _Peers:
    """Whole variants without those that failed."""

    def __init__(self, variants: Sequence[WholeVariant], on_answer: OnAnswer, on_failure: OnFailure) -> None:
        self._variants = list(variants)
        self._on_answer, self._on_failure = on_answer, on_failure
        self.failed: set[str] = set()

    def begin(self, workload: Workload, round_number: int) -> None:
        self._each(WARMUP, lambda variant: variant.begin(workload.name, workload.warmup, round_number))

    def answer(self, job: Job) -> dict[str, Outcome]:
        return self._each(job.key, lambda variant: variant.answer(job))

    def _each(self, what: str, call: Callable[[WholeVariant], T]) -> dict[str, T]:
        found = {}
        for variant in list(self._variants):
            self._on_answer(variant.name, what)
            try:
                found[variant.name] = call(variant)
            except SuffixError as error:
                self._variants.remove(variant)
                self.failed.add(variant.name)
                self._on_failure(variant.name, error)
        return found


def _interleaved(
    job: Job, variants: Sequence[StepwiseVariant], targets: Sequence[Target], number: int, on_answer: OnAnswer
) -> dict[str, Outcome]:
    first = number % len(variants)
    rotated = [*variants[first:], *variants[:first]]
    for variant in rotated:
        on_answer(variant.name, job.key)
    answers = [variant.answering(job, targets[i]) for i, variant in enumerate(rotated)]
    return {variant.name: outcome for variant, outcome in zip(rotated, interleave(answers), strict=True)}
