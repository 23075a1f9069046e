"""Generation for one prompt on a real model: with drafts from a namespace, or plain for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from suffixsvc.types import BackendNamespace
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.generation import Request
from suffixsvc_driver.decode.loop import Result, StepRecord, drain, stream
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.policy.calibration import Calibrator
from suffixsvc_driver.sampling.settings import GREEDY, Sampling
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.settings.text_kind import ContentType
from suffixsvc_driver.targets import Target


@dataclass(frozen=True, slots=True)
class TimedResult:
    """A generation with the time of its session.

    Attributes:
        extra_seconds: cost of drafting outside the decoding: opening and closing the session, notifying
            layers of begin and end. 0 for a plain run.
    """

    result: Result
    extra_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Decoding time with all costs of drafting, without the prompt's prefill."""
        return self.result.decode_seconds + self.extra_seconds


#: a generation that yields its steps
ResultSteps = Generator[StepRecord, None, TimedResult]


@dataclass(slots=True)
class LearnedState:
    """State that is kept from answer to answer, besides the namespace.

    Attributes:
        draft_models: draft model layers by agent: each has a context on the draft worker.
        calibrator: calibrators of the layers' probabilities, by agent and policy.
    """

    draft_models: dict[str, Layer] = field(default_factory=dict)
    calibrator: dict[tuple[str, str], Calibrator] = field(default_factory=dict)


@dataclass(slots=True)
class Speculator:
    """A target model and the namespace that it drafts from.

    Attributes:
        target: the model.
        curve: cost of its steps by width.
        namespace: of an engine or a service; None answers without the suffix layer.
        draft_model: makes the draft model layer of an agent (each has a context on the draft worker); None
            without a draft worker.
        lookup: whether the driver uses prompt lookup.
        content: see :func:`suffixsvc_driver.decode.loop.generate`.
        on_step: called after every step of :meth:`drafted` and :meth:`plain`.
        on_end: called after the last step, before the session is closed.
        clock: seconds.
        learned: state from earlier answers.
    """

    target: Target
    curve: CostCurve | LiveCurve
    namespace: BackendNamespace | None = None
    draft_model: Callable[[], Layer] | None = None
    lookup: bool = True
    content: Callable[[Sequence[int]], ContentType] | None = None
    on_step: Callable[[StepRecord], None] | None = None
    on_end: Callable[[], None] | None = None
    clock: Callable[[], float] = time.perf_counter
    learned: LearnedState = field(default_factory=LearnedState)

    def drafted(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        config: DriverConfig,
        labels: Mapping[str, str],
        *,
        commit: bool = True,
    ) -> TimedResult:
        """Answer greedily with every layer on.

        Args:
            labels: of the session; learned state is kept by ``labels["agent"]``.
            commit: store what was written. If False the text is discarded, but learned probabilities remain.
        """
        return drain(self.iter_drafted(prompt_ids, max_tokens, config, labels, commit=commit), self.on_step)

    def plain(self, prompt_ids: Sequence[int], max_tokens: int) -> TimedResult:
        """Answer without layers, one token per step."""
        bare = replace(self, namespace=None, draft_model=None, lookup=False)
        return bare.drafted(prompt_ids, max_tokens, DriverConfig(), {})

    def iter_drafted(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        config: DriverConfig,
        labels: Mapping[str, str],
        *,
        sampling: Sampling = GREEDY,
        commit: bool = True,
    ) -> ResultSteps:
        """:meth:`drafted`, step by step."""
        agent = labels.get("agent", "")
        outside = 0.0
        layers: list[Layer] = [PromptLookupLayer()] if self.lookup else []
        session = None
        if self.namespace is not None:
            began = self.clock()
            session = self.namespace.open_session(prompt_ids, labels=labels)
            outside += self.clock() - began
            layers.append(SuffixLayer(session))
        try:
            if self.draft_model is not None:
                draft_models = self.learned.draft_models
                if agent not in draft_models:
                    draft_models[agent] = self.draft_model()
                layers.append(draft_models[agent])
            calibrator = self.learned.calibrator.setdefault((agent, str(config.policy)), Calibrator())
            content = self.content if layers else None
            request = Request(
                prompt_ids, layers, max_tokens, sampling, content=content, calibrator=calibrator
            )
            result = yield from stream(self.target, request, config, curve=self.curve, clock=self.clock)
            if self.on_end is not None:
                self.on_end()
        except BaseException:
            if session is not None:
                session.close(commit=False)
            raise
        if session is not None:
            began = self.clock()
            session.close(commit=commit)
            outside += self.clock() - began
        return TimedResult(result, outside + (result.notify_seconds if layers else 0.0))
