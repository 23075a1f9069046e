"""End-to-end faults: a service that dies, hangs, sends garbage or restarts changes nothing but speed.

A real service in its own process, a real client, the real driver and a real (tiny, random) model whose
arithmetic does not depend on the batch's width: so "unchanged" means bit for bit.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import Result, StepRecord, generate
from suffixsvc_driver.layers.prompt_lookup import PromptLookupLayer
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import write_tiny_llama

TOKENS = 80
#: almost free drafts, so that as many as possible are sent
CARELESS = CostCurve.linear(0.001, 32)
#: long enough for a busy machine, short enough to notice a wait that is not cut off
TIMER_S = 0.25
OPEN_S = 5.0


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=3)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        yield target


@pytest.fixture(scope="module")
def prompt_and_plain(target: LlamaTarget) -> tuple[list[int], Result]:
    for n in range(200):
        prompt = target.model.tokenize(f"SELECT name FROM table_{n}")
        plain = generate(target, prompt, max_tokens=TOKENS)
        if len(plain.token_ids) == TOKENS:
            return prompt, plain
    raise AssertionError("this random model always stops early")


class Service:
    """``suffixsvc serve`` as its users start it."""

    def __init__(self, data: Path, socket: Path) -> None:
        self.data, self.socket = data, socket
        self.address = f"unix:{socket}"
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        ready = self.data.parent / "ready"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "suffixsvc_cli", "serve"]
        command += ["--data", str(self.data), "--listen", self.address, "--ready-file", str(ready)]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while not ready.exists():
            assert self.process.poll() is None, "the service did not start"
            assert time.monotonic() < deadline, "the service did not start"
            time.sleep(0.02)

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    # Socket paths hold about 100 bytes; tmp_path may be longer.
    socket = Path(f"/tmp/sfx-{os.getpid()}-{time.monotonic_ns() % 10**9}.sock")
    service = Service(tmp_path / "data", socket)
    yield service
    service.kill()
    socket.unlink(missing_ok=True)


@dataclass
class Outcome:
    result: Result
    slowest_ask: float
    client: SuffixClient


def run(
    target: LlamaTarget,
    prompt: list[int],
    address: str,
    disturb: Callable[[int], None] = lambda step: None,
    *,
    commit: bool = False,
    client_config: ClientConfig | None = None,
) -> Outcome:
    """One generation through the service; ``disturb(step)`` is called after every target step."""
    steps: list[StepRecord] = []

    def on_step(record: StepRecord) -> None:
        steps.append(record)
        disturb(len(steps))

    config = client_config or ClientConfig(step_timeout_s=TIMER_S, open_timeout_s=OPEN_S)
    with SuffixClient(address, config=config) as client:
        session = client.namespace("tests/tiny").open_session(prompt)
        layers = [PromptLookupLayer(), SuffixLayer(session)]
        result = generate(target, prompt, DriverConfig(), layers, TOKENS, curve=CARELESS, on_step=on_step)
        if commit:
            session.close()
        return Outcome(result, max((s.query_seconds for s in steps), default=0.0), client)


def fill(target: LlamaTarget, prompt: list[int], service: Service, times: int = 3) -> None:
    for _ in range(times):
        run(target, prompt, service.address, commit=True)


def require_unchanged(outcome: Outcome, plain: Result) -> None:
    assert outcome.result.token_ids == plain.token_ids
    assert outcome.result.finish == plain.finish
    # No step waited for the service longer than the client's timer: many timers of a busy machine's noise are
    # still less than anything else that is waited for.
    assert outcome.slowest_ask < TIMER_S * 16 < OPEN_S


def test_memory_saves_steps_and_changes_nothing(
    target: LlamaTarget, prompt_and_plain: tuple[list[int], Result], service: Service
) -> None:
    """The undisturbed run, so that the others are known to have had something to lose."""
    prompt, plain = prompt_and_plain
    fill(target, prompt, service)
    outcome = run(target, prompt, service.address)
    require_unchanged(outcome, plain)
    assert len(outcome.result.steps) < len(plain.steps) / 2
    assert outcome.result.stats.accepted > 0


def test_killed_in_the_middle(
    target: LlamaTarget, prompt_and_plain: tuple[list[int], Result], service: Service
) -> None:
    prompt, plain = prompt_and_plain
    fill(target, prompt, service)
    outcome = run(target, prompt, service.address, lambda step: service.kill() if step == 2 else None)
    require_unchanged(outcome, plain)


def test_paused_in_the_middle_and_woken_again(
    target: LlamaTarget, prompt_and_plain: tuple[list[int], Result], service: Service
) -> None:
    """SIGSTOP leaves the connection open and silent: only the client's own timer can end the wait."""
    prompt, plain = prompt_and_plain
    fill(target, prompt, service)

    def disturb(step: int) -> None:
        if step == 2:
            service.signal(signal.SIGSTOP)
        if step == 12:
            service.signal(signal.SIGCONT)

    outcome = run(target, prompt, service.address, disturb)
    require_unchanged(outcome, plain)


