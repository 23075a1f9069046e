"""Comparison of drafting methods over traces: which replays are run, and their results."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suffixsvc.types import VerifyCost
from suffixsvc.values import as_cost_curve
from suffixsvc_bench.methods import Method, MethodSpec, Settings
from suffixsvc_bench.replay.inputs import read_weights
from suffixsvc_bench.replay.logs import Call
from suffixsvc_bench.replay.run import replay_method
from suffixsvc_bench.replay.stats import Point
from suffixsvc_bench.replay.traces import Trace

__all__ = ["NamedCost", "Plan", "ReplayObserver", "Run", "TraceResult", "compare"]

#: most points of a stored time line
_PIECES = 60


@dataclass(frozen=True, slots=True)
class NamedCost:
    """A cost of verification and its name in tables."""

    name: str
    cost: VerifyCost

    @property
    def widest(self) -> int | None:
        """The widest draft that the cost covers; None = any."""
        return None if isinstance(self.cost, float) else len(as_cost_curve(self.cost, 0)) - 1


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
    prompt_tokens: int = 3000
    keep_warm: bool = False
    starting_weights: Path | None = None


@dataclass(frozen=True, slots=True)
class _Job:
    spec: MethodSpec
    k: int
    cost: NamedCost | None  #: None: the method ignores costs
    sweep: bool

    @property
    def key(self) -> tuple[str, int, str, bool]:
        """Equal for replays that would be identical."""
        return self.spec.key, self.k, "" if self.cost is None else self.cost.name, self.sweep


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
        reliability: see :class:`Reliability`; None without probabilities.
        timeline: points of (tokens stored before, tokens, steps, hits, accepted).
    """

    method: str
    k: int
    cost: str
    sweep: bool
    rates: Mapping[str, Any]
    speedups: Mapping[str, float]
    widths: Mapping[int, int]
    reliability: Mapping[str, Any] | None
    timeline: Sequence[tuple[int, int, int, int, int]]

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


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

    def best(self, methods: Iterable[str], cost: str) -> Run | None:
        """The best of several methods at a cost, chosen in hindsight."""
        runs = [run for method in methods if (run := self.run(method, cost)) is not None]
        return max(runs, key=lambda run: run.speedups[cost], default=None)

    def as_dict(self) -> dict[str, Any]:
        """JSON-able data."""
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "runs"}
        return fields | {"runs": [run.as_dict() for run in self.runs]}


class ReplayObserver:
    """Receives the progress of a comparison. This one ignores it."""

    def trace(self, trace: Trace, calls: int) -> None:
        """A trace begins: ``calls`` calls will be replayed, all methods together."""

    def replay(self, title: str) -> None:
        """The replay of a method begins."""

    def call(self, _: Call) -> None:
        """A call was replayed."""


def compare(
    traces: Iterable[Trace], plan: Plan, observer: ReplayObserver | None = None
) -> Iterator[TraceResult]:
    """Replay every trace through every method of the plan; yield the result of each trace."""
    observer = ReplayObserver() if observer is None else observer
    pool: dict[tuple[str, int, str, bool], Method] = {}
    try:
        for trace in traces:
            jobs = [job for job in _jobs(plan) if trace.warmup or not job.spec.trains_offline]
            observer.trace(trace, len(jobs) * (len(trace.calls) + len(trace.warmup)))
            runs: list[Run] = []
            for job in jobs:
                observer.replay(job.spec.title + (f", K={job.k}" if job.sweep else ""))
                method = pool.pop(job.key, None) or job.spec.make(_settings(job, trace, plan))
                try:
                    runs.append(_run(method, job, trace, plan, observer))
                finally:
                    pool[job.key] = method
                    if not plan.keep_warm:
                        pool.pop(job.key).close()
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
    seen: set[tuple[str, int, str, bool]] = set()
    for spec in plan.methods:
        for cost in plan.costs:
            job = _Job(spec, _width(spec, cost, plan), cost if spec.cost_aware else None, sweep=False)
            if job.key not in seen:
                seen.add(job.key)
                yield job
        if spec.swept:
            for k in plan.sweep:
                yield _Job(spec, k, plan.sweep_cost if spec.cost_aware else None, sweep=True)


def _width(spec: MethodSpec, cost: NamedCost, plan: Plan) -> int:
    """K of a method at a cost: a curve does not cover wider steps than were measured."""
    k = spec.default_k if plan.k is None else plan.k
    return k if cost.widest is None else min(k, cost.widest)


def _settings(job: _Job, trace: Trace, plan: Plan) -> Settings:
    weights = None if plan.starting_weights is None else read_weights(plan.starting_weights, trace.name)
    return Settings(job.k, plan.sweep_cost.cost if job.cost is None else job.cost.cost, weights)


def _run(method: Method, job: _Job, trace: Trace, plan: Plan, observer: ReplayObserver) -> Run:
    if job.spec.trains_offline:
        method.train(call.response for call in trace.warmup)
    else:
        replay_method(method, trace.warmup, prompt_tokens=plan.prompt_tokens, progress=observer.call)
    stats = replay_method(method, trace.calls, prompt_tokens=plan.prompt_tokens, progress=observer.call)
    found = stats.calibration.reliability()
    return Run(
        method=job.spec.key,
        k=job.k,
        cost="" if job.cost is None else job.cost.name,
        sweep=job.sweep,
        rates=stats.rates(),
        speedups={cost.name: stats.speedup(cost.cost) for cost in _priced_at(job, plan)},
        widths=dict(sorted(stats.widths.items())),
        reliability=None if found is None else found.as_dict(),
        timeline=_pieces(stats.points, sum(len(call.response) for call in trace.warmup)),
    )


def _priced_at(job: _Job, plan: Plan) -> list[NamedCost]:
    if job.sweep:
        return [plan.sweep_cost]
    if job.cost is not None:
        return [job.cost]
    # a curve shorter than K has its own, narrower replay
    return [cost for cost in plan.costs if _width(job.spec, cost, plan) == job.k]


def _pieces(points: Sequence[Point], known: int) -> list[tuple[int, int, int, int, int]]:
    """Merge calls into points of about equal tokens."""
    enough = max(1, sum(point.tokens for point in points) // _PIECES)
    pieces: list[tuple[int, int, int, int, int]] = []
    start = before = known
    sums = [0, 0, 0, 0]
    for point in points:
        for i, value in enumerate((point.tokens, point.steps, point.hits, point.accepted)):
            sums[i] += value
        before += point.tokens
        if sums[0] >= enough:
            pieces.append((start, sums[0], sums[1], sums[2], sums[3]))
            start, sums = before, [0, 0, 0, 0]
    if sums[0]:
        pieces.append((start, sums[0], sums[1], sums[2], sums[3]))
    return pieces
