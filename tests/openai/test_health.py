"""A server that can no longer answer: what a supervisor sees of it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from suffixsvc.errors import ListenError, ModelError
from suffixsvc_openai.app.run import OpenAIServer, serve_until_signal
from support.openai_serving import idle, running, settings_of
from support.serving import PATIENCE_S, eventually


@pytest.fixture
def server(cycle: Path) -> Iterator[OpenAIServer]:
    with running(settings_of(cycle)) as server:
        yield server


def health(server: OpenAIServer) -> tuple[int, dict[str, str]]:
    found = httpx.get(f"http://{server.address}/health", timeout=PATIENCE_S)
    return found.status_code, found.json()


def complete(server: OpenAIServer) -> int:
    body = {"model": "cycle", "prompt": "ab", "max_tokens": 5}
    url = f"http://{server.address}/v1/completions"
    return httpx.post(url, json=body, timeout=PATIENCE_S).status_code


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("part", ["_start", "_charge"])
def test_the_end_of_the_thread_that_generates_is_seen(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    """Every request was told that the server is stopping, for ever, by one that was healthy."""
    assert health(server) == (200, {"status": "ok"})
    monkeypatch.setattr(server.service.engine._scheduler, part, lambda: 1 / 0)
    assert complete(server) == 503
    eventually(lambda: health(server)[0] == 503, "the server is not healthy")
    assert health(server)[1] == {"status": "failed", "reason": "the thread that generates has ended"}


@pytest.mark.parametrize("part", ["verify_many", "prefill"])
def test_a_model_that_fails_is_seen_until_it_works(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, part: str
) -> None:
    def fail(*_: Any) -> None:
        raise ModelError("the GPU is gone")

    with monkeypatch.context() as failing:
        failing.setattr(server.service.engine._target, part, fail)
        for _ in range(2):
            assert complete(server) == 500
        assert health(server)[0] == 200
        assert complete(server) == 500
        reason = "3 batches in a row have failed"
        assert health(server) == (503, {"status": "failed", "reason": reason})
    assert complete(server) == 200
    assert health(server) == (200, {"status": "ok"})
    idle(server)


def test_the_process_ends_with_its_http_server(cycle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It stayed, with the model loaded, and nothing listened."""
    start = OpenAIServer.start

    def start_and_lose(self: OpenAIServer) -> None:
        start(self)
        self._uvicorn.should_exit = True

    monkeypatch.setattr(OpenAIServer, "start", start_and_lose)
    too_late = threading.Timer(PATIENCE_S, os.kill, (os.getpid(), signal.SIGTERM))
    too_late.start()
    try:
        with pytest.raises(ListenError, match="the HTTP server has ended"):
            serve_until_signal(settings_of(cycle))
    finally:
        too_late.cancel()