def test_paused_for_good(
    target: LlamaTarget, prompt_and_plain: tuple[list[int], Result], service: Service
) -> None:
    prompt, plain = prompt_and_plain
    service.signal(signal.SIGSTOP)
    outcome = run(
        target,
        prompt,
        service.address,
        client_config=ClientConfig(step_timeout_s=TIMER_S, open_timeout_s=TIMER_S),
    )
    require_unchanged(outcome, plain)


def test_restarted_in_the_middle(
    target: LlamaTarget, prompt_and_plain: tuple[list[int], Result], service: Service
) -> None:
    prompt, plain = prompt_and_plain

    def disturb(step: int) -> None:
        if step == 3:
            service.kill()
            service.start()
        if step > 3:
            time.sleep(0.02)  # a real target's step takes time in which the client reconnects

    outcome = run(target, prompt, service.address, disturb, commit=True)
    require_unchanged(outcome, plain)
    again = run(target, prompt, service.address)
    require_unchanged(again, plain)
    assert again.result.stats.accepted > 0, "the output of the restarted session was not stored"


def test_a_missing_service(
    target: LlamaTarget, prompt_and_plain: tuple[list[int], Result], tmp_path: Path
) -> None:
    prompt, plain = prompt_and_plain
    require_unchanged(run(target, prompt, f"unix:{tmp_path}/absent.sock"), plain)


class WrongService(suffix_cache_pb2_grpc.SuffixCacheServicer):
    """A service whose answers look valid and are wrong."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def Stream(self, request_iterator: Iterator[pb.StreamRequest], context: Any) -> Iterator[pb.StreamReply]:
        for request in request_iterator:
            reply = pb.StreamReply(
                id=request.id if self.rng.random() < 0.9 else int(self.rng.integers(0, 99))
            )
            kind = request.WhichOneof("request")
            if kind == "open":
                reply.open.session_id = request.open.session_id
                reply.open.length = len(request.open.prompt_token_ids) // 4
            elif kind == "steps":
                for item in request.steps.items:
                    answer = reply.steps.items.add().reply
                    answer.session_id = item.session_id
                    answer.seq = item.seq if self.rng.random() < 0.9 else item.seq + 7
                    answer.length = int(self.rng.integers(0, 500))
                    self.fill(answer)
            elif kind == "close":
                reply.close.session_id = request.close.session_id
            yield reply

    def fill(self, answer: pb.StepReply) -> None:
        n = int(self.rng.integers(0, 30)) if self.rng.random() < 0.9 else 10_000
        ids = self.rng.integers(0, 256, n).astype("<i4")
        if self.rng.random() < 0.2:
            ids = self.rng.integers(-5, 2**31 - 1, n).astype("<i4")
        answer.draft.token_ids = ids.tobytes()[: None if self.rng.random() < 0.9 else -3]
        probs = self.rng.random(n).astype("<f4")
        if self.rng.random() < 0.2:
            probs[:] = self.rng.choice([np.nan, np.inf, -1.0, 7.0, 1.0])
        answer.draft.probs = probs.tobytes()
        if self.rng.random() < 0.3:
            answer.draft.parents = self.rng.integers(-3, n + 3, n).astype("<i4").tobytes()
        answer.draft.sources = self.rng.integers(0, 256, n).astype(np.uint8).tobytes()
        answer.draft.match_lens = self.rng.integers(-5, 99, n).astype("<i4").tobytes()


@pytest.mark.parametrize("seed", range(6))
def test_garbage(
    target: LlamaTarget, prompt_and_plain: tuple[list[int], Result], tmp_path: Path, seed: int
) -> None:
    prompt, plain = prompt_and_plain
    server = grpc.server(futures.ThreadPoolExecutor(4))
    suffix_cache_pb2_grpc.add_SuffixCacheServicer_to_server(WrongService(seed), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        outcome = run(target, prompt, f"127.0.0.1:{port}")
        require_unchanged(outcome, plain)
        assert outcome.client.counts.steps > 0
    finally:
        server.stop(None)
