"""Every job in every way, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from suffixsvc_bench.decode.figures import Pair
from suffixsvc_bench.decode.jobs import Workload
from suffixsvc_bench.decode.variants import Outcome, Variant

__all__ = ["run_workload"]


def run_workload(
    workload: Workload,
    reference: Variant,
    variants: Sequence[Variant],
    rounds: int,
    on_answer: Callable[[str, str], None] = lambda variant, job: None,
) -> dict[str, list[Pair]]:
    """Pairs by name of the way.

    Every job is answered by the reference and by each way right after one another, in an order that turns
    round from job to job; in every round each way begins again with what the workload says it remembers.
    The reference answers twice where there are more than two ways, first and last, and its mean counts.

    Args:
        on_answer: called before each answer with the way's name and the job's key, and before a way begins.
    """
    pairs: dict[str, list[Pair]] = {variant.name: [] for variant in variants}
    for turn in range(rounds):
        for variant in (reference, *variants):
            on_answer(variant.name, "what it remembers")
            variant.begin(workload.name, workload.warming, turn)
        for number, job in enumerate(workload.jobs):
            found: dict[str, list[Outcome]] = {}
            for variant in _in_turn(reference, variants, number + turn):
                on_answer(variant.name, job.key)
                found.setdefault(variant.name, []).append(variant.answer(job))
            base = _mean(found[reference.name])
            for variant in variants:
                pairs[variant.name].append(Pair(job.key, job.agent, found[variant.name][0], base))
    return pairs


def _in_turn(reference: Variant, variants: Sequence[Variant], number: int) -> Iterator[Variant]:
    turned = [*variants[number % len(variants) :], *variants[: number % len(variants)]]
    if len(variants) > 2:
        yield from (reference, *turned, reference)
    elif number % 2:
        yield from (*turned, reference)
    else:
        yield from (reference, *turned)


def _mean(outcomes: Sequence[Outcome]) -> Outcome:
    if len(outcomes) == 1:
        return outcomes[0]
    first = outcomes[0]
    seconds = sum(o.seconds for o in outcomes) / sum(o.tokens for o in outcomes) * first.tokens
    return Outcome(first.tokens, seconds, first.steps, token_ids=first.token_ids)
