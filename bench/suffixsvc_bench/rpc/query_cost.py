"""Cost of a driver's queries: the cache in process, as a follower or over a socket, and a draft worker."""

from __future__ import annotations

import queue
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc import SuffixCache, wire
from suffixsvc.errors import ProtocolError
from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc_bench.report.statistics import percentiles
from suffixsvc_bench.rpc.processes import service_process, worker_process
from suffixsvc_bench.rpc.subjects import NAMESPACE, EngineSteps, FollowerSteps, StreamSteps
from suffixsvc_bench.rpc.timing import alternating
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client import SuffixClient
from suffixsvc_driver.workers.client.grpc_client import DraftWorkerClient

_ROUNDS: Final = 6
_WARM_CALLS: Final = 20
_PAUSE_S: Final = 0.004
_MAX_DRAFT_TOKENS: Final = 16
_OUTPUTS: Final = 200
_OUTPUT_TOKENS: Final = 500
_PROMPT_TOKENS: Final = 200
_TEXT_TOKENS: Final = 4_000
_WORKER_CONTEXT: Final = 64
_WORKER_TIMEOUT_S: Final = 60.0

Progress = Callable[[int, int], None]


def measure_cache_queries(
    *, rpc: bool, calls: int = 300, seed: int = 0, progress: Progress = lambda *_: None
) -> dict[str, Any]:
    """Time steps after CPU-bound pauses, as in decoding: engine, follower and service in alternating rounds.

    Args:
        rpc: start a service and measure it and its follower too.
        calls: timed calls of each kind.
        seed: of the texts.
        progress: called with the number of calls of each kind that are done, and ``calls``.

    Returns:
        "calls": timed calls of each kind; "drafted": mean tokens of an answer; "engine_us", "follower_us",
        "rpc_us": microseconds of a step of one session (append, learn, draft) in this process, on a follower
        in this process of `suffixsvc serve`, and over gRPC and a unix socket from that service. The last two
        are None if they were not measured.

    Raises:
        ServiceError: the service did not start, or did not answer a step.
    """
    workload = Workload(seed)
    known = workload.outputs(NAMESPACE, _OUTPUTS, _OUTPUT_TOKENS)
    prompts, texts = [workload.text(_PROMPT_TOKENS)], [workload.text(_TEXT_TOKENS)]
    with ExitStack() as stack:
        cache = stack.enter_context(SuffixCache())
        cache.namespace(NAMESPACE).add_outputs(known)
        engine = stack.enter_context(closing(EngineSteps(cache, prompts, texts, _MAX_DRAFT_TOKENS)))
        subjects: list[EngineSteps | FollowerSteps | StreamSteps] = [engine]
        if rpc:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sfx-")))
            address = stack.enter_context(service_process(folder))["unix"]
            with SuffixClient(address) as client:
                client.namespace(NAMESPACE).add_outputs(known)
            for kind in (FollowerSteps, StreamSteps):
                steps = kind(address, prompts, texts, _MAX_DRAFT_TOKENS)
                subjects.append(stack.enter_context(closing(steps)))
        taken = alternating(
            subjects, calls, _ROUNDS, _PAUSE_S, _WARM_CALLS, lambda done: progress(done, calls)
        )
    return {
        "calls": calls,
        "drafted": engine.drafted / engine.steps,
        "engine_us": percentiles(taken[0]),
        "follower_us": percentiles(taken[1]) if rpc else None,
        "rpc_us": percentiles(taken[2]) if rpc else None,
    }


def measure_worker_queries(
    model: Path, *, threads: int, calls: int = 30, options: Sequence[str] = ()
) -> dict[str, Any]:
    """Start `suffixsvc draft-worker` and time queries for one token after one new token.

    Args:
        options: further options of the worker.

    Returns:
        "seconds_per_token": of a drafted token, measured by the worker at its start; "question": microseconds
        of a query over a unix socket; "around": the part of it that is not computation.

    Raises:
        ServiceError: it did not start, or answered incorrectly.
    """
    with (
        tempfile.TemporaryDirectory(prefix="sfx-") as name,
        worker_process(Path(name), model, threads, options) as address,
        DraftWorkerClient(address) as client,
        client.connected() as worker,
    ):
        described = client.describe()
        tokens = [1 + i % 97 for i in range(_WORKER_CONTEXT + calls)]  # arbitrary
        requests: queue.SimpleQueue[pb.WorkerDraftRequest | None] = queue.SimpleQueue()
        answers = worker.stub.Draft(iter(requests.get, None), timeout=_WORKER_TIMEOUT_S)
        taken: list[float] = []
        around: list[float] = []
        for kept in (0, *range(_WORKER_CONTEXT, _WORKER_CONTEXT + calls)):
            upto = max(kept + 1, _WORKER_CONTEXT)
            request = pb.WorkerDraftRequest(
                seq=upto,
                session_id="probe",
                keep=kept,
                new_token_ids=wire.pack_tokens(np.array(tokens[kept:upto], np.int32)),
                max_draft_tokens=1,
                wait_seconds=_WORKER_TIMEOUT_S,  # on a loaded machine it would be refused as busy
            )
            before = time.perf_counter()
            requests.put(request)
            answer = next(answers)
            taken.append(time.perf_counter() - before)
            around.append(taken[-1] - answer.compute_seconds)
            if answer.busy or answer.length < upto:
                raise ProtocolError(
                    "the draft worker must keep its context", expected=upto, got=answer.length
                )
        requests.put(None)
        return {
            "seconds_per_token": described.seconds_per_token,
            "question": percentiles(taken[1:]),
            "around": percentiles(around[1:]),
        }
