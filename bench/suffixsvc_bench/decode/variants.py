"""Ways to answer a job: plain, or with drafts under some setting. Each has a memory of its own."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
from suffixsvc_driver.config import Controller, DriverConfig, LayerKind, Policy
from suffixsvc_driver.content import ContentType
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.live_curve import MEASURED, LiveCurve
from suffixsvc_driver.loop import Result, StepRecord
from suffixsvc_driver.sampling import Sampling
from suffixsvc_driver.targets import Target, TargetShape

from suffixsvc.errors import InvalidInputError
from suffixsvc.types import BackendNamespace
from suffixsvc_bench.decode.jobs import Job, Written
from suffixsvc_bench.decode.outcome import Outcome
from suffixsvc_bench.decode.told import AddedUpClock, ToldTarget, live_through
from suffixsvc_bench.decode.turns import Answering, Stopwatch, timed
from suffixsvc_bench.speculator import Known, Speaking, Speculator, Spoken

__all__ = [
    "PLAIN",
    "DriverVariant",
    "PlainVariant",
    "Setting",
    "Stepwise",
    "Variant",
    "Whole",
    "settings_for",
]

PLAIN: Final = "plain"
LAYERS: Final = tuple(str(kind) for kind in LayerKind)
#: a setting begins anew at every temperature, and must not know the answers to the same calls then
_MEMORIES: Final = itertools.count()


class Variant(Protocol):
    """A way to answer jobs."""

    @property
    def name(self) -> str: ...

    def begin(self, workload: str, warming: Sequence[Written], turn: int) -> None:
        """A workload begins, for the ``turn``-th time: forget everything else, remember ``warming``."""


@runtime_checkable
class Stepwise(Variant, Protocol):
    """A way that can stop after any step, so that several take turns within a job."""

    def answering(self, job: Job, target: Target) -> Answering: ...


@runtime_checkable
class Whole(Variant, Protocol):
    """A way that answers a job without a stop."""

    def answer(self, job: Job) -> Outcome: ...


@dataclass(frozen=True, slots=True)
class Setting:
    """How the driver works.

    Attributes:
        name: as tables call it.
        layers: which are asked, by kind.
    """

    name: str
    config: DriverConfig
    layers: tuple[str, ...] = LAYERS
    sampling: Sampling = field(default_factory=Sampling)


class PlainVariant:
    """The model alone.

    Args:
        witness: see :class:`DriverVariant`.
    """

    def __init__(
        self, curve: CostCurve, sampling: Sampling, name: str = PLAIN, witness: LiveCurve | None = None
    ) -> None:
        self.name = name
        self._curve = LiveCurve(curve, MEASURED)
        self._sampling = sampling
        self._witness = witness

    def begin(self, workload: str, warming: Sequence[Written], turn: int) -> None:
        pass

    def answering(self, job: Job, target: Target) -> Answering:
        """See :class:`Stepwise`."""
        watch = Stopwatch()
        speculator = Speculator(target, self._curve, clock=watch)
        steps = speculator.writing(job.prompt_ids, job.max_tokens, sampling=self._sampling)
        return _outcomes(timed(steps, watch), self._witness)


class DriverVariant:
    """With drafts. What its steps cost it learns by itself, from ``curve`` on.

    Args:
        shape: of the targets that it will answer on.
        namespace: opens a memory of this name.
        draft_model: makes a layer that drafts with a model; None where there is none.
        content: what kind of text token ids are.
        witness: learns what every step of a run takes, whosever it is: what the run is judged by must not be
            what the driver believed.
    """

    def __init__(
        self,
        setting: Setting,
        curve: CostCurve,
        shape: TargetShape,
        namespace: Callable[[str], BackendNamespace],
        draft_model: Callable[[], Layer] | None = None,
        content: Callable[[Sequence[int]], ContentType] | None = None,
        witness: LiveCurve | None = None,
    ) -> None:
        self.name = setting.name
        self.setting = setting
        self._measured, self._curve = curve, LiveCurve(curve, MEASURED)
        self._witness = witness
        self._shape, self._open = shape, namespace
        self._draft_model = draft_model if LayerKind.DRAFT_MODEL in setting.layers else None
        self._content = content if setting.config.controller is Controller.CONTENT else None
        self._memory: BackendNamespace | None = None
        self._known = Known()

    def begin(self, workload: str, warming: Sequence[Written], turn: int) -> None:
        """See :class:`Variant`. What was written before was written with drafts, as what follows will be."""
        self._memory, self._known = None, Known()
        if LayerKind.SUFFIX in self.setting.layers:
            self._memory = self._open(f"decode/{workload}/{_path(self.name)}/{turn}/{next(_MEMORIES)}")
        clock = AddedUpClock()
        target = ToldTarget(self._shape.vocab_size, self._shape.eog_ids, self._measured, clock)
        speculator = self._speculator(target, self._measured, clock, None)
        for written in warming:
            live_through(written, target, speculator, self.setting.config)

    def answering(self, job: Job, target: Target) -> Answering:
        """See :class:`Stepwise`."""
        watch = Stopwatch()
        speculator = self._speculator(target, self._curve, watch, self._draft_model)
        labels = {"agent": job.agent, "session": job.key}
        steps = speculator.drafting(
            job.prompt_ids, job.max_tokens, self.setting.config, labels, sampling=self.setting.sampling
        )
        return _outcomes(timed(steps, watch), self._witness)

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
            self._memory,
            draft_model,
            LayerKind.PROMPT_LOOKUP in self.setting.layers,
            self._content,
            clock=clock,
            known=self._known,
        )


def settings_for(
    *,
    policies: Sequence[str],
    ks: Sequence[int],
    layers: Sequence[str],
    sampling: Sampling,
    model_class: Any,
) -> list[Setting]:
    """Settings that are compared.

    Args:
        policies: "expected-gain", "first-match" (its K adaptive), the name of a controller, or
            "plain" against itself, which shows what the run can resolve.
        ks: for "fixed-k": a setting for each.
        layers: sets of layers, "all" or kinds joined by "+"; a setting for each under expected gain.

    Raises:
        InvalidInputError: no such policy, controller or layer.
    """
    found: list[Setting] = []
    for policy in policies:
        if policy == Policy.EXPECTED_GAIN:
            for names in layers:
                kinds = _kinds(names)
                title = policy if kinds == LAYERS else f"{policy}, {names}"
                found.append(Setting(title, DriverConfig(), kinds, sampling))
        elif policy == Controller.FIXED:
            for k in ks:
                config = DriverConfig(
                    policy=Policy.FIRST_MATCH, controller=Controller.FIXED, k_start=k, k_min=k, k_max=k
                )
                found.append(Setting(f"K = {k}", config, LAYERS, sampling))
        elif policy in set(Controller) or policy == Policy.FIRST_MATCH:
            controller = Controller.ADAPTIVE if policy == Policy.FIRST_MATCH else Controller(policy)
            config = DriverConfig(policy=Policy.FIRST_MATCH, controller=controller, model_class=model_class)
            found.append(Setting(str(controller), config, LAYERS, sampling))
        elif policy == PLAIN:
            found.append(Setting(f"{PLAIN}, again", DriverConfig(), (), sampling))
        else:
            known = [*Policy, *Controller, PLAIN]
            raise InvalidInputError("no such policy", expected=", ".join(known), got=repr(policy))
    return list({setting.name: setting for setting in found}.values())


def _kinds(names: str) -> tuple[str, ...]:
    if names == "all":
        return LAYERS
    kinds = tuple(names.split("+"))
    for kind in kinds:
        if kind not in LAYERS:
            raise InvalidInputError("no such layer", expected=f"all, or of {'+'.join(LAYERS)}", got=kind)
    return kinds


def _path(name: str) -> str:
    """A setting's name as part of a namespace."""
    return "".join(c if c.isalnum() else "-" for c in name)


def _outcomes(steps: Speaking, witness: LiveCurve | None) -> Answering:
    """How many tokens each step wrote, and what came out."""
    try:
        while True:
            step: StepRecord = next(steps)
            if witness is not None:
                witness.observe(len(step.token_ids) + step.replayed, step.target_seconds)
            yield len(step.emitted)
    except StopIteration as finished:
        return _outcome(finished.value)
    finally:
        steps.close()


def _outcome(spoken: Spoken) -> Outcome:
    result = spoken.result
    return Outcome(
        len(result.token_ids),
        spoken.seconds,
        result.stats.steps,
        result.stats.drafted,
        result.stats.accepted,
        {name: counts.sent.accepted for name, counts in result.stats.layers.items() if counts.sent.accepted},
        _own_ms(spoken),
        result.decode_seconds - sum(step.target_seconds + step.ask_seconds for step in result.steps),
        result.token_ids,
    )


def _own_ms(spoken: Spoken) -> tuple[float, ...]:
    """Of each step, what asking the layers took."""
    result: Result = spoken.result
    if not any(step.ask_seconds for step in result.steps):
        return ()
    asked = np.array([step.ask_seconds for step in result.steps])
    return tuple((asked * 1e3).round(4).tolist())
