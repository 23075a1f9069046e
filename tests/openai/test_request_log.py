"""The line of a request: what it has, and that it has no texts and no keys."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Any

import httpx
import pytest
import structlog
from structlog.testing import capture_logs

from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import ENDLESS, access_to, client_of, idle, running, send, settings_of, token_of
from support.serving import PATIENCE_S, eventually

KEY, SECRET = token_of("alice"), "abcabcabc"
Logs = list[MutableMapping[str, Any]]


@pytest.fixture(scope="module")
def keyed(cycle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIServer]:
    access = access_to(tmp_path_factory.mktemp("keys"), KEY, admins=["alice"])
    with running(settings_of(cycle, context=1 << 15, access=access)) as server:
        yield server


@pytest.fixture
def logs() -> Iterator[Logs]:
    """Lines of every level, whatever an earlier test of this process has configured."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.DEBUG))
    try:
        with capture_logs() as logs:
            yield logs
    finally:
        structlog.configure(**before)


def line(logs: Logs, **fields: Any) -> MutableMapping[str, Any]:
    """The only line with these fields; it is written a moment after its response."""

    def found() -> Logs:
        lines = [each for each in logs if each["event"] == "request"]
        return [each for each in lines if fields.items() <= each.items()]

    eventually(found, f"a line with {fields}, in {logs}")
    [only] = found()
    return only


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_one_line(keyed: OpenAIServer, logs: Logs, stream: bool) -> None:
    with client_of(keyed, KEY) as client:
        made = client.completions.create(
            model="cycle", prompt=SECRET, max_tokens=40, temperature=0, n=2, stream=stream
        )
        texts = list(made) if stream else made
    assert texts
    found = line(logs, path="/v1/completions")
    assert found.pop("seconds") > 0
    assert found.pop("request_id").startswith("req_")
    assert found.pop("response_id") == (texts[0] if stream else made).id
    assert found == {
        "event": "request",
        "log_level": "info",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "principal": "alice",
        "prompt_tokens": 2 * len(SECRET),
        "generated_tokens": 80,
    }


def test_no_line_has_a_key_or_a_text(keyed: OpenAIServer, logs: Logs) -> None:
    headers = {"Authorization": f"Bearer {KEY}"}
    body = {"model": "cycle", "prompt": SECRET, "max_tokens": 40}
    with httpx.Client(base_url=f"http://{keyed.address}", timeout=PATIENCE_S) as http:
        http.post("/v1/completions", params={"key": KEY}, json=body, headers=headers)
        http.post("/v1/responses", json={"model": "cycle", "input": SECRET}, headers={"Authorization": KEY})
        http.get("/v1/models", headers=headers)
    line(logs, path="/v1/completions", status=200)
    line(logs, path="/v1/models", status=200, principal="alice")
    assert "principal" not in line(logs, path="/v1/responses", status=401)
    assert KEY not in str(logs)
    assert SECRET not in str(logs)


def test_what_is_probed_and_scraped_is_of_level_debug(keyed: OpenAIServer, logs: Logs) -> None:
    base = f"http://{keyed.address}"
    assert httpx.get(f"{base}/health").status_code == 200
    assert httpx.get(f"{base}/metrics", headers={"Authorization": f"Bearer {KEY}"}).status_code == 200
    for path in ("/health", "/metrics"):
        assert line(logs, path=path)["log_level"] == "debug"


def test_a_path_cannot_write_lines_of_its_own(keyed: OpenAIServer, logs: Logs) -> None:
    assert httpx.get(f"http://{keyed.address}/v1/a%0Arequest%20{'x' * 1000}").status_code == 404
    path = line(logs, method="GET", status=404)["path"]
    assert path.startswith("/v1/a%0Arequest%20x")
    assert len(path) == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_has_gone_is_499(keyed: OpenAIServer, logs: Logs, stream: bool) -> None:
    client: socket.socket = send(keyed, {**ENDLESS, "stream": stream}, {"Authorization": f"Bearer {KEY}"})
    eventually(lambda: keyed.service.engine.load.running, "it runs")
    if stream:
        assert client.recv(15) == b"HTTP/1.1 200 OK"
    client.close()
    found = line(logs, status=499)
    assert found["generated_tokens"] < ENDLESS["max_tokens"]
    idle(keyed)


def test_a_defect_is_500(keyed: OpenAIServer, logs: Logs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(keyed.service), "require_model", lambda *_: 1 / 0)
    with client_of(keyed, KEY) as client, pytest.raises(Exception, match="failed to process"):
        client.completions.create(model="cycle", prompt=SECRET)
    assert line(logs, status=500)["principal"] == "alice"
