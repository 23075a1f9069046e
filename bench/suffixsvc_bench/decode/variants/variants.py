"""Variants of answering a job: plain, or with drafts under a driver setting; each has its own namespace."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import BackendNamespace
from suffixsvc_bench.decode.options import DecodeOptions
from suffixsvc_bench.decode.workload.interleaving import AnswerSteps, Stopwatch, timed
from suffixsvc_bench.decode.workload.jobs import AnsweredJob, Job
from suffixsvc_bench.decode.workload.replay_target import ReplayTarget, SimulatedClock, replay_call
from suffixsvc_bench.speculation.paired import Outcome
from suffixsvc_bench.speculation.speculator import LearnedState, ResultSteps, Speculator, TimedResult
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import MEASURED, LiveCurve
from suffixsvc_driver.decode.loop import StepRecord
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.sampling.settings import Sampling
from suffixsvc_driver.settings.driver_config import Controller, DriverConfig, LayerKind, Policy
from suffixsvc_driver.settings.model_class import ModelClass
from suffixsvc_driver.settings.text_kind import ContentType
from suffixsvc_driver.targets import Target, TargetShape

PLAIN: Final = "plain"
LAYERS: Final = tuple(str(kind) for kind in LayerKind if not kind.of_request)
#: numbers namespaces, so that a setting at another temperature does not know the answers to the same calls
_NAMESPACE_NUMBERS: Final = itertools.count()


class Variant(Protocol):
    """A way of answering jobs."""

    @property
    def name(self) -> str:
        """Name in tables."""

    def begin(self, workload: str, warmup: Sequence[AnsweredJob], round_number: int) -> None:
        """Start round ``round_number`` of a workload: forget everything else, learn ``warmup``."""


class StepwiseVariant(Variant, Protocol):
    """A variant that can pause after any step, so that several are interleaved within a job."""

    def answering(self, job: Job, target: Target) -> AnswerSteps:
        """Answer a job on ``target``, step by step."""


class WholeVariant(Variant, Protocol):
    """A variant that answers a job without pausing."""

    def answer(self, job: Job) -> Outcome:
        """Answer a job."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A driver setting.

    Attributes:
        name: name in tables.
        layers: kinds of layers that are queried.
    """

    name: str
    config: DriverConfig
    layers: tuple[str, ...] = LAYERS
    sampling: Sampling = field(default_factory=Sampling)


class DriverVariant:
    """Decoding under a setting, without layers plainly. It learns the costs of its steps from ``curve`` on.

    Args:
        shape: of the targets on which it will answer.
        namespace: opens a namespace of this name.
        draft_model: makes a draft model layer; None without a draft model.
        content: kind of text of token ids.
        observed_curve: cost curve that learns from the steps of all variants. The forecast uses it, not the
            driver's estimate.
    """

    def __init__(
        self,
        setting: Setting,
        curve: CostCurve,
        shape: TargetShape,
        namespace: Callable[[str], BackendNamespace],
        draft_model: Callable[[], Layer] | None = None,
        content: Callable[[Sequence[int]], ContentType] | None = None,
        observed_curve: LiveCurve | None = None,
    ) -> None:
        self.name = setting.name
        self.setting = setting
        self._measured, self._curve = curve, LiveCurve(curve, MEASURED)
        self._observed_curve = observed_curve
        self._shape, self._open_namespace = shape, namespace
        self._draft_model = draft_model if LayerKind.DRAFT_MODEL in setting.layers else None
        self._content = content if setting.config.controller is Controller.CONTENT else None
        self._namespace: BackendNamespace | None = None
        self._learned = LearnedState()

    def begin(self, workload: str, warmup: Sequence[AnsweredJob], round_number: int) -> None:
        """See :class:`Variant`. The warm-up is replayed with drafts, as the following jobs are."""
        self._namespace, self._learned = None, LearnedState()
        if not self.setting.layers:
            return
        if LayerKind.SUFFIX in self.setting.layers:
            name = "".join(c if c.isalnum() else "-" for c in self.name)
            self._namespace = self._open_namespace(
                f"decode/{workload}/{name}/{round_number}/{next(_NAMESPACE_NUMBERS)}"
            )
        clock = SimulatedClock()
        target = ReplayTarget(self._shape.vocab_size, self._shape.eog_ids, self._measured, clock)
        speculator = self._speculator(target, self._measured, clock, None)
        for answered in warmup:
            replay_call(answered, target, speculator, self.setting.config)

    def answering(self, job: Job, target: Target) -> AnswerSteps:
        """See :class:`StepwiseVariant`."""
        watch = Stopwatch()
        speculator = self._speculator(target, self._curve, watch, self._draft_model)
        labels = {"agent": job.agent, "session": job.key}
        steps = speculator.iter_drafted(
            job.prompt_ids, job.max_tokens, self.setting.config, labels, sampling=self.setting.sampling
        )
        return _outcomes(timed(steps, watch), self._observed_curve)

    def _speculator(
        self,
        target: Target,
        curve: CostCurve | LiveCurve,
        clock: Callable[[], float],
        draft_model: Callable[[], Layer] | None,
    ) -> Speculator:
        return Speculator(
            target,
            curve,
            self._namespace,
            draft_model,
            LayerKind.PROMPT_LOOKUP in self.setting.layers,
            self._content,
            clock=clock,
            learned=self._learned,
        )


def settings_for(options: DecodeOptions, sampling: Sampling, model_class: ModelClass) -> list[Setting]:
    """Driver settings to compare, by the values of ``--policy``: under expected gain one for each set of
    layers, for "fixed-k" one for each of them and each K.

    A value is "expected-gain", "first-match" (adaptive K), the name of a controller, or "plain" against
    itself, which shows the resolution of the run.

    Raises:
        InvalidInputError: a value of ``--policy`` or a layer is unknown.
    """
    found: dict[str, Setting] = {}

    def add(name: str, kinds: tuple[str, ...] = LAYERS, **config: Any) -> None:
        found[name] = Setting(name, DriverConfig(**config), kinds, sampling)

    for policy in options.policies:
        if policy == Policy.EXPECTED_GAIN:
            for names in options.layers:
                kinds = _kinds(names)
                add(policy if kinds == LAYERS else f"{policy}, {names}", kinds)
        elif policy == Controller.FIXED:
            for names, k in itertools.product(options.layers, options.ks):
                kinds = _kinds(names)
                name = f"K = {k}" if kinds == LAYERS else f"K = {k}, {names}"
                add(name, kinds, policy=Policy.FIRST_MATCH, controller=Controller.FIXED, k_start=k)
        elif policy in set(Controller) or policy == Policy.FIRST_MATCH:
            controller = Controller.ADAPTIVE if policy == Policy.FIRST_MATCH else Controller(policy)
            add(str(controller), policy=Policy.FIRST_MATCH, controller=controller, model_class=model_class)
        elif policy == PLAIN:
            add(f"{PLAIN}, again", ())
        else:
            known = [*Policy, *Controller, PLAIN]
            raise InvalidInputError("--policy must be known", expected=", ".join(known), got=repr(policy))
    return list(found.values())


def _kinds(names: str) -> tuple[str, ...]:
    if names == "all":
        return LAYERS
    kinds = tuple(names.split("+"))
    for kind in kinds:
        if kind not in LAYERS:
            raise InvalidInputError(
                "--layers must name known layers", expected=f"all, or of {'+'.join(LAYERS)}", got=kind
            )
    return kinds


def _outcomes(steps: ResultSteps, observed_curve: LiveCurve | None) -> AnswerSteps:
    """Yield the number of tokens of each step; return the outcome."""
    try:
        while True:
            step: StepRecord = next(steps)
            if observed_curve is not None:
                observed_curve.observe(len(step.token_ids) + step.replayed, step.target_seconds)
            yield len(step.emitted)
    except StopIteration as finished:
        return _outcome(finished.value)
    finally:
        steps.close()


def _outcome(timed_result: TimedResult) -> Outcome:
    result = timed_result.result
    own_ms = [round(step.query_seconds * 1e3, 4) for step in result.steps]
    return Outcome(
        len(result.token_ids),
        timed_result.seconds,
        result.stats.steps,
        result.stats.drafted,
        result.stats.accepted,
        {name: counts.sent.accepted for name, counts in result.stats.layers.items() if counts.sent.accepted},
        tuple(own_ms) if any(own_ms) else (),
        result.decode_seconds - sum(step.target_seconds + step.query_seconds for step in result.steps),
        result.token_ids,
    )
