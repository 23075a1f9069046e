"""Background threads: an exception in one piece of work ends neither the thread nor the callers that wait.

What happened: the client's background thread, the reader of its stream and the thread that monitors draft
workers each ended at the first unexpected exception. From then on lost sessions were not opened again, and
steps waited for their timeouts.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_adapters.tracking.async_close import SessionCloser
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.protocol.effects import Procedure
from suffixsvc_client.transport import grpc_sync
from support.client_parts import stream_of, wait_on_stream
from support.serving import PATIENCE_S, eventually, serving, socket_dir


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


@pytest.mark.parametrize("error", [RuntimeError("a defect"), SystemExit()], ids=repr)
def test_failed_background_work_does_not_stop_the_thread(error: BaseException) -> None:
    done = threading.Event()

    def broken() -> Procedure[None]:
        raise error
        yield

    def good() -> Procedure[None]:
        done.set()
        return
        yield

    with SuffixClient("unix:/nowhere/s") as client:
        client.runner.background.add(broken())
        client.runner.background.add(good())
        assert done.wait(PATIENCE_S)


def test_a_failed_reader_ends_waiting_calls(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service stops, and the error of the stream cannot be determined."""

    def broken(_: object) -> Any:
        raise RuntimeError("a defect")

    with SuffixCache() as cache:
        with serving(cache, f"unix:{folder}/s") as (_, address):
            transport = grpc_sync.GrpcTransport(address)
            opening = pb.StreamRequest(open=pb.OpenSessionRequest(namespace="a"))
            assert transport.exchange([opening], PATIENCE_S)[0].open.session_id
            stream = stream_of(transport)
            answers: Any = grpc_sync.queue.SimpleQueue()
            wait_on_stream(transport, 1 << 40, answers)
            monkeypatch.setattr(grpc_sync, "error_from_rpc", broken)
        assert isinstance(answers.get(timeout=PATIENCE_S), ServiceUnavailableError)
        eventually(lambda: stream.ended, "the next call opens another stream")
        transport.close()


def test_a_failed_tick_does_not_stop_closing_sessions() -> None:
    """Of the thread that ends an engine's sessions. A callback for failures that fails does not either."""
    ticked = threading.Event()

    def tick() -> None:
        ticked.set()
        raise RuntimeError("a defect")

    def on_failure(_: Exception) -> None:
        raise RuntimeError("another one")

    class Session:
        closed = False

        def close(self, **_: object) -> None:
            self.closed = True

    closer, session = SessionCloser(on_failure, tick, 0.01), Session()
    closer.start()
    assert ticked.wait(PATIENCE_S)
    closer.put([session])  # type: ignore[list-item] # all that is used of a session
    closer.wait_until_empty()
    assert session.closed
    closer.stop(PATIENCE_S)


def test_an_opening_in_the_background_survives_a_defect(folder: Path) -> None:
    """End to end: a client whose background thread had a defect opens its lost session again."""

    def broken() -> Procedure[None]:
        raise RuntimeError("a defect")
        yield

    config = ClientConfig(step_timeout_s=5, open_timeout_s=5, breaker_pause_s=0.05)
    with SuffixCache() as cache, SuffixClient(f"unix:{folder}/s", config) as client:
        client.runner.background.add(broken())
        session = client.namespace("a").open_session([1, 2, 3])
        with serving(cache, f"unix:{folder}/s"):

            def drafts() -> bool:
                session.step([4])
                time.sleep(0.02)
                return client.counts.steps > 0

            eventually(drafts, "the session is open")
            session.close(commit=False)
