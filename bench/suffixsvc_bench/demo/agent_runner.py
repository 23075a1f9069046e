"""Execution of one agent call on the real model, with drafts or plain for comparison, and its record.

A record is one line of JSON per call (see recorded_call.py); its session is the question.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc_bench.demo.pipeline import Call
from suffixsvc_bench.speculation.paired import Outcome
from suffixsvc_bench.speculation.recorded_call import RecordedCall, text_of
from suffixsvc_bench.speculation.speculator import Speculator, TimedResult
from suffixsvc_caches.atomic import new_file
from suffixsvc_driver.decode.loop import Result
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.llama.model import LlamaModel

DATASET: Final = "suffixsvc-demo"


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model wrote for a call.

    Attributes:
        prompt, text: prompt and answer as text.
        result: the generation.
        seconds: decoding time with all costs of drafting.
        process: that wrote it in turns with another one; "" outside of that stage.
        turns: number of each turn of the process, and the tokens that were written before it.
    """

    call: Call
    prompt: str
    text: str
    result: Result
    seconds: float
    process: str = ""
    turns: tuple[tuple[int, int], ...] = ()

    @property
    def outcome(self) -> Outcome:
        """Tokens and decoding time."""
        return Outcome(len(self.result.token_ids), self.seconds)


@dataclass(frozen=True, slots=True)
class AgentRunner:
    """The target model with the namespace that it drafts from."""

    model: LlamaModel
    speculator: Speculator

    def drafted(self, call: Call, config: DriverConfig | None = None, *, commit: bool = True) -> Answer:
        """Answer a call with every layer on. See :meth:`Speculator.drafted`."""
        labels = {"agent": call.agent.name, "session": call.question.key}
        return self._answer(
            call,
            lambda ids: self.speculator.drafted(
                ids, call.agent.max_tokens, config or DriverConfig(), labels, commit=commit
            ),
        )

    def plain(self, call: Call) -> Answer:
        """Answer a call without layers, one token per step."""
        return self._answer(call, lambda ids: self.speculator.plain(ids, call.agent.max_tokens))

    def _answer(self, call: Call, write: Callable[[list[int]], TimedResult]) -> Answer:
        prompt = self.model.chat(call.messages)
        timed = write(self.model.tokenize(prompt))
        return Answer(call, prompt, text_of(self.model, timed.result.token_ids), timed.result, timed.seconds)


#: writes an answer and the number of its pass
Record = Callable[[Answer, int], object]


@contextmanager
def recorder(path: Path | None, *, model: str, tokenizer: str) -> Iterator[Record]:
    """Record calls in a file that is created, complete, when the block ends without an error.

    Args:
        path: compressed if it ends in .gz; None records nothing.
        model, tokenizer: name of the model, and fingerprint of its vocabulary.
    """
    if path is None:
        yield lambda answer, pass_number: None
        return
    lines: list[bytes] = []

    def record(answer: Answer, pass_number: int) -> None:
        call, result = answer.call, answer.result
        recorded = RecordedCall(
            session=call.question.key,
            agent=call.agent.name,
            turn=call.turn,
            prompt=answer.prompt,
            response=answer.text,
            prompt_ids=result.prompt_ids,
            token_ids=result.token_ids,
            finish=str(result.finish),
        )
        meta = {"pass": pass_number, "question": call.question.text}
        lines.append(recorded.line(dataset=DATASET, model=model, tokenizer=tokenizer, meta=meta).encode())

    yield record
    packed = path.suffix == ".gz"
    with new_file(path, force=True) as file, gzip.open(file, "wb") if packed else nullcontext(file) as stream:
        stream.writelines(lines)
