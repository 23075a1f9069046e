"""Driver of ``suffixsvc bench decode``: targets, temperatures and workloads in order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.errors import SuffixError
from suffixsvc_bench.decode.figures import Pair, ratio_against, row_of
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.pricing.measured import Measured
from suffixsvc_bench.decode.pricing.supplied_costs import SuppliedCosts, replay_at_costs
from suffixsvc_bench.decode.run import WARMUP, run_workload
from suffixsvc_bench.decode.variants.peers import open_peers
from suffixsvc_bench.decode.variants.variants import DriverVariant, PlainVariant, WholeVariant
from suffixsvc_bench.decode.workload.forecast import forecast_speedup
from suffixsvc_bench.decode.workload.jobs import AnsweredJob, Job, Workload, load_workloads
from suffixsvc_bench.decode.workload.prefill import SharedPrefill
from suffixsvc_bench.decode.workload.prepared import PreparedAnswers
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.speculation.model_fixture import ModelFixture
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.profile.target_cost import key_of
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.model_class import ModelClass, model_class
from suffixsvc_driver.targets.llama.experts import expert_counts

__all__ = ["run_decode"]

#: called with (current task, completed fraction of the run, 0..1)
Notify = Callable[[str, float], None]
Keep = Callable[["Measured"], None]
#: layer sets compared at supplied costs
_COMPARED_LAYERS: Final = ("all", "prompt-lookup+suffix", "draft-model")


def run_decode(
    options: DecodeOptions,
    notify: Notify = lambda what, done: None,
    keep: Keep = lambda measured: None,
) -> Measured:
    """Run the benchmark. Nothing else should run beside it: llama.cpp's threads spin.

    Args:
        options: what to compare.
        notify: called with the current task and the completed fraction.
        keep: called with all results so far after each workload, so that an aborted run loses little.

    Raises:
        SuffixError: an option is invalid or a resource is missing; raised before the first measurement.
    """
    options.check()
    draft = options.fixture.draft.name if options.fixture.draft else ""
    measured = Measured(
        provenance(), options.fixture.target.name, draft, options.fixture.threads, {}, options.as_dict()
    )
    for experts in options.experts:
        with ExitStack() as stack:
            _run_on(experts, options, measured, notify, keep, stack)
    return measured


def _run_on(
    experts: int | None,
    options: DecodeOptions,
    measured: Measured,
    notify: Notify,
    keep: Keep,
    stack: ExitStack,
) -> None:
    """Run everything on the target with this many experts; None: as many as its file says."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    wanted = replace(options.fixture, experts=experts)
    fixture = ModelFixture(
        wanted, folder, stack, lambda done, total: notify("measuring what steps cost", 0.0)
    )
    measured.curve = measured.curve or fixture.curve.expected().to_json()
    writer = Speculator(fixture.target, fixture.curve)

    def write(job: Job) -> Sequence[int]:
        notify(f"preparing: {job.key}", 0.0)
        return writer.plain(job.prompt_ids, job.max_tokens).result.token_ids

    answer = PreparedAnswers(options.prepared, key_of(fixture.target).model, write, experts)
    workloads = load_workloads(
        options.workloads,
        fixture.model,
        answer,
        calls=options.calls,
        context=options.fixture.context - options.max_tokens,
        log=options.log,
        files=options.files,
        max_tokens=options.max_tokens,
    )
    run = _Run(fixture, workloads, options, measured, notify, keep)
    peers: list[WholeVariant] = []
    if options.llama_bin is not None and experts is None:
        peers = open_peers(
            options.llama_bin,
            options.llama_modes,
            fixture,
            folder,
            stack,
            lambda what: notify(what, 0.0),
            programs=options.llama_programs,
        )
    for temperature in options.temperatures:
        sampling = Sampling(temperature=temperature)
        run.run_workloads(sampling, peers if sampling.greedy else [])
    for costs in options.supplied_costs:
        run.run_at_costs(costs)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run on one target."""

    fixture: ModelFixture
    workloads: Sequence[Workload]
    options: DecodeOptions
    measured: Measured
    notify: Notify
    keep: Keep

    def run_workloads(self, sampling: Sampling, peers: Sequence[WholeVariant]) -> None:
        """Run every workload with this sampling."""
        fixture, options, measured = self.fixture, self.options, self.measured
        settings = options.settings(sampling, self._model_class())
        first = (
            sampling.temperature == options.temperatures[0] and fixture.options.experts == options.experts[0]
        )
        if first:
            measured.settings = {setting.name: setting for setting in settings}
        curve = fixture.curve.expected()
        plain = PlainVariant(curve, sampling, observed_curve=fixture.curve)
        variants = [
            DriverVariant(
                s,
                curve,
                fixture.target,
                fixture.namespace,
                fixture.draft_model,
                fixture.content,
                fixture.curve,
            )
            for s in settings
        ]
        targets = fixture.targets(len(variants) + 1)
        each = options.rounds * (len(variants) + len(peers) + 1)
        answers, done = sum(len(w.jobs) for w in self.workloads) * each, 0
        for workload in self.workloads:
            name = self._name(workload, sampling)
            seen: list[tuple[float, ...]] = []

            def on_answer(
                variant: str, job: str, name: str = name, seen: list[tuple[float, ...]] = seen
            ) -> None:
                nonlocal done
                self.notify(f"{name}: {job}, {variant}", min(1.0, done / answers))
                seen.append(fixture.curve.expected().seconds)
                done += job != WARMUP

            prefill = SharedPrefill(targets)

            def on_failure(variant: str, error: SuffixError, name: str = name) -> None:
                measured.failed.setdefault(name, {})[variant] = str(error)

            pairs = run_workload(
                workload, plain, variants, peers, targets, options.rounds, prefill, on_answer, on_failure
            )
            measured.pairs[name] = pairs
            if first:
                measured.compared[name] = pairs
            measured.rows += [row_of(name, variant, found) for variant, found in pairs.items()]
            ours, *others = pairs
            measured.against[name] = {other: ratio_against(pairs[ours], pairs[other]) for other in others}
            during = CostCurve.from_seconds(
                np.mean([*seen, fixture.curve.expected().seconds], axis=0).tolist()
            )
            measured.forecast_curves[name] = during.to_json()
            measured.forecasts[name] = self._forecast(workload, pairs[ours], during)
            self.keep(measured)

    def run_at_costs(self, costs: SuppliedCosts) -> None:
        """Replay every workload's calls, as plain decoding answered them, at the supplied costs."""
        fixture, measured = self.fixture, self.measured
        layers = _COMPARED_LAYERS if fixture.draft_model else ("prompt-lookup+suffix",)
        settings = replace(self.options, layers=layers).settings(Sampling(), self._model_class())
        measured.supplied_costs[costs.name] = costs.about
        rows = measured.cost_rows.setdefault(costs.name, [])
        for workload in self.workloads:
            name = self._name(workload, Sampling())
            pairs = next(iter(measured.pairs[name].values()))
            rows += replay_at_costs(
                name,
                _plain_answers(workload, pairs),
                workload.warmup,
                settings,
                costs,
                fixture.target.vocab_size,
                fixture.target.eog_ids,
                fixture.patient_draft_model,
                lambda setting, job: self.notify(f"{costs.name}: {job}, {setting}", 1.0),
            )

    def _name(self, workload: Workload, sampling: Sampling) -> str:
        """Name of a workload in tables."""
        at = "" if sampling.greedy else f" at {sampling.temperature:g}"
        experts = self.fixture.options.experts
        return f"{workload.name}{at}" + ("" if experts is None else f", {experts} experts")

    def _model_class(self) -> ModelClass:
        model = self.fixture.model
        return model_class(model.parameters, expert_counts(model.header)[0])

    def _forecast(self, workload: Workload, pairs: Sequence[Pair], curve: CostCurve) -> float:
        """Forecast the speedup for the texts that the first variant wrote.

        A near-tie between two tokens can resolve differently in batches of different width, so these texts
        can differ from plain decoding's.

        Args:
            curve: mean cost curve while the texts were written, learned from the steps of all variants.
        """
        jobs, rounds = workload.jobs, []
        for at in range(0, len(pairs), len(jobs)):
            answered = zip(jobs, pairs[at : at + len(jobs)], strict=True)
            rounds.append([AnsweredJob(job, pair.outcome.token_ids) for job, pair in answered])
        return forecast_speedup(rounds, workload.warmup, curve)


def _plain_answers(workload: Workload, pairs: Sequence[Pair]) -> list[AnsweredJob]:
    """The calls as plain decoding answered them in the first round."""
    texts = {pair.job: pair.reference.token_ids for pair in reversed(pairs)}
    return [AnsweredJob(job, texts[job.key]) for job in workload.jobs if texts.get(job.key)]
