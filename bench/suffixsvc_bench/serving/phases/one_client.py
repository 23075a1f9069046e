"""One client: every job answered by every subject, one right after the other.

Neighbours in the list of subjects are compared closely: the order is reversed from job to job, so that each
goes first equally often and the machine's drift affects both. Servers that are not timed are idle.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

from suffixsvc.errors import SuffixError
from suffixsvc_bench.decode.workload.jobs import Workload
from suffixsvc_bench.serving.servers.client import Reply
from suffixsvc_bench.serving.servers.idle import IdleWatch
from suffixsvc_bench.serving.servers.subject import Subject

#: called with the name of a subject and what it does next
OnAnswer = Callable[[str, str], None]
#: what a subject does at the start of a round
WARMUP = "warm-up"


def begin(subject: Subject, workload: Workload) -> None:
    """Start a subject and let it answer the warm-up; those that do not learn only read its prompts.

    So all have the same prompts in their KV caches, and their pages in memory.

    Raises:
        ServiceUnavailableError: it does not start, or fails.
    """
    subject.restart()
    for answered in workload.warmup:
        subject.answer(answered.job, None if subject.learns else 1)


def pids(subjects: Sequence[Subject], but: Subject) -> dict[str, int]:
    """Processes of all subjects except one, by name."""
    return {each.name: each.pid for each in subjects if each is not but and each.pid is not None}


def run_one_client(
    workload: Workload,
    subjects: Sequence[Subject],
    rounds: int,
    watch: IdleWatch,
    on_answer: OnAnswer,
    on_failure: Callable[[str, SuffixError], None],
    *,
    started: bool = False,
) -> Mapping[str, list[Reply]]:
    """Return the replies by subject, job by job and round by round.

    Args:
        rounds: repetitions of the workload, each with new processes.
        watch: sees the processes that should be idle.
        on_failure: called with the error of an optional subject, which is excluded from then on.
        started: the subjects run and have answered the workload's warm-up: the first round uses them as
            they are.

    Raises:
        SuffixError: a subject that is not optional fails.
    """
    replies: dict[str, list[Reply]] = {subject.name: [] for subject in subjects}
    taking_part = list(subjects)

    def attempt(subject: Subject, work: Callable[[Subject], Any]) -> Any:
        try:
            return work(subject)
        except SuffixError as error:
            if not subject.optional:
                raise
            subject.stop()
            taking_part.remove(subject)
            del replies[subject.name]
            on_failure(subject.name, error)
            return None

    for number in range(rounds):
        for subject in () if started and number == 0 else tuple(taking_part):
            on_answer(subject.name, WARMUP)
            attempt(subject, partial(begin, workload=workload))
        for turn, job in enumerate(workload.jobs, number):
            for subject in taking_part[:: -1 if turn % 2 else 1]:
                on_answer(subject.name, job.key)
                with watch.during(pids(taking_part, subject)):
                    reply = attempt(subject, methodcaller("answer", job))
                if reply is not None:
                    replies[subject.name].append(reply)
    return replies
