"""One prompt answered by a real model: with drafts from a memory, or plain for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.content import ContentType
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.loop import Result, StepRecord, generate
from suffixsvc_driver.sampling import GREEDY, Sampling
from suffixsvc_driver.targets import Target
from suffixsvc_driver.trust import Trust

from suffixsvc.types import BackendNamespace

__all__ = ["Speculator", "Spoken"]


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
        on_step: called after every step of the model.
        clock: seconds.
    """

    target: Target
    curve: CostCurve | LiveCurve
    namespace: BackendNamespace | None = None
    draft_model: Callable[[], Layer] | None = None
    lookup: bool = True
    content: Callable[[Sequence[int]], ContentType] | None = None
    on_step: Callable[[StepRecord], None] | None = None
    clock: Callable[[], float] = time.perf_counter
    _draft_models: dict[str, Layer] = field(default_factory=dict)
    _trust: dict[tuple[str, str], Trust] = field(default_factory=dict)

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
        agent = labels.get("agent", "")
        outside = 0.0
        layers: list[Layer] = [PromptLookupLayer()] if self.lookup else []
        session = None
        if self.namespace is not None:
            began = self.clock()
            session = self.namespace.open_session(prompt_ids, labels=labels)
            outside += self.clock() - began
            layers.append(SuffixLayer(session))
        if self.draft_model is not None:
            if agent not in self._draft_models:
                self._draft_models[agent] = self.draft_model()
            layers.append(self._draft_models[agent])
        trust = self._trust.setdefault((agent, str(config.policy)), Trust())
        try:
            result = self._generate(prompt_ids, max_tokens, config, layers, trust, sampling)
        except BaseException:
            if session is not None:
                session.close(commit=False)
            raise
        if session is not None:
            began = self.clock()
            session.close(commit=commit)
            outside += self.clock() - began
        return Spoken(result, outside + result.telling_seconds)

    def plain(self, prompt_ids: Sequence[int], max_tokens: int, *, sampling: Sampling = GREEDY) -> Spoken:
        """Answer as the model alone would: no layer is asked, one token a step."""
        return Spoken(self._generate(prompt_ids, max_tokens, DriverConfig(), (), None, sampling))

    def _generate(
        self,
        prompt_ids: Sequence[int],
        max_tokens: int,
        config: DriverConfig,
        layers: Sequence[Layer],
        trust: Trust | None,
        sampling: Sampling,
    ) -> Result:
        return generate(
            self.target,
            prompt_ids,
            config,
            layers,
            max_tokens,
            sampling=sampling,
            curve=self.curve,
            trust=trust,
            content=self.content if layers else None,
            on_step=self.on_step,
            clock=self.clock,
        )
