"""Two processes that write at the same time, each drafting from what the other one is writing.

Each process has a model of its own and follows a namespace that nothing else writes to: every token that one
of them drafts from the namespace is the other one's text, most of it not finished yet.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import ServiceUnavailableError
from suffixsvc_bench.demo.agent_runner import AgentRunner, Answer
from suffixsvc_bench.demo.agents import Agent
from suffixsvc_bench.demo.pipeline import Call
from suffixsvc_bench.demo.questions import Question
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import StepRecord
from suffixsvc_driver.speculation.accounting import EVIDENCE
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_follower import FollowerNamespace, connect

#: tokens that the first process is ahead when the second one goes on
AHEAD_TOKENS: Final = 24
#: for a process to load the model and read its prompt, and for its answer
_TIMEOUT_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.1
#: messages of a process
_READY: Final = "ready"
_AHEAD: Final = "ahead"
_GO: Final = "go"
_WRITER: Final = Agent("writer", "", "{question}", (), max_tokens=96)


@dataclass(frozen=True, slots=True)
class LiveJob:
    """What both processes need.

    Attributes:
        model, settings, offload: of the target.
        curve: cost of its steps.
        address, namespace: of the service, and what both write to.
        questions: one for each process.
    """

    model: Path
    settings: ContextSettings
    offload: Offload
    curve: CostCurve
    address: str
    namespace: str
    questions: tuple[Question, Question]


def write_together(job: LiveJob, check: Callable[[], object]) -> list[Answer]:
    """Answer the questions of the stage, each in a process of its own.

    Args:
        check: called while the processes work; what it raises ends them.

    Raises:
        ServiceUnavailableError: a process failed.
    """
    spawn = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for number in range(len(job.questions)):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=_process, args=(job, number, theirs), daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join)
            stack.callback(process.terminate)
            pipes.append(ours)
        for pipe in pipes:
            _receive(pipe, check)  # the prompt is read, the first token written
        first, second = pipes
        first.send(_GO)
        _receive(first, check)  # it is ahead
        second.send(_GO)
        answers: list[Answer] = [_receive(pipe, check) for pipe in pipes]
        return answers


def _receive(pipe: Connection, check: Callable[[], object]) -> Any:
    """The next message of a process."""
    waited = 0.0
    while not pipe.poll(_POLL_SECONDS):
        check()
        waited += _POLL_SECONDS
        if waited > _TIMEOUT_SECONDS:
            raise ServiceUnavailableError("a process of the demo must answer in time", got=f"{waited:.0f} s")
    try:
        return pipe.recv()
    except EOFError:
        raise ServiceUnavailableError("a process of the demo ended without its answer") from None


def _process(job: LiveJob, number: int, pipe: Connection) -> None:
    """One process: a model, a follower, an answer."""
    written = 0  # tokens
    question = job.questions[number]

    def on_step(step: StepRecord) -> None:
        nonlocal written
        before, written = written, written + len(step.emitted)
        if before == 0:
            pipe.send(_READY)
            pipe.recv()
        if number == 0 and before < AHEAD_TOKENS <= written:
            pipe.send(_AHEAD)

    with ExitStack() as stack:
        model = stack.enter_context(LlamaModel(job.model, offload=job.offload))
        target = stack.enter_context(LlamaTarget(model, job.settings))
        tokenizer = model.vocabulary.fingerprint
        follower = connect(job.address, [(job.namespace, tokenizer)], "follow")
        stack.callback(follower.close)
        namespace = follower.namespace(job.namespace, tokenizer)
        if isinstance(namespace, FollowerNamespace):
            namespace.wait(_TIMEOUT_SECONDS)
        speculator = Speculator(target, job.curve, namespace)
        speculator.on_step = on_step
        call = Call(_WRITER, question, 0, [{"role": "user", "content": question.text}])
        answer = replace(AgentRunner(model, speculator).drafted(call), process=f"process {os.getpid()}")
        if number == 0 and written < AHEAD_TOKENS:
            pipe.send(_AHEAD)
        pipe.send(answer)


def live_tokens(answers: Sequence[Answer]) -> int:
    """Tokens that were drafted from the other process's text."""
    return sum(EVIDENCE[source] == "suffix" for answer in answers for source in answer.result.sources)
