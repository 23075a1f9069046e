"""Many methods over many traces in one run: what is replayed how often, and what is kept of it."""

from __future__ import annotations

import math
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
from suffixsvc_bench.replay.tally import Point
from suffixsvc_bench.replay.traces import Trace

__all__ = ["NamedCost", "Plan", "Run", "TraceResult", "Watcher", "compare", "geometric_mean"]

#: a time line is kept in at most so many pieces of equal tokens
_PIECES = 60


@dataclass(frozen=True, slots=True)
class NamedCost:
    """A price of verification and how tables call it."""

    name: str
    cost: VerifyCost

    @property
    def widest(self) -> int | None:
        """The widest draft it has a price for; None = any."""
        return None if isinstance(self.cost, float) else len(as_cost_curve(self.cost, 0)) - 1


@dataclass(frozen=True, slots=True)
class Plan:
    """What is compared.

    Attributes:
        methods: in the order of the tables.
        costs: what drafts are priced at.
        k: widest draft for every method; None = what each method's users get.
        sweep: widths that the sweep compares, at ``sweep_cost``; empty = no sweep.
        prompt_tokens: only the last so many tokens of a prompt are used; 0 = all.
        keep_warm: what a method remembers of one trace stays for the next.
        starting_weights: what our methods start from: a file, or a folder of weights that were learned
            leaving out the log they are named after; None = the shipped ones.
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
    cost: NamedCost | None  #: None: its drafts do not depend on it
    sweep: bool

    @property
    def key(self) -> tuple[str, int, str, bool]:
        """Equal for replays that would be the same."""
        return self.spec.key, self.k, "" if self.cost is None else self.cost.name, self.sweep


@dataclass(frozen=True, slots=True)
class Run:
    """One method replayed over one trace.

    Attributes:
        method: key of the method.
        k: widest draft it was allowed.
        cost: name of the cost it drafted for; empty for methods that do not look at it.
        sweep: made for the sweep over K.
        rates: see :meth:`Tally.rates`.
        speedups: priced speedup by name of the cost, of all costs that can price these drafts.
        widths: steps by drafted tokens.
        reliability: see :class:`Reliability`; None for methods without probabilities.
        timeline: pieces of (tokens remembered before, tokens, steps, hits, accepted).
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
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class TraceResult:
    """Everything that was found on one trace."""

    name: str
    path: str
    kind: str
    agents: tuple[str, ...]
    calls: int
    tokens: int
    warming_calls: int
    runs: Sequence[Run]

    def run(self, method: str, cost: str) -> Run | None:
        """The run of a method that a cost prices."""
        found = (r for r in self.runs if r.method == method and not r.sweep and cost in r.speedups)
        return next(found, None)

    def best(self, methods: Iterable[str], cost: str) -> Run | None:
        """The best of several methods at a cost, chosen in hindsight."""
        runs = [run for method in methods if (run := self.run(method, cost)) is not None]
        return max(runs, key=lambda run: run.speedups[cost], default=None)

    def as_dict(self) -> dict[str, Any]:
        fields = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "runs"}
        return fields | {"runs": [run.as_dict() for run in self.runs]}


class Watcher:
    """Hears how a comparison goes on. This one does not care."""

    def trace(self, trace: Trace, calls: int) -> None:
        """A trace begins: ``calls`` calls will be replayed, all methods together."""

    def replay(self, title: str) -> None:
        """The replay of a method begins."""

    def call(self, _: Call) -> None:
        """A call was replayed."""


def compare(traces: Iterable[Trace], plan: Plan, watcher: Watcher | None = None) -> Iterator[TraceResult]:
    """Replay every trace through every method of the plan, one after the other."""
    watch = Watcher() if watcher is None else watcher
    pool: dict[tuple[str, int, str, bool], Method] = {}
    try:
        for trace in traces:
            jobs = [job for job in _jobs(plan) if trace.warming or not job.spec.studies]
            watch.trace(trace, len(jobs) * (len(trace.calls) + len(trace.warming)))
            runs: list[Run] = []
            for job in jobs:
                watch.replay(job.spec.title + (f", K={job.k}" if job.sweep else ""))
                method = pool.pop(job.key, None) or job.spec.make(_settings(job, trace, plan))
                try:
                    runs.append(_run(method, job, trace, plan, watch))
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
                len(trace.warming),
                runs,
            )
    finally:
        for method in pool.values():
            method.close()


def geometric_mean(values: Sequence[float]) -> float:
    """0 where there is nothing, or something that is not positive."""
    if not values or min(values) <= 0:
        return 0.0
    return math.exp(sum(map(math.log, values)) / len(values))


def _jobs(plan: Plan) -> Iterator[_Job]:
    seen: set[tuple[str, int, str, bool]] = set()
    for spec in plan.methods:
        for cost in plan.costs:
            job = _Job(spec, _width(spec, cost, plan), cost if spec.priced else None, sweep=False)
            if job.key not in seen:
                seen.add(job.key)
                yield job
        if spec.swept:
            for k in plan.sweep:
                yield _Job(spec, k, plan.sweep_cost if spec.priced else None, sweep=True)


def _width(spec: MethodSpec, cost: NamedCost, plan: Plan) -> int:
    """K of a method at a cost: a curve has no price for wider steps than it measured."""
    k = spec.default_k if plan.k is None else plan.k
    return k if cost.widest is None else min(k, cost.widest)


def _settings(job: _Job, trace: Trace, plan: Plan) -> Settings:
    weights = None if plan.starting_weights is None else read_weights(plan.starting_weights, trace.name)
    return Settings(job.k, plan.sweep_cost.cost if job.cost is None else job.cost.cost, weights)


def _run(method: Method, job: _Job, trace: Trace, plan: Plan, watch: Watcher) -> Run:
    if job.spec.studies:
        method.study(call.response for call in trace.warming)
    else:
        replay_method(method, trace.warming, prompt_tokens=plan.prompt_tokens, progress=watch.call)
    tally = replay_method(method, trace.calls, prompt_tokens=plan.prompt_tokens, progress=watch.call)
    found = tally.calibration.reliability()
    return Run(
        method=job.spec.key,
        k=job.k,
        cost="" if job.cost is None else job.cost.name,
        sweep=job.sweep,
        rates=tally.rates(),
        speedups={cost.name: tally.speedup(cost.cost) for cost in _priced_at(job, plan)},
        widths=dict(sorted(tally.widths.items())),
        reliability=None if found is None else found.as_dict(),
        timeline=_pieces(tally.points, sum(len(call.response) for call in trace.warming)),
    )


def _priced_at(job: _Job, plan: Plan) -> list[NamedCost]:
    if job.sweep:
        return [plan.sweep_cost]
    if job.cost is not None:
        return [job.cost]
    # a narrower replay was made for a curve that is shorter than K: each price has its own
    return [cost for cost in plan.costs if _width(job.spec, cost, plan) == job.k]


def _pieces(points: Sequence[Point], known: int) -> list[tuple[int, int, int, int, int]]:
    """Calls merged into pieces of about equal tokens."""
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
