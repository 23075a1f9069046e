"""One call on the real model: with drafts, or plain for comparison."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.live_curve import LiveCurve
from suffixsvc_driver.loop import Result, StepRecord
from suffixsvc_driver.targets.llama import LlamaTarget

from suffixsvc.types import BackendNamespace
from suffixsvc_bench.demo.paired import Timing
from suffixsvc_bench.demo.pipeline import Call
from suffixsvc_bench.recorded_call import text_of
from suffixsvc_bench.speculator import Speculator, Spoken

__all__ = ["Answer", "Brain"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote for a call.

    Attributes:
        prompt, text: the token ids as text.
        extra_seconds: see :class:`Spoken`.
    """

    call: Call
    prompt: str
    text: str
    result: Result
    extra_seconds: float = 0.0

    @property
    def timing(self) -> Timing:
        return Timing(len(self.result.token_ids), self.result.decode_seconds + self.extra_seconds)


class Brain:
    """The target model and the memory it drafts from.

    Args:
        target: the model.
        curve: what its steps cost by width; learns on from the steps.
        namespace: of the service; None answers without memory.
        draft_model: makes the third layer of an agent; None where there is no draft worker.
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
        spoken = self.speculator.drafted(prompt_ids, call.agent.max_tokens, config, labels, commit=commit)
        return self._answer(call, prompt, spoken)

    def plain(self, call: Call) -> Answer:
        """Answer a call as the model alone would: no layer is asked, one token a step."""
        prompt, prompt_ids = self._prompt(call)
        return self._answer(call, prompt, self.speculator.plain(prompt_ids, call.agent.max_tokens))

    def _prompt(self, call: Call) -> tuple[str, list[int]]:
        text = self.target.model.chat(call.messages)
        return text, self.target.model.tokenize(text)

    def _answer(self, call: Call, prompt: str, spoken: Spoken) -> Answer:
        text = text_of(self.target.model, spoken.result.token_ids, self.target.eog_ids)
        return Answer(call, prompt, text, spoken.result, spoken.extra_seconds)
