"""One prompt answered by a real model: with drafts from a memory, or plain for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field

from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.content import ContentType
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.loop import Result, StepRecord, drain, stream
from suffixsvc_driver.sampling import GREEDY, Sampling
from suffixsvc_driver.targets import Target
from suffixsvc_driver.trust import Trust

from suffixsvc.types import BackendNamespace

__all__ = ["Known", "Speaking", "Speculator", "Spoken"]


@dataclass(frozen=True, slots=True)
class Spoken:
    """An answer.

    Attributes:
        extra_seconds: what drafting cost around the decoding: the session opened and closed, the layers
            told where the call begins and ends. 0 for a plain run.
    """

    result: Result
    extra_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Decoding, everything that drafting costs included, the prompt's prefill left out."""
        return self.result.decode_seconds + self.extra_seconds


#: an answer a step at a time
Speaking = Generator[StepRecord, None, Spoken]


@dataclass(slots=True)
class Known:
    """What is kept from answer to answer, besides the text.

    Attributes:
        draft_models: the third layer, by agent: each keeps a context on the draft worker.
        trust: how far which layers' drafts can be trusted, by agent and policy.
    """

    draft_models: dict[str, Layer] = field(default_factory=dict)
    trust: dict[tuple[str, str], Trust] = field(default_factory=dict)


@dataclass(slots=True)
class Speculator:
    """A target model and the memory it drafts from.

    Attributes:
        target: the model.
        curve: what its steps cost by width, measured.
        namespace: of an engine or a service; None answers without memory.
        draft_model: makes the third layer of an agent (each keeps a context on the draft worker); None
            where there is no draft worker.
        lookup: whether the session's own text is searched by the driver.
        content: see :func:`suffixsvc_driver.loop.generate`.
        on_step: called after every step of the model; not of an answer a step at a time.
        clock: seconds.
        known: what answers before this one taught.
    """

    target: Target
    curve: CostCurve | LiveCurve
    namespace: BackendNamespace | None = None
    draft_model: Callable[[], Layer] | None = None
    lookup: bool = True
    content: Callable[[Sequence[int]], ContentType] | None = None
    on_step: Callable[[StepRecord], None] | None = None
    clock: Callable[[], float] = time.perf_counter
    known: Known = field(default_factory=Known)

    def drafted(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        config: DriverConfig,
        labels: Mapping[str, str],
        *,
        sampling: Sampling = GREEDY,
        commit: bool = True,
    ) -> Spoken:
        """Answer with every layer on.

        Args:
            labels: of the session; what is learned about drafts is kept by ``labels["agent"]``.
            commit: whether what was written is remembered. With False the text is forgotten; what engine
                and driver learned meanwhile about how far drafts can be trusted stays.
        """
        steps = self.drafting(prompt_ids, max_tokens, config, labels, sampling=sampling, commit=commit)
        return drain(steps, self.on_step)

    def plain(self, prompt_ids: Sequence[int], max_tokens: int, *, sampling: Sampling = GREEDY) -> Spoken:
        """Answer as the model alone would: no layer is asked, one token a step."""
        return drain(self.writing(prompt_ids, max_tokens, sampling=sampling), self.on_step)

    def drafting(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        config: DriverConfig,
        labels: Mapping[str, str],
        *,
        sampling: Sampling = GREEDY,
        commit: bool = True,
    ) -> Speaking:
        """:meth:`drafted`, a step at a time."""
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
                draft_models = self.known.draft_models
                if agent not in draft_models:
                    draft_models[agent] = self.draft_model()
                layers.append(draft_models[agent])
            trust = self.known.trust.setdefault((agent, str(config.policy)), Trust())
            result = yield from self._stream(prompt_ids, max_tokens, config, layers, trust, sampling)
        except BaseException:
            if session is not None:
                session.close(commit=False)
            raise
        if session is not None:
            began = self.clock()
            session.close(commit=commit)
            outside += self.clock() - began
        return Spoken(result, outside + result.telling_seconds)

    def writing(self, prompt_ids: Sequence[int], max_tokens: int, *, sampling: Sampling = GREEDY) -> Speaking:
        """:meth:`plain`, a step at a time."""
        result = yield from self._stream(prompt_ids, max_tokens, DriverConfig(), (), None, sampling)
        return Spoken(result)

    def _stream(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        config: DriverConfig,
        layers: Sequence[Layer],
        trust: Trust | None,
        sampling: Sampling,
    ) -> Generator[StepRecord, None, Result]:
        return stream(
            self.target,
            prompt_ids,
            config,
            layers,
            max_tokens,
            sampling=sampling,
            curve=self.curve,
            trust=trust,
            content=self.content if layers else None,
            clock=self.clock,
        )
