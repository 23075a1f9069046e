"""Two processes that write in turns, each drafting from what the other one is writing.

Each process has a model of its own and follows a namespace that nothing else writes to. A turn begins when
the process's follower has all live text that the other one wrote in its turns, and ends when the process is
:data:`AHEAD_TOKENS` tokens ahead of it:

    process A   turn 1 ....          turn 3 ........          turn 5
    process B             turn 2 ........          turn 4 ........

No session is closed before both answers are written. So every token that a process drafts from the namespace
is live text of the other one.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final, NamedTuple

from suffixsvc.errors import ServiceUnavailableError
from suffixsvc_bench.demo.agent_runner import AgentRunner, Answer
from suffixsvc_bench.demo.agents import Agent
from suffixsvc_bench.demo.pipeline import Call
from suffixsvc_bench.demo.questions import Question
from suffixsvc_bench.speculation.speculator import Speculator
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.exactness import Exactness, check_exactness
from suffixsvc_driver.decode.loop import StepRecord
from suffixsvc_driver.speculation.accounting import EVIDENCE
from suffixsvc_driver.targets.llama.context import ContextSettings
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.llama.offload import Offload
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_follower import Follower

#: tokens of its answer that a process is ahead of the other one at the end of a turn
AHEAD_TOKENS: Final = 20
#: assumed cost of a drafted token, in plain steps. With the cost on few cores, which is close to 1, hardly
#: anything would be drafted
STEPS_PER_DRAFTED_TOKEN: Final = 0.05
#: names of the processes, by their number
NAMES: Final = ("process A", "process B")
#: for a process to load the model and read its prompt, and for a turn
_TIMEOUT_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.1
#: for live text to arrive; a process goes on without it, as any reader of live text does
_LIVE_TEXT_SECONDS: Final = 20.0
#: between two looks at the live text that has arrived
_ARRIVAL_POLL_SECONDS: Final = 0.002
_WRITER: Final = Agent("writer", "", "{question}", (), max_tokens=120)


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


@dataclass(frozen=True, slots=True)
class LiveAnswer:
    """Answer of one process.

    Attributes:
        answer: the answer, with the process and its turns.
        exactness: of the answer, checked by the process that wrote it.
    """

    answer: Answer
    exactness: Exactness

    @property
    def live_tokens(self) -> int:
        """Tokens that were drafted from the live text of the other process."""
        return sum(EVIDENCE[source] == "suffix" for source in self.answer.result.sources)

    @property
    def live_share(self) -> str:
        """:attr:`live_tokens` of all tokens, in words."""
        return f"{self.live_tokens} of {len(self.answer.result.token_ids)} tokens"


class _Progress(NamedTuple):
    """State of a process at the end of a turn."""

    written: int  #: tokens of the answer
    position: int  #: tokens of its session, prompt included; 0 if it holds none of the answer yet
    ended: bool  #: the answer is complete


class _Turn(NamedTuple):
    """Start of a turn."""

    number: int
    other: _Progress  #: of the other process


def write_together(job: LiveJob, check: Callable[[], object]) -> list[LiveAnswer]:
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
        # the prompts are read, and the first tokens written
        progress: list[_Progress] = [_receive(pipe, check) for pipe in pipes]
        turn = 0
        while not all(each.ended for each in progress):
            number = turn % 2 if not progress[turn % 2].ended else 1 - turn % 2
            turn += 1
            _send(pipes[number], _Turn(turn, progress[1 - number]))
            progress[number] = _receive(pipes[number], check)
        for pipe in pipes:
            _send(pipe, None)
        answers: list[LiveAnswer] = [_receive(pipe, check) for pipe in pipes]
        return answers


def _send(pipe: Connection, message: _Turn | None) -> None:
    try:
        pipe.send(message)
    except OSError:
        raise _ended_early() from None


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
    except (EOFError, ConnectionError):
        raise _ended_early() from None


def _ended_early() -> ServiceUnavailableError:
    return ServiceUnavailableError("a process of the demo ended without its answer")


@dataclass(slots=True)
class _TurnTaker:
    """Ends and begins the turns of one process.

    Args:
        pipe: to the process that starts the turns.
        follower, path: the follower of this process, and the namespace.

    Attributes:
        turns: number of each turn, and the tokens of the answer that were written before it.
    """

    pipe: Connection
    follower: Follower
    path: str
    turns: list[tuple[int, int]] = field(default_factory=list)
    _written: int = 0
    _limit: int = 1

    def on_step(self, step: StepRecord) -> None:
        """Count the tokens of a step; the process waits for its next turn if they end one."""
        self._written += len(step.emitted)
        if self._limit <= self._written < _WRITER.max_tokens:
            self._end_turn(ended=False)
            turn: _Turn = self.pipe.recv()
            self.turns.append((turn.number, self._written))
            ahead = turn.other.written + AHEAD_TOKENS
            self._limit = _WRITER.max_tokens if turn.other.ended else max(self._written + 1, ahead)
            self._wait_for_live_text(turn.other.position)

    def on_end(self) -> None:
        """The answer is written: wait until the other one is, too."""
        self._end_turn(ended=True)
        self.pipe.recv()

    def _end_turn(self, *, ended: bool) -> None:
        (session,) = self.follower.followed(self.path).sessions
        # a session takes the tokens of a step with the next query; of a prompt alone others receive nothing
        position = 0 if session.sent is None or not self.turns else len(session.sent)
        self.pipe.send(_Progress(self._written, position, ended))

    def _wait_for_live_text(self, position: int) -> None:
        """Wait until the text of the only other session has arrived up to a position, for a while."""
        deadline = time.monotonic() + _LIVE_TEXT_SECONDS
        while max(self.follower.live_text(self.path).values(), default=0) < position:
            if time.monotonic() > deadline:
                return
            time.sleep(_ARRIVAL_POLL_SECONDS)


def _process(job: LiveJob, number: int, pipe: Connection) -> None:
    """One process: a model, a follower, an answer."""
    question = job.questions[number]
    with ExitStack() as stack:
        model = stack.enter_context(LlamaModel(job.model, offload=job.offload))
        target = stack.enter_context(LlamaTarget(model, job.settings))
        follower = stack.enter_context(Follower(job.address))
        namespace = follower.namespace(job.namespace, model.vocabulary.fingerprint)
        if not namespace.wait(_TIMEOUT_SECONDS):
            raise ServiceUnavailableError("the service must send the contents of a namespace in time")
        turns = _TurnTaker(pipe, follower, job.namespace)
        speculator = Speculator(target, job.curve, namespace, on_step=turns.on_step, on_end=turns.on_end)
        call = Call(_WRITER, question, 0, [{"role": "user", "content": question.text}])
        answer = AgentRunner(model, speculator).drafted(call)
        name = f"{NAMES[number]} (pid {os.getpid()})"
        answer = replace(answer, process=name, turns=tuple(turns.turns))
        pipe.send(LiveAnswer(answer, check_exactness(target, answer.result)))
