"""Every job in every way: side by side where ways can stop between steps, else right after one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from suffixsvc_driver.targets import Target

from suffixsvc_bench.decode.figures import Pair
from suffixsvc_bench.decode.jobs import Job, Workload
from suffixsvc_bench.decode.outcome import Outcome
from suffixsvc_bench.decode.prefill import Prefill
from suffixsvc_bench.decode.turns import in_turns
from suffixsvc_bench.decode.variants import Stepwise, Variant, Whole

__all__ = ["run_workload"]

OnAnswer = Callable[[str, str], None]


def run_workload(
    workload: Workload,
    reference: Stepwise,
    stepwise: Sequence[Stepwise],
    whole: Sequence[Whole],
    targets: Sequence[Target],
    rounds: int,
    prefill: Prefill,
    on_answer: OnAnswer = lambda variant, job: None,
) -> dict[str, list[Pair]]:
    """Pairs by name of the way.

    The reference and the stepwise ways answer a job side by side, a few tokens of each in turn; from job to
    job another one goes first, and each moves on to the next target, lest one has the better memory pages
    for good. Ways that answer as a whole do so right after the others, or before them in every second job.
    In every round each way begins again with what the workload says it remembers.

    Args:
        targets: of the same model, as many as there are ways that take turns, the reference included.
        prefill: makes all of them ready for a prompt.
        on_answer: called before each answer with the way's name and the job's key, and before a way begins.
    """
    beside = [reference, *stepwise]
    everybody: list[Variant] = [*beside, *whole]
    pairs: dict[str, list[Pair]] = {way.name: [] for way in everybody if way is not reference}
    for turn in range(rounds):
        for way in everybody:
            on_answer(way.name, "what it remembers")
            way.begin(workload.name, workload.warming, turn)
        for number, job in enumerate(workload.jobs):
            found: dict[str, Outcome] = {}
            if (number + turn) % 2:
                found |= _one_by_one(job, whole, on_answer)
            prefill(job.prompt_ids)
            found |= _side_by_side(job, beside, targets, number + turn, on_answer)
            if (number + turn) % 2 == 0:
                found |= _one_by_one(job, whole, on_answer)
            base = found[reference.name]
            for name, of in pairs.items():
                of.append(Pair(job.key, job.agent, found[name], base))
    return pairs


def _one_by_one(job: Job, ways: Sequence[Whole], on_answer: OnAnswer) -> dict[str, Outcome]:
    found = {}
    for way in ways:
        on_answer(way.name, job.key)
        found[way.name] = way.answer(job)
    return found


def _side_by_side(
    job: Job, ways: Sequence[Stepwise], targets: Sequence[Target], number: int, on_answer: OnAnswer
) -> dict[str, Outcome]:
    first = number % len(ways)
    turned = [*ways[first:], *ways[:first]]
    for way in turned:
        on_answer(way.name, job.key)
    answers = [way.answering(job, targets[i]) for i, way in enumerate(turned)]
    return {way.name: outcome for way, outcome in zip(turned, in_turns(answers), strict=True)}
