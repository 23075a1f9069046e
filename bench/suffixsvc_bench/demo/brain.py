"""One call on the real model: with drafts, or plain for comparison."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from suffixsvc_driver.config import DriverConfig
from suffixsvc_driver.curve import CostCurve
from suffixsvc_driver.layers import Layer
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.loop import Result, generate
from suffixsvc_driver.targets.llama import LlamaTarget
from suffixsvc_driver.trust import Trust

from suffixsvc.types import BackendNamespace
from suffixsvc_bench.demo.paired import Timing
from suffixsvc_bench.demo.pipeline import Call

__all__ = ["Answer", "Brain"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote for a call. ``prompt`` and ``text`` are the token ids as text."""

    call: Call
    prompt: str
    text: str
    result: Result

    @property
    def timing(self) -> Timing:
        return Timing(len(self.result.token_ids), self.result.decode_seconds)


@dataclass(slots=True)
class Brain:
    """The target model and the memory it drafts from.

    Attributes:
        target: the model.
        curve: what its steps cost by width, measured.
        namespace: of the service; None answers without memory.
        draft_model: makes the third layer of an agent (each keeps a context on the draft worker); None
            where there is no draft worker.
    """

    target: LlamaTarget
    curve: CostCurve
    namespace: BackendNamespace | None = None
    draft_model: Callable[[], Layer] | None = None
    _draft_models: dict[str, Layer] = field(default_factory=dict)
    _trust: dict[tuple[str, str], Trust] = field(default_factory=dict)

    def drafted(self, call: Call, config: DriverConfig, *, commit: bool = True) -> Answer:
        """Answer a call with every layer on.

        Args:
            commit: whether the service remembers what was written. A rehearsal (False) leaves nothing
                behind, in the driver neither, so that the next run of the call starts from the same.
        """
        prompt, prompt_ids = self._prompt(call)
        layers: list[Layer] = [PromptLookupLayer()]
        session = None
        if self.namespace is not None:
            labels = {"agent": call.agent.name, "session": call.question.key}
            session = self.namespace.open_session(prompt_ids, labels=labels)
            layers.append(SuffixLayer(session))
        if self.draft_model is not None:
            if call.agent.name not in self._draft_models:
                self._draft_models[call.agent.name] = self.draft_model()
            layers.append(self._draft_models[call.agent.name])
        trust = self._trust.setdefault((call.agent.name, str(config.policy)), Trust())
        if not commit:
            trust = copy.deepcopy(trust)
        try:
            result = self._generate(call, prompt_ids, config, layers, trust)
        except BaseException:
            if session is not None:
                session.close(commit=False)
            raise
        if session is not None:
            session.close(commit=commit)
        return self._answer(call, prompt, result)

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
        )

    def _prompt(self, call: Call) -> tuple[str, list[int]]:
        text = self.target.model.chat(call.messages)
        return text, self.target.model.tokenize(text)

    def _answer(self, call: Call, prompt: str, result: Result) -> Answer:
        written = result.token_ids
        if written and written[-1] in self.target.eog_ids:
            written = written[:-1]
        return Answer(call, prompt, self.target.model.detokenize(written), result)
