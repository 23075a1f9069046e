"""``suffixsvc bench decode``: what is asked for, the runs in order, what came out."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from suffixsvc_driver.config import Controller
from suffixsvc_driver.cost import key_of
from suffixsvc_driver.model_class import model_class
from suffixsvc_driver.sampling import Sampling
from suffixsvc_driver.targets.experts import expert_counts

from suffixsvc_bench.decode.figures import Pair, Ratio, Row, against, row_of
from suffixsvc_bench.decode.forecast import forecast_speedup
from suffixsvc_bench.decode.jobs import Job, Workload, Written, load_workloads
from suffixsvc_bench.decode.llama_server import MODES
from suffixsvc_bench.decode.peers import open_peers
from suffixsvc_bench.decode.prefill import SharedPrefill
from suffixsvc_bench.decode.prepared import Prepared
from suffixsvc_bench.decode.priced import PricedRow, Prices, price_calls
from suffixsvc_bench.decode.rig import Rig, RigOptions
from suffixsvc_bench.decode.run import run_workload
from suffixsvc_bench.decode.variants import DriverVariant, PlainVariant, Setting, Whole, settings_for
from suffixsvc_bench.provenance import Provenance, provenance
from suffixsvc_bench.speculator import Speculator

__all__ = ["DecodeOptions", "Measured", "run_decode"]

#: what is done, done so far of all (0 .. 1)
Tell = Callable[[str, float], None]
Keep = Callable[["Measured"], None]


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What to compare. See ``suffixsvc bench decode --help``."""

    rig: RigOptions
    workloads: Sequence[str]
    calls: int
    rounds: int
    policies: Sequence[str] = ("expected-gain",)
    ks: Sequence[int] = ()
    layers: Sequence[str] = ("all",)
    temperatures: Sequence[float] = (0.0,)
    max_tokens: int = 160
    log: Path | None = None
    prepared: Path | None = None
    llama_bin: Path | None = None
    llama_modes: Sequence[str] = tuple(MODES)
    llama_programs: bool = False
    prices: Sequence[Prices] = ()

    def as_dict(self) -> dict[str, Any]:
        """For the command that asks for the same again; files by their names."""
        peers = self.llama_bin is not None
        return {
            "target": self.rig.target.name,
            "draft": self.rig.draft.name if self.rig.draft else None,
            "threads": self.rig.threads,
            "context": self.rig.context,
            "max_width": self.rig.max_width,
            "experts": self.rig.experts,
            "workloads": list(self.workloads),
            "calls": self.calls,
            "rounds": self.rounds,
            "policies": list(self.policies),
            "ks": list(self.ks) if Controller.FIXED in self.policies else [],
            "layers": list(self.layers),
            "temperatures": list(self.temperatures),
            "max_tokens": self.max_tokens,
            "log": self.log.name if self.log else None,
            "llama_bin": self.llama_bin.name if self.llama_bin else None,
            "llama_modes": list(self.llama_modes) if peers else [],
            "llama_programs": peers and self.llama_programs,
            "prices": [prices.name for prices in self.prices],
        }


