"""Execution of one agent call on the real model: with drafts, or plain for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from suffixsvc.types import BackendNamespace
from suffixsvc_bench.demo.paired import Timing
from suffixsvc_bench.demo.pipeline import Call
from suffixsvc_bench.speculation.recorded_call import text_of
from suffixsvc_bench.speculation.speculator import Speculator, TimedResult
from suffixsvc_driver.cost.live_curve import LiveCurve
from suffixsvc_driver.decode.loop import Result, StepRecord
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget

__all__ = ["AgentRunner", "Answer"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote for a call.

    Attributes:
        prompt, text: prompt and answer as text.
        result: the generation.
        extra_seconds: see :class:`TimedResult`.
    """

    call: Call
    prompt: str
    text: str
    result: Result
    extra_seconds: float = 0.0

    @property
    def timing(self) -> Timing:
        """Tokens and decoding time, with the costs of drafting."""
        return Timing(len(self.result.token_ids), self.result.decode_seconds + self.extra_seconds)


class AgentRunner:
    """The target model and the namespace that it drafts from.

    Args:
        target: the model.
        curve: cost of its steps by width; every step corrects it.
        namespace: of the service; None answers without the suffix layer.
        draft_model: makes a draft model layer; None without a draft worker.
        on_step: called after every step of the model.
    """

    def __init__(
        self,
        target: LlamaTarget,
        curve: LiveCurve,
        namespace: BackendNamespace | None = None,
        draft_model: Callable[[], Layer] | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        self.target, self.curve = target, curve
        self.speculator = Speculator(target, curve, namespace, draft_model, on_step=on_step)

    def drafted(self, call: Call, config: DriverConfig, *, commit: bool = True) -> Answer:
        """Answer a call with every layer on. See :meth:`Speculator.drafted`."""
        prompt, prompt_ids = self._prompt(call)
        labels = {"agent": call.agent.name, "session": call.question.key}
        timed_result = self.speculator.drafted(
            prompt_ids, call.agent.max_tokens, config, labels, commit=commit
        )
        return self._answer(call, prompt, timed_result)

    def plain(self, call: Call) -> Answer:
        """Answer a call without layers, one token per step."""
        prompt, prompt_ids = self._prompt(call)
        return self._answer(call, prompt, self.speculator.plain(prompt_ids, call.agent.max_tokens))

    def _prompt(self, call: Call) -> tuple[str, list[int]]:
        text = self.target.model.chat(call.messages)
        return text, self.target.model.tokenize(text)

    def _answer(self, call: Call, prompt: str, timed_result: TimedResult) -> Answer:
        text = text_of(self.target.model, timed_result.result.token_ids, self.target.eog_ids)
        return Answer(call, prompt, text, timed_result.result, timed_result.extra_seconds)
