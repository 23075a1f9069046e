"""Comparison of drafting methods over traces: which replays are run, and their results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from suffixsvc.types import VerifyCost
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.methods import Method, MethodSpec, Settings
from suffixsvc_bench.replay.inputs import read_weights
from suffixsvc_bench.replay.run import PROMPT_TOKENS, replay_method
from suffixsvc_bench.replay.stats import Reliability, ReplayStats
from suffixsvc_bench.replay.traces import Trace

#: most points of a stored time line
_PIECES = 60


@dataclass(frozen=True, slots=True)
class NamedCost:
    """A cost of verification and its name in tables, which is unique in a plan."""

    name: str
    cost: VerifyCost = field(compare=False)

    def width(self, k: int) -> int:
        """K at this cost: a curve does not cover wider steps than were measured."""
        return k if isinstance(self.cost, float) else min(k, len(as_cost_curve(self.cost, 0)) - 1)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared.

    Attributes:
        methods: in the order of the tables.
        costs: costs at which drafts are scored.
        k: widest draft for every method; None = each method's default.
        sweep: values of K in the sweep, at ``sweep_cost``; empty = no sweep.
        prompt_tokens: only this many tokens at the end of a prompt are used; 0 = all.
        keep_warm: a method's state is kept from trace to trace.
        starting_weights: initial weights of our methods: a file, or a folder with weights that were learned
            without the log after which they are named; None = the shipped ones.
    """

    methods: Sequence[MethodSpec]
    costs: Sequence[NamedCost]
    k: int | None = None
    sweep: tuple[int, ...] = ()
    sweep_cost: NamedCost = field(default_factory=lambda: NamedCost("0.05", 0.05))
    prompt_tokens: int = PROMPT_TOKENS
    keep_warm: bool = False
    starting_weights: Path | None = None

    def width(self, spec: MethodSpec, cost: NamedCost) -> int:
        """K of a method at a cost."""
        return cost.width(spec.default_k if self.k is None else self.k)


@dataclass(frozen=True, slots=True)
class _Job:
    """A replay; equal jobs would be identical replays."""

    spec: MethodSpec
    k: int
    cost: NamedCost | None  #: None: the method ignores costs
    sweep: bool


@dataclass(frozen=True, slots=True)
class Run:
    """One method replayed over one trace.

    Attributes:
        method: key of the method.
        k: widest draft allowed.
        cost: name of the cost for which it drafted; empty if it ignores costs.
        sweep: run of the sweep over K.
        rates: see :meth:`ReplayStats.rates`.
        speedups: priced speedup by name of the cost, for all costs that cover these drafts.
        widths: number of steps by drafted tokens.
        reliability: None without probabilities.
        timeline: points of (tokens stored before, tokens, steps, hits, accepted).
    """

    method: str
    k: int
    cost: str
    sweep: bool
    rates: Mapping[str, Any]
    speedups: Mapping[str, float]
    widths: Mapping[int, int]
    reliability: Reliability | None
    timeline: Sequence[tuple[int, int, int, int, int]]


@dataclass(frozen=True, slots=True)
class TraceResult:
    """Results on one trace."""

    name: str
    path: str
    kind: str
    agents: tuple[str, ...]
    calls: int
    tokens: int
    warming_calls: int
    runs: Sequence[Run]

    def run(self, method: str, cost: str) -> Run | None:
        """The run of a method that is scored at a cost."""
        found = (r for r in self.runs if r.method == method and not r.sweep and cost in r.speedups)
        return next(found, None)

    def speedup(self, methods: Iterable[MethodSpec], cost: str) -> float | None:
        """Speedup at a cost of the best of some methods, chosen in hindsight; None without a run."""
        runs = [run for spec in methods if (run := self.run(spec.key, cost)) is not None]
        return max((run.speedups[cost] for run in runs), default=None)


