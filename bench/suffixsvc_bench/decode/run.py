"""Every job in every way: side by side where ways can stop between steps, else right after one another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from suffixsvc_driver.targets import Target

from suffixsvc.errors import SuffixError
from suffixsvc_bench.decode.figures import Pair
from suffixsvc_bench.decode.jobs import Job, Workload
from suffixsvc_bench.decode.outcome import Outcome
from suffixsvc_bench.decode.prefill import Prefill
from suffixsvc_bench.decode.turns import in_turns
from suffixsvc_bench.decode.variants import Stepwise, Whole

__all__ = ["run_workload"]

T = TypeVar("T")
OnAnswer = Callable[[str, str], None]
OnFailure = Callable[[str, SuffixError], None]


def run_workload(
    workload: Workload,
    reference: Stepwise,
    stepwise: Sequence[Stepwise],
    whole: Sequence[Whole],
    targets: Sequence[Target],
    rounds: int,
    prefill: Prefill,
    on_answer: OnAnswer = lambda variant, job: None,
    on_failure: OnFailure = lambda variant, error: None,
) -> dict[str, list[Pair]]:
    """Pairs by name of the way.

    The reference and the stepwise ways answer a job side by side, a few tokens of each in turn; from job to
    job another one goes first, and each moves on to the next target, lest one has the better memory pages
    for good. Ways that answer as a whole do so right after the others, or before them in every second job.
    In every round each way begins again with what the workload says it remembers. What answers as a whole is
    somebody else's program: one that fails has no pairs, and the others go on.

    Args:
        targets: of the same model, as many as there are ways that take turns, the reference included.
        prefill: makes all of them ready for a prompt.
        on_answer: called before each answer with the way's name and the job's key, and before a way begins.
        on_failure: told of a way that is left out from there on, and why.
    """
    beside = [reference, *stepwise]
    peers = _Peers(whole, on_answer, on_failure)
    pairs: dict[str, list[Pair]] = {way.name: [] for way in (*stepwise, *whole)}
    for turn in range(rounds):
        for way in beside:
            on_answer(way.name, "what it remembers")
            way.begin(workload.name, workload.warming, turn)
        peers.begin(workload, turn)
        for number, job in enumerate(workload.jobs):
            found: dict[str, Outcome] = {}
            if (number + turn) % 2:
                found |= peers.answer(job)
            prefill(job.prompt_ids)
            found |= _side_by_side(job, beside, targets, number + turn, on_answer)
            if (number + turn) % 2 == 0:
                found |= peers.answer(job)
            base = found[reference.name]
            for name, outcome in found.items():
                if name != reference.name:
                    pairs[name].append(Pair(job.key, job.agent, outcome, base))
    return {name: of for name, of in pairs.items() if name not in peers.failed}


class _Peers:
    """Ways that answer as a whole, without those that failed."""

    def __init__(self, ways: Sequence[Whole], on_answer: OnAnswer, on_failure: OnFailure) -> None:
        self._ways = list(ways)
        self._on_answer, self._on_failure = on_answer, on_failure
        self.failed: set[str] = set()

    def begin(self, workload: Workload, turn: int) -> None:
        self._each("what it remembers", lambda way: way.begin(workload.name, workload.warming, turn))

    def answer(self, job: Job) -> dict[str, Outcome]:
        return self._each(job.key, lambda way: way.answer(job))

    def _each(self, what: str, ask: Callable[[Whole], T]) -> dict[str, T]:
        found = {}
        for way in list(self._ways):
            self._on_answer(way.name, what)
            try:
                found[way.name] = ask(way)
            except SuffixError as error:
                self._ways.remove(way)
                self.failed.add(way.name)
                self._on_failure(way.name, error)
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
