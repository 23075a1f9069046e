"""One call on the real model: with drafts, or plain for comparison."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.loop import Result, StepRecord, generate
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.trust import Trust

from suffixsvc.types import BackendNamespace
from suffixsvc_bench.demo.paired import Timing
from suffixsvc_bench.demo.pipeline import Call
from suffixsvc_bench.recorded_call import text_of

__all__ = ["Answer", "Brain"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote for a call.

    Attributes:
        prompt, text: the token ids as text.
        extra_seconds: what drafting cost around the decoding: the session opened and closed, the layers
            told where the call begins and ends. 0 for a plain run.
    """

    call: Call
    prompt: str
    text: str
    result: Result
    extra_seconds: float = 0.0

    @property
    def timing(self) -> Timing:
        return Timing(len(self.result.token_ids), self.result.decode_seconds + self.extra_seconds)


class _Watch:
    """Adds up the seconds spent in its `with` blocks."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


@dataclass(slots=True)
class Brain:
    """The target model and the memory it drafts from.

    Attributes:
        target: the model.
        curve: what its steps cost by width, measured.
        namespace: of the service; None answers without memory.
        draft_model: makes the third layer of an agent (each keeps a context on the draft worker); None
            where there is no draft worker.
        on_step: called after every step of the model.
    """

    target: LlamaTarget
    curve: CostCurve
    namespace: BackendNamespace | None = None
    draft_model: Callable[[], Layer] | None = None
    on_step: Callable[[StepRecord], None] | None = None
    _draft_models: dict[str, Layer] = field(default_factory=dict)
    _trust: dict[tuple[str, str], Trust] = field(default_factory=dict)

    def drafted(self, call: Call, config: DriverConfig, *, commit: bool = True) -> Answer:
        """Answer a call with every layer on.

        Args:
            commit: whether the service remembers what was written. With False it forgets the text; what
                it and the driver learned meanwhile about how far drafts can be trusted stays.
        """
        prompt, prompt_ids = self._prompt(call)
        watch = _Watch()
        layers: list[Layer] = [PromptLookupLayer()]
        session = None
        if self.namespace is not None:
            labels = {"agent": call.agent.name, "session": call.question.key}
            with watch:
                session = self.namespace.open_session(prompt_ids, labels=labels)
            layers.append(SuffixLayer(session))
        if self.draft_model is not None:
            if call.agent.name not in self._draft_models:
                self._draft_models[call.agent.name] = self.draft_model()
            layers.append(self._draft_models[call.agent.name])
        trust = self._trust.setdefault((call.agent.name, str(config.policy)), Trust())
        try:
            result = self._generate(call, prompt_ids, config, layers, trust)
        except BaseException:
            if session is not None:
                session.close(commit=False)
            raise
        if session is not None:
            with watch:
                session.close(commit=commit)
        return self._answer(call, prompt, result, watch.seconds + result.telling_seconds)

    def plain(self, call: Call) -> Answer:
        """Answer a call as the model alone would: no layer is asked, one token a step."""
        prompt, prompt_ids = self._prompt(call)
        return self._answer(call, prompt, self._generate(call, prompt_ids, DriverConfig(), (), None))

    def _generate(
        self,
        call: Call,
        prompt_ids: Sequence[int],
        config: DriverConfig,
        layers: Sequence[Layer],
        trust: Trust | None,
    ) -> Result:
        return generate(
            self.target,
            prompt_ids,
            config,
            layers,
            call.agent.max_tokens,
            curve=self.curve,
            trust=trust,
            on_step=self.on_step,
        )

    def _prompt(self, call: Call) -> tuple[str, list[int]]:
        text = self.target.model.chat(call.messages)
        return text, self.target.model.tokenize(text)

    def _answer(self, call: Call, prompt: str, result: Result, extra_seconds: float = 0.0) -> Answer:
        text = text_of(self.target.model, result.token_ids, self.target.eog_ids)
        return Answer(call, prompt, text, result, extra_seconds)