def compare(
    traces: Iterable[Trace], plan: Plan, notify: Callable[[str, float], None] = lambda trace, done: None
) -> Iterator[TraceResult]:
    """Replay every trace through every method of the plan; yield the result of each trace.

    Args:
        notify: called with a trace's name and the completed fraction of its calls, all methods together.
    """
    pool: dict[_Job, Method] = {}
    try:
        for trace in traces:
            jobs = [job for job in dict.fromkeys(_jobs(plan)) if trace.warmup or not job.spec.trains_offline]
            calls, done = len(jobs) * (len(trace.calls) + len(trace.warmup)), count(1)
            notify(trace.name, 0.0)
            runs: list[Run] = []
            for job in jobs:
                method = pool.pop(job, None) or job.spec.make(_settings(job, trace, plan))
                try:
                    stats = _replay(
                        method,
                        job,
                        trace,
                        plan,
                        lambda: notify(trace.name, next(done) / calls),  # noqa: B023 - called in this iteration
                    )
                finally:
                    pool[job] = method
                    if not plan.keep_warm:
                        pool.pop(job).close()
                runs.append(_run(job, stats, trace, plan))
            yield TraceResult(
                trace.name,
                str(trace.path),
                trace.kind,
                trace.agents,
                len(trace.calls),
                sum(len(call.response) for call in trace.calls),
                len(trace.warmup),
                runs,
            )
    finally:
        for method in pool.values():
            method.close()


def _jobs(plan: Plan) -> Iterator[_Job]:
    for spec in plan.methods:
        for cost in plan.costs:
            yield _Job(spec, plan.width(spec, cost), cost if spec.cost_aware else None, sweep=False)
        if spec.swept:
            for k in plan.sweep:
                yield _Job(spec, k, plan.sweep_cost if spec.cost_aware else None, sweep=True)


def _settings(job: _Job, trace: Trace, plan: Plan) -> Settings:
    weights = None if plan.starting_weights is None else read_weights(plan.starting_weights, trace.name)
    return Settings(job.k, (job.cost or plan.sweep_cost).cost, weights)


def _replay(
    method: Method, job: _Job, trace: Trace, plan: Plan, progress: Callable[[], object]
) -> ReplayStats:
    if job.spec.trains_offline:
        method.train(call.response for call in trace.warmup)
    else:
        replay_method(method, trace.warmup, prompt_tokens=plan.prompt_tokens, progress=progress)
    return replay_method(method, trace.calls, prompt_tokens=plan.prompt_tokens, progress=progress)


def _run(job: _Job, stats: ReplayStats, trace: Trace, plan: Plan) -> Run:
    if job.sweep:
        scored_at = [plan.sweep_cost]
    elif job.cost is not None:
        scored_at = [job.cost]
    else:  # a curve shorter than K has its own, narrower replay
        scored_at = [cost for cost in plan.costs if plan.width(job.spec, cost) == job.k]
    return Run(
        method=job.spec.key,
        k=job.k,
        cost="" if job.cost is None else job.cost.name,
        sweep=job.sweep,
        rates=stats.rates(),
        speedups={cost.name: stats.speedup(cost.cost) for cost in scored_at},
        widths=dict(sorted(stats.widths.items())),
        reliability=stats.calibration.reliability(),
        timeline=_timeline(stats.totals, sum(len(call.response) for call in trace.warmup)),
    )


def _timeline(
    totals: Sequence[tuple[int, int, int, int]], known: int
) -> list[tuple[int, int, int, int, int]]:
    """Merge calls into points of about equal tokens."""
    points: list[tuple[int, int, int, int, int]] = []
    before = (0, 0, 0, 0)
    for total in totals:
        tokens, steps, hits, accepted = (b - a for a, b in zip(before, total, strict=True))
        if tokens >= totals[-1][0] // _PIECES or total is totals[-1]:
            points.append((known + before[0], tokens, steps, hits, accepted))
            before = total
    return points