@dataclass(slots=True)
class Measured:
    """What came out.

    Attributes:
        rows: one for each workload and way.
        forecasts: by workload: what the replay of the same calls says, see
            :mod:`suffixsvc_bench.decode.forecast`.
        pairs: by workload and way, every single pair.
        against: by workload and other way: the first way's speed over it.
        priced: at supplied prices, by their name.
        settings: what was compared without sampling, by name.
    """

    provenance: Provenance
    target: str
    draft: str
    threads: int
    curve: dict[str, Any]
    options: dict[str, Any]
    rows: list[Row] = field(default_factory=list)
    forecasts: dict[str, float] = field(default_factory=dict)
    pairs: dict[str, dict[str, list[Pair]]] = field(default_factory=dict)
    against: dict[str, dict[str, Ratio]] = field(default_factory=dict)
    priced: dict[str, list[PricedRow]] = field(default_factory=dict)
    prices: dict[str, str] = field(default_factory=dict)
    settings: dict[str, Setting] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Plain data, every pair included."""
        return {
            "provenance": self.provenance.as_dict(),
            "target": self.target,
            "draft": self.draft,
            "threads": self.threads,
            "curve": self.curve,
            "options": self.options,
            "rows": [row.as_dict() for row in self.rows],
            "forecasts": self.forecasts,
            "against": {w: {n: asdict(r) for n, r in ways.items()} for w, ways in self.against.items()},
            "prices": self.prices,
            "priced": {name: [asdict(row) for row in rows] for name, rows in self.priced.items()},
            "pairs": {
                workload: {name: [_plain(pair) for pair in pairs] for name, pairs in ways.items()}
                for workload, ways in self.pairs.items()
            },
        }


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
    where = provenance()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        rig = Rig(options.rig, folder, stack, lambda done, total: tell("measuring what steps cost", 0.0))
        curve = rig.curve.curve
        measured = Measured(
            where,
            options.rig.target.name,
            options.rig.draft.name if options.rig.draft else "",
            options.rig.threads,
            curve.to_json(),
            options.as_dict(),
        )
        writer = Speculator(rig.target, rig.curve)

        def write(job: Job) -> Sequence[int]:
            tell(f"preparing: {job.key}", 0.0)
            return writer.plain(job.prompt_ids, job.max_tokens).result.token_ids

        answer = Prepared(options.prepared, key_of(rig.target).model, write)
        workloads = load_workloads(
            options.workloads,
            rig.model,
            answer,
            calls=options.calls,
            context=options.rig.context - options.max_tokens,
            log=options.log,
            max_tokens=options.max_tokens,
        )
        peers: list[Whole] = []
        if options.llama_bin is not None:
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
            greedy = temperature == 0.0
            sampling = Sampling(temperature=temperature)
            _run_at(sampling, rig, workloads, options, measured, tell, keep, peers if greedy else [])
        for prices in options.prices:
            _price(prices, rig, workloads, options, measured, tell)
        return measured


def _run_at(
    sampling: Sampling,
    rig: Rig,
    workloads: Sequence[Workload],
    options: DecodeOptions,
    measured: Measured,
    tell: Tell,
    keep: Keep,
    peers: Sequence[Whole],
) -> None:
    settings = _settings(options, rig, sampling)
    if sampling.greedy:
        measured.settings = {setting.name: setting for setting in settings}
    curve = rig.curve.curve
    plain = PlainVariant(curve, sampling)
    ways = [
        DriverVariant(s, curve, rig.target, rig.namespace, rig.draft_model, rig.content) for s in settings
    ]
    targets = rig.targets(len(ways) + 1)
    answers = sum(len(w.jobs) for w in workloads) * options.rounds * (len(ways) + len(peers) + 1)
    done = 0
    for workload in workloads:
        name = workload.name if sampling.greedy else f"{workload.name} at {sampling.temperature:g}"

        def on_answer(variant: str, job: str, name: str = name) -> None:
            nonlocal done
            tell(f"{name}: {job}, {variant}", min(1.0, done / answers))
            done += job != "what it remembers"

        prefill = SharedPrefill(targets)
        pairs = run_workload(workload, plain, ways, peers, targets, options.rounds, prefill, on_answer)
        measured.pairs[name] = pairs
        measured.rows += [row_of(name, variant, found) for variant, found in pairs.items()]
        first, *others = pairs
        measured.against[name] = {other: against(pairs[first], pairs[other]) for other in others}
        measured.forecasts[name] = _forecast(workload, next(iter(pairs.values())), rig)
        keep(measured)


def _forecast(workload: Workload, pairs: Sequence[Pair], rig: Rig) -> float:
    """Of the texts that this way wrote: where two tokens are as good as equal a batch of another width may
    choose the other one, and behind it stands another text than plain decoding's, with other luck."""
    jobs, rounds = workload.jobs, []
    for at in range(0, len(pairs), len(jobs)):
        answered = zip(jobs, pairs[at : at + len(jobs)], strict=True)
        rounds.append([Written(job, pair.outcome.token_ids) for job, pair in answered])
    return forecast_speedup(rounds, workload.warming, rig.curve.curve)


def _settings(options: DecodeOptions, rig: Rig, sampling: Sampling) -> list[Setting]:
    return settings_for(
        policies=options.policies,
        ks=options.ks,
        layers=options.layers,
        sampling=sampling,
        model_class=model_class(rig.model.parameters, expert_counts(rig.model.header)[0]),
    )


#: what is compared at supplied prices: with the draft model and without, and by rule
_PRICED_LAYERS: Final = ("all", "prompt-lookup+suffix", "draft-model")


def _price(
    prices: Prices,
    rig: Rig,
    workloads: Sequence[Workload],
    options: DecodeOptions,
    measured: Measured,
    tell: Tell,
) -> None:
    """Every workload's calls, as plain decoding answered them, at these prices."""
    wanted = replace(options, layers=_PRICED_LAYERS if rig.draft_model else ("prompt-lookup+suffix",))
    settings = _settings(wanted, rig, Sampling())
    measured.prices[prices.name] = prices.about
    rows = measured.priced.setdefault(prices.name, [])
    for workload in workloads:
        pairs = next(iter(measured.pairs[workload.name].values()))
        rows += price_calls(
            workload.name,
            _as_written(workload, pairs),
            workload.warming,
            settings,
            prices,
            rig.target.vocab_size,
            rig.target.eog_ids,
            rig.patient_draft_model,
            lambda setting, job: tell(f"{prices.name}: {job}, {setting}", 1.0),
        )


def _as_written(workload: Workload, pairs: Sequence[Pair]) -> list[Written]:
    """The calls as plain decoding answered them in the first round."""
    texts = {pair.job: pair.reference.token_ids for pair in reversed(pairs)}
    return [Written(job, texts[job.key]) for job in workload.jobs if texts.get(job.key)]


def _plain(pair: Pair) -> dict[str, Any]:
    def outcome(which: Any) -> dict[str, Any]:
        return {
            "tokens": which.tokens,
            "seconds": round(which.seconds, 5),
            "steps": which.steps,
            "drafted": which.drafted,
            "accepted": which.accepted,
            "by_layer": which.by_layer,
            "asking_seconds": round(sum(which.own_ms) / 1e3, 5),
            "deciding_seconds": round(which.deciding_seconds, 5),
        }

    return {
        "job": pair.job,
        "agent": pair.agent,
        "ratio": round(pair.ratio, 4),
        "outcome": outcome(pair.outcome),
        "reference": outcome(pair.reference),
    }
