"""Several clients at once, one on each lane: tokens per second after all of them have begun to receive.

The prompts of a group are sent once before, with one token to generate, so that they are in the KV caches:
what is timed is the generation alone. The clients are threads of this process.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import zip_longest

from suffixsvc_bench.decode.workload.jobs import Job, Workload
from suffixsvc_bench.serving.phases.one_client import WARMUP, OnAnswer, begin, pids
from suffixsvc_bench.serving.servers.client import Reply
from suffixsvc_bench.serving.servers.idle import IdleWatch
from suffixsvc_bench.serving.servers.subject import Subject
from suffixsvc_bench.speculation.paired import Outcome


def groups_of(workloads: Sequence[Workload], size: int, most: int) -> list[list[Job]]:
    """Jobs of all workloads in turn, in groups of ``size``; a smaller group only if there is no other."""
    in_turn = zip_longest(*(workload.jobs for workload in workloads))
    jobs = [job for row in in_turn for job in row if job is not None]
    groups = [jobs[at : at + size] for at in range(0, len(jobs), size)]
    return [group for group in groups if len(group) == size or len(groups) == 1][:most]


def run_several_clients(
    workloads: Sequence[Workload],
    groups: Sequence[Sequence[Job]],
    subjects: Sequence[Subject],
    rounds: int,
    watch: IdleWatch,
    on_answer: OnAnswer,
) -> Mapping[str, list[Outcome]]:
    """Return the outcomes of the groups by subject, round by round.

    Args:
        workloads: their warm-ups are answered first.
        groups: jobs that are answered at the same time.
        rounds: repetitions of all groups, each with new processes.
        watch: sees the processes that should be idle.

    Raises:
        SuffixError: a subject fails.
    """
    warmup = {answered.job: answered for workload in workloads for answered in workload.warmup}
    everything = Workload("clients", (), tuple(warmup.values()))
    outcomes: dict[str, list[Outcome]] = {subject.name: [] for subject in subjects}
    for number in range(rounds):
        for subject in subjects:
            on_answer(subject.name, WARMUP)
            begin(subject, everything)
        for turn, group in enumerate(groups, number):
            for subject in subjects[:: -1 if turn % 2 else 1]:
                on_answer(subject.name, f"group {turn - number + 1}")
                _together(partial(subject.answer, max_tokens=1), group)
                with watch.during(pids(subjects, subject)):
                    replies = _together(subject.answer, group)
                outcomes[subject.name].append(after_all_began(replies))
    return outcomes


def _together(answer: Callable[[Job], Reply], group: Sequence[Job]) -> list[Reply]:
    with ThreadPoolExecutor(len(group)) as clients:
        return list(clients.map(answer, group))


def after_all_began(replies: Sequence[Reply]) -> Outcome:
    """Tokens that arrived after every client's first text, and the time until the last one had ended.

    Streams report tokens at their end only; an answer's tokens are divided as its characters are.
    """
    start = max(reply.began + reply.first_seconds for reply in replies)
    end = max(reply.began + reply.seconds for reply in replies)
    tokens = sum(reply.tokens * reply.share_after(start - reply.began) for reply in replies)
    return Outcome(
        round(tokens),
        end - start,
        drafted=sum(reply.drafted for reply in replies),
        accepted=sum(reply.accepted for reply in replies),
    )
