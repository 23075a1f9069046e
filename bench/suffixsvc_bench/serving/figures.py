"""Ratios of answers through HTTP, from pairs of replies to the same job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from suffixsvc_bench.decode.figures import Ratio, ratio_of
from suffixsvc_bench.decode.workload.jobs import Workload
from suffixsvc_bench.serving.phases.agreement import Agreement
from suffixsvc_bench.serving.phases.json_schema import SchemaPair
from suffixsvc_bench.serving.servers.client import Reply
from suffixsvc_bench.serving.servers.direct import DIRECT
from suffixsvc_bench.serving.servers.process import DRAFTS, LLAMA, NO_DRAFTS
from suffixsvc_bench.speculation.paired import Outcome, Pair

#: number of tokens of a text
CountTokens = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Row:
    """One subject on one workload.

    Attributes:
        whole: tokens per second from the request to the end, over the reference's; None without pairs.
        generation: the same from the first text on.
        tokens_per_second, generation_tokens_per_second: of all answers together.
        acceptance: accepted / drafted; 0 without drafts.
        cached: share of the prompts' tokens that were reused.
        agreement: comparison of the answers with the driver's.
    """

    workload: str
    subject: str
    whole: Ratio | None
    generation: Ratio | None
    tokens_per_second: float
    generation_tokens_per_second: float
    drafted: int
    accepted: int
    acceptance: float
    cached: float
    agreement: Agreement


@dataclass(frozen=True, slots=True)
class BestMode:
    """llama-server's fastest mode on a workload, chosen after the run, and this server over it."""

    workload: str
    mode: str
    whole: Ratio
    generation: Ratio | None


def whole(reply: Reply) -> Outcome:
    """The answer from the request to its end."""
    return Outcome(reply.tokens, reply.seconds, drafted=reply.drafted, accepted=reply.accepted)


def generation(reply: Reply, count: CountTokens) -> Outcome:
    """The answer after its first text: without the prompt's prefill."""
    first = max(1, count(reply.first_text))
    return Outcome(max(0, reply.tokens - first), reply.seconds - reply.first_seconds)


def pairs_of(
    jobs: Sequence[str],
    replies: Sequence[Reply],
    references: Sequence[Reply],
    outcome: Callable[[Reply], Outcome],
) -> list[Pair]:
    """Pairs of the answers to the same jobs; without those of a single token, which have no speed."""
    pairs = [
        Pair(job, "", outcome(reply), outcome(reference))
        for job, reply, reference in zip(jobs, replies, references, strict=True)
    ]
    return [pair for pair in pairs if pair.outcome.speed > 0 and pair.reference.speed > 0]


def ratio(
    jobs: Sequence[str],
    replies: Sequence[Reply],
    references: Sequence[Reply],
    outcome: Callable[[Reply], Outcome],
) -> Ratio | None:
    """Tokens per second over the reference's; None if no answer has a speed."""
    pairs = pairs_of(jobs, replies, references, outcome)
    return ratio_of(pairs) if pairs else None


def keys_of(workload: Workload, replies: Sequence[Reply]) -> list[str]:
    """Keys of the jobs that were answered, round by round."""
    return [job.key for job in workload.jobs] * (len(replies) // max(1, len(workload.jobs)))


def rows_of(
    workload: Workload,
    replies: Mapping[str, Sequence[Reply]],
    reference: str,
    agreements: Mapping[str, Agreement],
    count: CountTokens,
) -> list[Row]:
    """Summarise a workload, one row for each subject.

    Args:
        replies: by subject, job by job and round by round.
        reference: subject over which speeds are given.
        agreements: by subject.
    """
    references = replies[reference]
    jobs = keys_of(workload, references)
    rows = []
    for name, its in replies.items():
        total = Outcome.sum([whole(reply) for reply in its])
        generated = Outcome.sum([generation(reply, count) for reply in its])
        prompts = sum(reply.prompt_tokens for reply in its)
        rows.append(
            Row(
                workload.name,
                name,
                ratio(jobs, its, references, whole),
                ratio(jobs, its, references, lambda reply: generation(reply, count)),
                total.speed,
                generated.speed,
                total.drafted,
                total.accepted,
                total.accepted / total.drafted if total.drafted else 0.0,
                sum(reply.cached_tokens for reply in its) / prompts if prompts else 0.0,
                agreements[name],
            )
        )
    return rows


def best_mode(
    workload: Workload, replies: Mapping[str, Sequence[Reply]], count: CountTokens
) -> BestMode | None:
    """This server with drafts over the mode of llama-server that was the fastest on these answers.

    The choice after the run favours llama-server. None without llama-server.
    """
    totals = {
        name: Outcome.sum([whole(reply) for reply in its]).speed
        for name, its in replies.items()
        if name.startswith(LLAMA) and its
    }
    if not totals:
        return None
    mode = max(totals, key=totals.__getitem__)
    jobs = keys_of(workload, replies[mode])
    over = ratio(jobs, replies[DRAFTS], replies[mode], whole)
    generated = ratio(jobs, replies[DRAFTS], replies[mode], lambda reply: generation(reply, count))
    return None if over is None else BestMode(workload.name, mode, over, generated)


def overhead(workloads: Iterable[Mapping[str, Sequence[Reply]]], count: CountTokens) -> Ratio | None:
    """Seconds per token of the server without drafts over the driver's, generation phase of all workloads."""
    found: list[Pair] = []
    for replies in workloads:
        servers, drivers = replies[NO_DRAFTS], replies[DIRECT]
        keys = [str(number) for number in range(len(servers))]
        # the driver's tokens per second over the server's
        found += pairs_of(keys, drivers, servers, lambda reply: generation(reply, count))
    return ratio_of(found) if found else None


def schema_ratios(pairs: Sequence[SchemaPair], count: CountTokens) -> dict[str, Ratio]:
    """Tokens per second with the schema over without: of whole answers, and of their generation."""
    keys, on, off = [p.key for p in pairs], [p.on for p in pairs], [p.off for p in pairs]
    found = {
        "whole": ratio(keys, on, off, whole),
        "generation": ratio(keys, on, off, lambda reply: generation(reply, count)),
    }
    return {kind: its for kind, its in found.items() if its is not None}
