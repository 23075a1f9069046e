"""``suffixsvc bench decode``: the runs in order."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from suffixsvc_driver.cost import key_of
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.model_class import ModelClass, model_class
from suffixsvc_driver.sampling import Sampling
from suffixsvc_driver.targets.experts import expert_counts

from suffixsvc.errors import SuffixError
from suffixsvc_bench.decode.figures import Pair, against, row_of
from suffixsvc_bench.decode.forecast import forecast_speedup
from suffixsvc_bench.decode.jobs import Job, Workload, Written, load_workloads
from suffixsvc_bench.decode.measured import Measured
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.peers import open_peers
from suffixsvc_bench.decode.prefill import SharedPrefill
from suffixsvc_bench.decode.prepared import Prepared
from suffixsvc_bench.decode.priced import Prices, price_calls
from suffixsvc_bench.decode.rig import Rig
from suffixsvc_bench.decode.run import run_workload
from suffixsvc_bench.decode.variants import DriverVariant, PlainVariant, Whole
from suffixsvc_bench.provenance import provenance
from suffixsvc_bench.speculator import Speculator

__all__ = ["run_decode"]

#: what is done, done so far of all (0 .. 1)
Tell = Callable[[str, float], None]
Keep = Callable[["Measured"], None]
#: what is compared at supplied prices: with the draft model and without, and by rule
_PRICED_LAYERS: Final = ("all", "prompt-lookup+suffix", "draft-model")


def run_decode(
    options: DecodeOptions,
    tell: Tell = lambda what, done: None,
    keep: Keep = lambda measured: None,
) -> Measured:
    """Measure. Run nothing beside it: llama.cpp's threads spin.

    Args:
        keep: called with what there is after each workload: an hour's work must not hang on its last minute.

    Raises:
        SuffixError: what was asked for makes no sense or cannot be had; before anything was measured.
    """
    options.check()
    draft = options.rig.draft.name if options.rig.draft else ""
    measured = Measured(
        provenance(), options.rig.target.name, draft, options.rig.threads, {}, options.as_dict()
    )
    for experts in options.experts:
        with ExitStack() as stack:
            _run_on(experts, options, measured, tell, keep, stack)
    return measured


def _run_on(
    experts: int | None,
    options: DecodeOptions,
    measured: Measured,
    tell: Tell,
    keep: Keep,
    stack: ExitStack,
) -> None:
    """All of it on the target with so many experts; None: as many as its file says."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    wanted = replace(options.rig, experts=experts)
    rig = Rig(wanted, folder, stack, lambda done, total: tell("measuring what steps cost", 0.0))
    measured.curve = measured.curve or rig.curve.expected().to_json()
    writer = Speculator(rig.target, rig.curve)

    def write(job: Job) -> Sequence[int]:
        tell(f"preparing: {job.key}", 0.0)
        return writer.plain(job.prompt_ids, job.max_tokens).result.token_ids

    answer = Prepared(options.prepared, key_of(rig.target).model, write, experts)
    workloads = load_workloads(
        options.workloads,
        rig.model,
        answer,
        calls=options.calls,
        context=options.rig.context - options.max_tokens,
        log=options.log,
        files=options.files,
        max_tokens=options.max_tokens,
    )
    run = _Run(rig, workloads, options, measured, tell, keep)
    peers: list[Whole] = []
    if options.llama_bin is not None and experts is None:
        peers = open_peers(
            options.llama_bin,
            options.llama_modes,
            rig,
            folder,
            stack,
            lambda what: tell(what, 0.0),
            programs=options.llama_programs,
        )
    for temperature in options.temperatures:
        sampling = Sampling(temperature=temperature)
        run.at(sampling, peers if sampling.greedy else [])
    for prices in options.prices:
        run.price(prices)


