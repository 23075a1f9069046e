"""Driver of ``suffixsvc bench decode``: targets, temperatures and workloads in order."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np

from suffixsvc.errors import SuffixError
from suffixsvc_bench.decode.checks import check_options
from suffixsvc_bench.decode.figures import by_length, ratio_against, row_of
from suffixsvc_bench.decode.options import DecodeOptions, ModelPair
from suffixsvc_bench.decode.pricing.measured import Measured
from suffixsvc_bench.decode.pricing.supplied_costs import SuppliedCosts, read_supplied_costs, replay_at_costs
from suffixsvc_bench.decode.run import WARMUP, run_workload
from suffixsvc_bench.decode.variants.peers import open_peers
from suffixsvc_bench.decode.variants.variants import PLAIN, DriverVariant, Setting, WholeVariant, settings_for
from suffixsvc_bench.decode.workload.forecast import forecast_speedup
from suffixsvc_bench.decode.workload.jobs import CONVERSATION, AnsweredJob, Job, Workload, load_workloads
from suffixsvc_bench.decode.workload.prefill import SharedPrefill
from suffixsvc_bench.decode.workload.prepared import PreparedAnswers
from suffixsvc_bench.report.provenance import provenance
from suffixsvc_bench.speculation.model_fixture import ModelFixture
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.profile.target_cost import key_of
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.settings.model_class import ModelClass, model_class
from suffixsvc_driver.targets.llama.experts import expert_counts

#: called with (current task, completed fraction of the run, 0..1)
Notify = Callable[[str, float], None]
Keep = Callable[[Measured], None]
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
    check_options(options)
    supplied_costs = [read_supplied_costs(name) for name in options.prices]
    targets, drafts = (", ".join(file.name for file in its) for its in (options.targets, options.drafts))
    described = options.as_dict()
    measured = Measured(provenance(), targets, drafts, described["threads"], {}, described)
    for pair, experts in itertools.product(options.pairs, options.experts):
        with ExitStack() as stack:
            run = _open(pair, experts, options, measured, notify, keep, stack)
            for temperature in options.temperatures:
                run.run_workloads(Sampling(temperature=temperature))
            for costs in supplied_costs:
                run.run_at_costs(costs)
    return measured


def _open(
    pair: ModelPair,
    experts: int | None,
    options: DecodeOptions,
    measured: Measured,
    notify: Notify,
    keep: Keep,
    stack: ExitStack,
) -> _Run:
    """Prepare a pair of models, the target with this many experts; None: as many as its file says."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    fixture = ModelFixture(
        options.fixture(experts, pair),
        folder,
        stack,
        lambda done, total: notify("measuring what steps cost", 0.0),
    )
    measured.options["device"] = fixture.model.device
    measured.curve = measured.curve or fixture.curve.expected().to_json()
    writer = Speculator(fixture.target, fixture.curve)

    def write(job: Job) -> Sequence[int]:
        notify(f"preparing: {job.key}", 0.0)
        return writer.plain(job.prompt_ids, job.max_tokens).result.token_ids

    answer = PreparedAnswers(options.prepared_for(pair[0]), key_of(fixture.target).model, write, experts)
    workloads = load_workloads(options.workload_choice, fixture.model, answer)
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
    return _Run(fixture, workloads, peers, options, measured, notify, keep)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run on one target."""

    fixture: ModelFixture
    workloads: Sequence[Workload]
    peers: Sequence[WholeVariant]
    options: DecodeOptions
    measured: Measured
    notify: Notify
    keep: Keep

    def run_workloads(self, sampling: Sampling) -> None:
        """Run every workload with this sampling; programs of llama.cpp only take part in greedy decoding."""
        fixture, options, measured = self.fixture, self.options, self.measured
        peers = self.peers if sampling.greedy else []
        settings = settings_for(options, sampling, self._model_class())
        first = (
            sampling.temperature == options.temperatures[0]
            and fixture.options.experts == options.experts[0]
            and self._pair == options.pairs[0]
        )
        if first:
            measured.settings = {setting.name: setting for setting in settings}
        curve = fixture.curve.expected()
        plain, *variants = (
            DriverVariant(
                setting,
                curve,
                fixture.target,
                fixture.namespace,
                fixture.draft_model,
                fixture.content,
                fixture.curve,
            )
            for setting in (Setting(PLAIN, DriverConfig(), (), sampling), *settings)
        )
        targets = fixture.targets(len(variants) + 1)
        each = options.rounds * (len(variants) + len(peers) + 1)
        answers, done = sum(len(w.jobs) for w in self.workloads) * each, 0
        for workload in self.workloads:
            name = self._name(workload, sampling)
            seen: list[tuple[float, ...]] = []
            failed: dict[str, str] = {}

            def on_answer(
                variant: str, job: str, name: str = name, seen: list[tuple[float, ...]] = seen
            ) -> None:
                nonlocal done
                self.notify(f"{name}: {job}, {variant}", min(1.0, done / answers))
                seen.append(fixture.curve.expected().seconds)
                done += job != WARMUP

            def on_failure(variant: str, error: SuffixError, failed: dict[str, str] = failed) -> None:
                failed[variant] = str(error)

            pairs = run_workload(
                workload,
                plain,
                variants,
                peers,
                targets,
                options.rounds,
                SharedPrefill(targets),
                on_answer,
                on_failure,
            )
            if failed:
                measured.failed[name] = failed
            measured.pairs[name] = pairs
            if workload.name == CONVERSATION:
                measured.lengths[name] = {variant: by_length(found) for variant, found in pairs.items()}
            if first:
                measured.compared[name] = pairs
            measured.rows += [row_of(name, variant, found) for variant, found in pairs.items()]
            ours, *others = pairs
            measured.against[name] = {other: ratio_against(pairs[ours], pairs[other]) for other in others}
            during = CostCurve.from_seconds(
                np.mean([*seen, fixture.curve.expected().seconds], axis=0).tolist()
            )
            measured.forecast_curves[name] = during.to_json()
            measured.forecasts[name] = forecast_speedup(workload, pairs[ours], during)
            self.keep(measured)

    def run_at_costs(self, costs: SuppliedCosts) -> None:
        """Replay every workload's calls, as plain decoding answered them, at the supplied costs."""
        fixture, measured = self.fixture, self.measured
        layers = _COMPARED_LAYERS if fixture.draft_model else ("prompt-lookup+suffix",)
        settings = settings_for(replace(self.options, layers=layers), Sampling(), self._model_class())
        measured.supplied_costs[costs.name] = costs.about
        rows = measured.cost_rows.setdefault(costs.name, [])
        for workload in self.workloads:
            name = self._name(workload, Sampling())
            # as plain decoding answered them in the first round
            pairs = next(iter(measured.pairs[name].values()))
            texts = {pair.job: pair.reference.token_ids for pair in reversed(pairs)}
            rows += replay_at_costs(
                name,
                [AnsweredJob(job, texts[job.key]) for job in workload.jobs if texts.get(job.key)],
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
        target, draft = self._pair
        names = [target.stem] if len(self.options.targets) > 1 else []
        names += [draft.stem] if draft is not None and len(self.options.drafts) > 1 else []
        models = f", {' + '.join(names)}" if names else ""
        return f"{workload.name}{at}{models}" + ("" if experts is None else f", {experts} experts")

    @property
    def _pair(self) -> ModelPair:
        return self.fixture.options.target, self.fixture.options.draft

    def _model_class(self) -> ModelClass:
        model = self.fixture.model
        return model_class(model.parameters, expert_counts(model.header)[0])
