"""Restarts by SIGTERM under traffic: a client, a bulk load, a follower, a driver with a real (tiny) model.

The service is stopped and started several times on its folder and address. Sessions resume, what was
acknowledged is stored once and exactly, and nothing else is.
"""

from __future__ import annotations

import collections
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ServiceError, SessionError
from suffixsvc.types import NewOutput
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_driver.cost.curve import CostCurve
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.layers.suffix import SuffixLayer
from suffixsvc_driver.settings.driver_config import DriverConfig
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_follower import Follower, FollowerConfig
from support.engine_parts import parts_of
from support.serving import PATIENCE_S, ServeProcess, eventually, socket_dir
from support.targets import WIDTH_INDEPENDENT, talkative_prompt
from support.tiny_gguf import write_tiny_llama

RESTARTS = 4
TOKENS = 60
#: tokens of a worker's output, and of its steps
LENGTH, STEP = 30, 3
#: a service that is away is noticed soon, and found again soon
CLIENT = ClientConfig(step_timeout_s=0.25, open_timeout_s=5, breaker_pause_s=0.01, breaker_max_pause_s=0.05)


def patiently(call: Callable[[], Any]) -> Any:
    """The result of a call that is repeated until the service is there."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return call()
        except (ServiceError, SessionError):
            assert time.monotonic() < deadline
            time.sleep(0.02)


class Worker(threading.Thread):
    """Writes outputs, each with tokens of its own, until it is stopped; the last one is completed."""

    def __init__(self, number: int, path: str) -> None:
        super().__init__(daemon=True)
        self.number, self.path = number, path
        self.steps = 0
        self.stopping = threading.Event()
        self.error: BaseException | None = None
        #: text of each acknowledged output, by its id
        self.acknowledged: dict[int, list[int]] = {}

    def text(self) -> list[int]:
        first = self.number * 1_000_000 + len(self.acknowledged) * LENGTH
        return list(range(first, first + LENGTH))

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                text = self.text()
                output_id = self.write(text)
                assert output_id not in self.acknowledged
                self.acknowledged[output_id] = text
        except BaseException as error:  # reported by the test's thread
            self.error = error

    def write(self, text: list[int]) -> int:
        raise NotImplementedError

    def finish(self) -> None:
        self.stopping.set()
        self.join(PATIENCE_S)
        assert not self.is_alive()
        if self.error is not None:
            raise self.error


class SessionWorker(Worker):
    """Writes in sessions of a backend, step by step."""

    def __init__(self, number: int, path: str, backend: SuffixClient | Follower) -> None:
        super().__init__(number, path)
        self.backend = backend

    def write(self, text: list[int]) -> int:
        session = patiently(lambda: self.backend.namespace(self.path).open_session([self.number]))
        for at in range(0, len(text), STEP):
            session.step(text[at : at + STEP])
            self.steps += 1
            time.sleep(0.002)
        output_id = patiently(session.close)
        assert isinstance(output_id, int)
        return output_id


class BulkWorker(Worker):
    """Sends whole outputs under ids of its own, again until they are acknowledged."""

    def __init__(self, number: int, path: str, client: SuffixClient) -> None:
        super().__init__(number, path)
        self.client = client

    def write(self, text: list[int]) -> int:
        tokens = np.array(text, np.int32)
        output = NewOutput(
            namespace=self.path,
            token_ids=tokens,
            segment_lens=(len(text),),
            prompt_tail=np.array([], np.int32),
            uuid=os.urandom(16),
        )
        [output_id] = patiently(lambda: self.client.namespace(self.path).add_outputs([output]))
        self.steps += 1
        time.sleep(0.002)
        return int(output_id)


@contextmanager
def working(address: str) -> Iterator[list[Worker]]:
    """Workers over a client, in bulk, and over a follower."""
    with ExitStack() as stack:
        client = stack.enter_context(SuffixClient(address, CLIENT))
        follower = stack.enter_context(Follower(address, FollowerConfig(client=CLIENT)))
        workers = [
            SessionWorker(1, "load/client", client),
            BulkWorker(2, "load/bulk", client),
            SessionWorker(3, "load/follower", follower),
        ]
        for worker in workers:
            worker.start()
        try:
            yield workers
        finally:
            for worker in workers:
                worker.finish()


class Restarts:
    """Restarts a service, each time after every worker has written since the last time.

    A session is open all the time; it writes before each restart.
    """

    def __init__(self, service: ServeProcess, workers: Sequence[Worker], client: SuffixClient) -> None:
        self.service, self.workers = service, workers
        self.session = client.namespace("held").open_session([1, 2])
        self.text: list[int] = []
        self.count = 0

    def __call__(self) -> None:
        self.text += range(len(self.text), len(self.text) + 5)
        self.session.step(self.text[-5:])
        before = [worker.steps for worker in self.workers]
        eventually(
            lambda: (
                all(worker.steps > seen for worker, seen in zip(self.workers, before, strict=True))
                or any(worker.error for worker in self.workers)
            ),
            "every worker writes",
        )
        assert self.service.terminate() == 0
        self.service.output()
        self.service.start()
        self.count += 1


def run_driver(target: LlamaTarget, prompt: list[int], client: SuffixClient, restart: Restarts) -> Any:
    """A generation, with restarts in its first two steps: its tokens, and the id of its output."""
    last = restart.count + 2
    session = patiently(lambda: client.namespace("driver").open_session(prompt))
    result = generate(
        target,
        prompt,
        DriverConfig(),
        [SuffixLayer(session)],
        TOKENS,
        curve=CostCurve.linear(0.001, 32),
        on_step=lambda _: restart() if restart.count < last else None,
    )
    assert restart.count == last
    return result.token_ids, patiently(session.close)


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaTarget]:
    path = write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=3)
    with LlamaTarget(path, WIDTH_INDEPENDENT) as target:
        yield target


def test_restarts_under_traffic(target: LlamaTarget) -> None:
    prompt = talkative_prompt(target, TOKENS)
    plain = list(generate(target, prompt, max_tokens=TOKENS).token_ids)
    expected: dict[int, list[int]] = {}
    with socket_dir() as folder:
        with ServeProcess(folder) as service:
            service.start()
            with working(service.address) as workers, SuffixClient(service.address, CLIENT) as client:
                restart = Restarts(service, workers, client)
                while restart.count < RESTARTS:
                    tokens, output_id = run_driver(target, prompt, client, restart)
                    assert list(tokens) == plain, "restarts change nothing"
                    expected[output_id] = plain
                reader = client.namespace("driver").open_session(prompt)
                eventually(lambda: len(reader.step([], max_draft_tokens=4)) > 0, "drafts come again")
                reader.close(commit=False)
                expected[patiently(restart.session.close)] = restart.text
            assert service.terminate() == 0
        for worker in workers:
            assert worker.acknowledged
            assert not expected.keys() & worker.acknowledged.keys()
            expected |= worker.acknowledged
        require_stored(folder / "data", expected)


def require_stored(data: Path, expected: dict[int, list[int]]) -> None:
    """The folder has these outputs, complete, and no others."""
    with SuffixCache(data) as cache:
        cache.check()
        rows = list(parts_of(cache).store.scan())
        assert {row.output_id: row.output.token_ids.tolist() for row in rows} == expected
        assert not [row.output_id for row in rows if row.output.incomplete]
        texts = collections.Counter(
            (row.output.namespace, tuple(row.output.token_ids.tolist()))
            for row in rows
            if row.output.namespace != "driver"  # whose generations write the same text
        )
        assert set(texts.values()) == {1}