@dataclass(frozen=True, slots=True)
class _Run:
    """On one target."""

    rig: Rig
    workloads: Sequence[Workload]
    options: DecodeOptions
    measured: Measured
    tell: Tell
    keep: Keep

    def at(self, sampling: Sampling, peers: Sequence[Whole]) -> None:
        """Every workload, sampled so."""
        rig, options, measured = self.rig, self.options, self.measured
        settings = options.settings(sampling, self._model_class())
        first = sampling.temperature == options.temperatures[0] and rig.options.experts == options.experts[0]
        if first:
            measured.settings = {setting.name: setting for setting in settings}
        curve = rig.curve.expected()
        plain = PlainVariant(curve, sampling, witness=rig.curve)
        ways = [
            DriverVariant(s, curve, rig.target, rig.namespace, rig.draft_model, rig.content, rig.curve)
            for s in settings
        ]
        targets = rig.targets(len(ways) + 1)
        each = options.rounds * (len(ways) + len(peers) + 1)
        answers, done = sum(len(w.jobs) for w in self.workloads) * each, 0
        for workload in self.workloads:
            name = self._name(workload, sampling)
            seen: list[tuple[float, ...]] = []

            def on_answer(
                variant: str, job: str, name: str = name, seen: list[tuple[float, ...]] = seen
            ) -> None:
                nonlocal done
                self.tell(f"{name}: {job}, {variant}", min(1.0, done / answers))
                seen.append(rig.curve.expected().seconds)
                done += job != "what it remembers"

            prefill = SharedPrefill(targets)

            def on_failure(variant: str, error: SuffixError, name: str = name) -> None:
                measured.failed.setdefault(name, {})[variant] = str(error)

            pairs = run_workload(
                workload, plain, ways, peers, targets, options.rounds, prefill, on_answer, on_failure
            )
            measured.pairs[name] = pairs
            if first:
                measured.compared[name] = pairs
            measured.rows += [row_of(name, variant, found) for variant, found in pairs.items()]
            ours, *others = pairs
            measured.against[name] = {other: against(pairs[ours], pairs[other]) for other in others}
            during = CostCurve.from_seconds(np.mean([*seen, rig.curve.expected().seconds], axis=0).tolist())
            measured.forecast_curves[name] = during.to_json()
            measured.forecasts[name] = self._forecast(workload, pairs[ours], during)
            self.keep(measured)

    def price(self, prices: Prices) -> None:
        """Every workload's calls, as plain decoding answered them, at these prices."""
        rig, measured = self.rig, self.measured
        layers = _PRICED_LAYERS if rig.draft_model else ("prompt-lookup+suffix",)
        settings = replace(self.options, layers=layers).settings(Sampling(), self._model_class())
        measured.prices[prices.name] = prices.about
        rows = measured.priced.setdefault(prices.name, [])
        for workload in self.workloads:
            name = self._name(workload, Sampling())
            pairs = next(iter(measured.pairs[name].values()))
            rows += price_calls(
                name,
                _as_written(workload, pairs),
                workload.warming,
                settings,
                prices,
                rig.target.vocab_size,
                rig.target.eog_ids,
                rig.patient_draft_model,
                lambda setting, job: self.tell(f"{prices.name}: {job}, {setting}", 1.0),
            )

    def _name(self, workload: Workload, sampling: Sampling) -> str:
        """As tables call it."""
        heat = "" if sampling.greedy else f" at {sampling.temperature:g}"
        experts = self.rig.options.experts
        return f"{workload.name}{heat}" + ("" if experts is None else f", {experts} experts")

    def _model_class(self) -> ModelClass:
        model = self.rig.model
        return model_class(model.parameters, expert_counts(model.header)[0])

    def _forecast(self, workload: Workload, pairs: Sequence[Pair], curve: CostCurve) -> float:
        """Of the texts that this way wrote: where two tokens are as good as equal a batch of another width
        may choose the other one, and behind it stands another text than plain decoding's, with other luck.

        Args:
            curve: what steps took on average while they were written, all ways' steps together.
        """
        jobs, rounds = workload.jobs, []
        for at in range(0, len(pairs), len(jobs)):
            answered = zip(jobs, pairs[at : at + len(jobs)], strict=True)
            rounds.append([Written(job, pair.outcome.token_ids) for job, pair in answered])
        return forecast_speedup(rounds, workload.warming, curve)


def _as_written(workload: Workload, pairs: Sequence[Pair]) -> list[Written]:
    """The calls as plain decoding answered them in the first round."""
    texts = {pair.job: pair.reference.token_ids for pair in reversed(pairs)}
    return [Written(job, texts[job.key]) for job in workload.jobs if texts.get(job.key)]
