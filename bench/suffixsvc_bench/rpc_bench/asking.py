"""What it costs a driver to ask: the cache, in its own process or over a socket, and a draft worker."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from suffixsvc_client import SuffixClient
from suffixsvc_driver.workers.client import DraftWorkerClient

from suffixsvc import SuffixCache, wire
from suffixsvc.errors import ProtocolError
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc_bench.rpc_bench.processes import service_process, worker_process
from suffixsvc_bench.rpc_bench.report import Percentiles
from suffixsvc_bench.rpc_bench.subjects import NAMESPACE, EngineSteps, StreamSteps
from suffixsvc_bench.rpc_bench.timing import portions, timed
from suffixsvc_bench.rpc_bench.workload import Workload

__all__ = ["AskingCost", "WorkerCost", "measure_asking", "measure_worker"]

_ROUNDS: Final = 6
_WARM_CALLS: Final = 20
_PAUSE_S: Final = 0.004
_MAX_DRAFT_TOKENS: Final = 16
_OUTPUTS: Final = 200
_OUTPUT_TOKENS: Final = 500
_PROMPT_TOKENS: Final = 200
_TEXT_TOKENS: Final = 4_000
_WORKER_CONTEXT: Final = 64
_WORKER_PATIENCE_S: Final = 60.0

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class AskingCost:
    """A step of one session of the suffix cache: it appends, learns and drafts.

    Attributes:
        calls: timed, of either.
        drafted: tokens in an answer, mean.
        engine: in the caller's own process.
        rpc: on a stream over a unix socket, from `suffixsvc serve` in a process of its own; None = not asked.
    """

    calls: int
    drafted: float
    engine: Percentiles
    rpc: Percentiles | None


@dataclass(frozen=True, slots=True)
class WorkerCost:
    """A draft worker's questions.

    Attributes:
        seconds_per_token: of a drafted token, as the worker measured it at its start.
        question: for one token, over a unix socket.
        around: of that, what was not spent computing.
    """

    seconds_per_token: float
    question: Percentiles
    around: Percentiles


def measure_asking(
    *, rpc: bool, calls: int = 300, seed: int = 0, progress: Progress | None = None
) -> AskingCost:
    """Steps behind a CPU-bound pause each, as a model makes one, engine and service in alternating rounds.

    Args:
        rpc: start a service and measure it, too.
        progress: told how many calls are done, of how many.

    Raises:
        ServiceError: the service did not start, or left a step without an answer.
    """
    workload = Workload(seed)
    known = workload.outputs(NAMESPACE, _OUTPUTS, _OUTPUT_TOKENS)
    prompts, texts = [workload.text(_PROMPT_TOKENS)], [workload.text(_TEXT_TOKENS)]
    with ExitStack() as stack:
        cache = stack.enter_context(SuffixCache())
        cache.namespace(NAMESPACE).add_outputs(known)
        engine = stack.enter_context(closing(EngineSteps(cache, prompts, texts, _MAX_DRAFT_TOKENS)))
        subjects: list[EngineSteps | StreamSteps] = [engine]
        if rpc:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfx-")))
            address = stack.enter_context(service_process(folder)).unix
            with SuffixClient(address) as client:
                client.namespace(NAMESPACE).add_outputs(known)
            remote = StreamSteps(address, prompts, texts, _MAX_DRAFT_TOKENS)
            subjects.append(stack.enter_context(closing(remote)))
        taken = [Percentiles.of(each) for each in _alternating(subjects, calls, progress)]
    return AskingCost(calls, engine.drafted / engine.steps, taken[0], taken[1] if rpc else None)


def _alternating(
    subjects: Sequence[EngineSteps | StreamSteps], calls: int, progress: Progress | None
) -> list[list[float]]:
    seconds: list[list[float]] = [[] for _ in subjects]
    for subject in subjects:
        timed(subject, min(_WARM_CALLS, calls), _PAUSE_S)
    for portion in portions(calls, min(_ROUNDS, calls)):
        for subject, taken in zip(subjects, seconds, strict=True):
            taken.extend(timed(subject, portion, _PAUSE_S))
        if progress is not None:
            progress(sum(map(len, seconds)), calls * len(subjects))
    return seconds


def measure_worker(model: Path, *, threads: int, calls: int = 30) -> WorkerCost:
    """Start `suffixsvc draft-worker` and ask it for one token behind one new one, again and again.

    Raises:
        ServiceError: it did not start, or does not answer as it should.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sfx-") as name,
        worker_process(Path(name), model, threads) as address,
        DraftWorkerClient(address) as client,
        client.stub() as stub,
    ):
        described = client.describe()
        tokens = [1 + i % 97 for i in range(_WORKER_CONTEXT + calls)]  # any will do
        questions: queue.SimpleQueue[pb.WorkerDraftRequest | None] = queue.SimpleQueue()
        answers = stub.Draft(iter(questions.get, None), timeout=_WORKER_PATIENCE_S)
        taken: list[float] = []
        around: list[float] = []
        for held in (0, *range(_WORKER_CONTEXT, _WORKER_CONTEXT + calls)):
            upto = max(held + 1, _WORKER_CONTEXT)
            question = pb.WorkerDraftRequest(
                seq=upto,
                session_id="probe",
                keep=held,
                new_token_ids=wire.pack_tokens(np.array(tokens[held:upto], np.int32)),
                max_draft_tokens=1,
            )
            before = time.perf_counter()
            questions.put(question)
            answer = next(answers)
            taken.append(time.perf_counter() - before)
            around.append(taken[-1] - answer.compute_seconds)
            if answer.length < upto:
                raise ProtocolError("a draft worker lost its context", expected=upto, got=answer.length)
        questions.put(None)
        return WorkerCost(described.seconds_per_token, Percentiles.of(taken[1:]), Percentiles.of(around[1:]))
