"""The endpoint over real HTTP: what APIDrafter asks, what others ask, and what neither can break."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from suffixsvc import SuffixCache
from suffixsvc.errors import ListenError, StoreError
from suffixsvc_adapters import SessionTracker, TrackerConfig, trtllm_endpoint
from suffixsvc_adapters.backends import AdapterSettings
from suffixsvc_adapters.trtllm_endpoint import MAX_BODY_BYTES, TRTLLM_CONFIG, DraftEndpoint, main
from support.engine_parts import parts_of
from support.recorded_calls import Call
from support.serving import PATIENCE_S, eventually
from support.trtllm_api_drafter import Drafter

TEXT = [11, 12, 13, 14, 15, 16, 17, 18]


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache
        cache.check()


@pytest.fixture
def endpoint(cache: SuffixCache) -> Iterator[DraftEndpoint]:
    with DraftEndpoint(SessionTracker(cache.namespace("trt"), TRTLLM_CONFIG)) as endpoint:
        yield endpoint


def connect(endpoint: DraftEndpoint) -> http.client.HTTPConnection:
    where = urlsplit(endpoint.url)
    assert where.hostname is not None
    return http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE_S)


def post(endpoint: DraftEndpoint, body: Any, **headers: str) -> tuple[int, Any]:
    data = body if isinstance(body, (bytes, str)) else json.dumps(body)
    connection = connect(endpoint)
    connection.request("POST", "/draft", data, {"Content-Type": "application/json", **headers})
    reply = connection.getresponse()
    answer = json.loads(reply.read())
    connection.close()
    return reply.status, answer


def asked(prefix: Any, **more: Any) -> dict[str, Any]:
    return {"prefix": prefix, "request_id": 1, "end_id": 2, "max_sequence_length": 2048, **more}


def test_a_drafter_writes_its_texts_and_they_are_kept(
    recorded: list[Call], cache: SuffixCache, endpoint: DraftEndpoint
) -> None:
    drafter = Drafter(endpoint.url)
    calls = [call for call in recorded[:12] if len(call.response) > 1]
    drafter.write(calls)
    assert drafter.texts == [call.response for call in calls]
    assert drafter.rates.accepted > drafter.rates.tokens / 3
    endpoint.tracker.end_all()
    endpoint.tracker.flush()
    kept = [tuple(stored.output.token_ids.tolist()) for stored in parts_of(cache).store.scan("trt")]
    assert len(kept) == len(calls)
    for output, call in zip(kept, calls, strict=True):
        # from the first token of its own on; what the last step wrote is never shown
        assert call.response[: len(output)] == output
        assert len(call.response) - len(output) <= drafter.max_draft_len + 1


def test_the_answer_is_where_the_drafter_looks_for_it(endpoint: DraftEndpoint) -> None:
    status, answer = post(endpoint, asked([1, *TEXT], max_draft_tokens=0))
    assert (status, answer) == (200, {"draft_tokens": []})
    status, answer = post(endpoint, asked([2, *TEXT[:3]], request_id=7, some_template="ignored"))
    assert status == 200
    assert list(answer) == ["draft_tokens"]
    assert all(type(token) is int for token in answer["draft_tokens"])


def test_drafts_keep_to_what_is_asked(endpoint: DraftEndpoint) -> None:
    for n in range(1, len(TEXT) + 1):
        post(endpoint, asked([1, *TEXT[:n]]))
    fresh = iter(range(100, 200))

    def drafted(**more: Any) -> list[int]:
        tokens: list[int] = post(endpoint, asked([next(fresh), *TEXT[:3]], **more))[1]["draft_tokens"]
        return tokens

    assert drafted() == TEXT[3:]
    assert drafted(request_id=None, end_id=None, max_sequence_length=None) == TEXT[3:]
    assert drafted(max_draft_tokens=2) == TEXT[3:5]
    assert drafted(end_id=TEXT[5]) == TEXT[3:5]  # the model itself ends its text
    assert drafted(max_sequence_length=4 + 1 + 2) == TEXT[3:5]
    assert drafted(max_sequence_length=4) == []
    assert drafted(end_id=-1, request_id="a name") == TEXT[3:]


@pytest.mark.parametrize(
    ("body", "status", "says"),
    [
        (b"{", 400, "must be JSON"),
        (b"\xff\xfe", 400, "must be JSON"),
        (b"[" * 100_000, 400, "must be JSON"),
        ([1, 2], 400, "must be a JSON object"),
        ({}, 400, "prefix"),
        (asked("1,2"), 400, "prefix"),
        (asked([1, -2]), 400, "ids in 0"),
        (asked([1, 2**40]), 400, "ids in 0"),
        (asked([1, 2.5]), 400, "integer"),
        (asked([[1]]), 400, "one dimension"),
        (asked([1], end_id="2"), 400, "end_id"),
        (asked([1], max_sequence_length=-5), 400, "max_sequence_length"),
        (asked([1], max_draft_tokens=True), 400, "max_draft_tokens"),
    ],
)
def test_invalid_requests_are_refused_with_a_reason(
    body: Any, status: int, says: str, endpoint: DraftEndpoint
) -> None:
    got, answer = post(endpoint, body)
    assert got == status
    assert says in answer["error"]
    assert post(endpoint, asked([1, 2, 3]))[0] == 200
    assert endpoint.tracker.stats.failures == 0


def test_only_json_and_never_too_much_of_it(endpoint: DraftEndpoint) -> None:
    assert post(endpoint, "{}", **{"Content-Type": "text/plain"})[0] == 415
    assert post(endpoint, "{}", **{"Content-Length": str(MAX_BODY_BYTES + 1)})[0] == 413
    assert post(endpoint, "{}", **{"Content-Length": "9" * 40})[0] == 413
    assert post(endpoint, "{}", **{"Content-Length": "-1"})[0] == 411
    connection = connect(endpoint)
    connection.putrequest("POST", "/draft")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.endheaders()
    assert connection.getresponse().status == 411
    connection.close()


def test_a_disconnecting_caller_does_not_affect_others(endpoint: DraftEndpoint) -> None:
    where = urlsplit(endpoint.url)
    head = b"POST /draft HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n"
    for bytes_sent in (b"", b"POST", head, head + b'{"prefix"', b"\x00\xff\r\n\r\n"):
        with socket.create_connection((where.hostname, where.port)) as broken:
            broken.sendall(bytes_sent)
    assert post(endpoint, asked([1, 2, 3]))[0] == 200


def test_how_it_is_can_be_asked(endpoint: DraftEndpoint) -> None:
    post(endpoint, asked([1, 2, 3]))
    connection = connect(endpoint)
    for path, status in (("/health", 200), ("/other", 404), ("/health?x=1", 200)):  # one connection
        connection.request("GET", path)
        reply = connection.getresponse()
        answer = json.loads(reply.read())
        assert reply.status == status
    assert answer["status"] == "ok"
    assert answer["stats"]["opened"] == 1
    connection.close()


def test_many_callers_at_once_and_no_more_than_may_be(cache: SuffixCache, recorded: list[Call]) -> None:
    with DraftEndpoint(SessionTracker(cache.namespace("trt"), TRTLLM_CONFIG), max_connections=2) as endpoint:
        where = urlsplit(endpoint.url)
        held = [socket.create_connection((where.hostname, where.port)) for _ in range(2)]

        def is_full() -> bool:
            try:
                post(endpoint, asked([1]))
            except (OSError, http.client.HTTPException):
                return True
            return False

        eventually(is_full, "two silent callers hold both places")
        for connection in held:
            connection.close()
        eventually(lambda: not is_full(), "their places are free again")
    calls = [call for call in recorded[:6] if len(call.response) > 1]
    with DraftEndpoint(SessionTracker(cache.namespace("trt"), TRTLLM_CONFIG)) as endpoint:

        def write(call: Call) -> tuple[int, ...]:
            drafter = Drafter(endpoint.url)  # each counts its requests from 1: the ids collide
            drafter.write([call])
            return drafter.texts[0]

        with ThreadPoolExecutor(3) as pool:
            assert list(pool.map(write, calls)) == [call.response for call in calls]
        assert endpoint.tracker.stats.failures == 0


def test_a_cache_that_fails_is_an_empty_draft(recorded: list[Call]) -> None:
    cache = SuffixCache()
    with DraftEndpoint(SessionTracker(cache.namespace("trt"), TrackerConfig())) as endpoint:
        cache.close()
        assert post(endpoint, asked([1, 2, 1, 2, 1])) == (200, {"draft_tokens": []})
        drafter = Drafter(endpoint.url)
        drafter.write(recorded[:1])
        assert drafter.texts == [recorded[0].response]
        assert endpoint.tracker.stats.failures > 0
    endpoint.close()  # once more


def test_a_drafter_without_an_endpoint_drafts_nothing(recorded: list[Call]) -> None:
    drafter = Drafter("http://127.0.0.1:9/draft")
    drafter.write(recorded[:1])
    assert (drafter.texts, drafter.rates.drafted) == ([recorded[0].response], 0)


def test_addresses_that_others_can_reach_are_refused(cache: SuffixCache) -> None:
    with SessionTracker(cache.namespace("trt")) as tracker:
        for host, says in (("0.0.0.0", "could read stored outputs"), ("no such host.", "cannot listen")):
            with pytest.raises(ListenError, match=says):
                DraftEndpoint(tracker, host)
        with DraftEndpoint(tracker) as endpoint:
            port = urlsplit(endpoint.url).port
            assert port is not None
            threads = threading.active_count()
            DraftEndpoint(tracker, "0.0.0.0", insecure_network=True).close()
            assert threading.active_count() <= threads


def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "suffixsvc_adapters.trtllm_endpoint", "--listen", "127.0.0.1:0"]
    command += ["--data", str(tmp_path / "cache"), "--namespace", "trt", "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: ready.exists() or process.poll() is not None, "the endpoint is ready")
        drafter = Drafter(json.loads(ready.read_text())["url"])
        drafter.write([Call((1, 2, 3), tuple(TEXT))])
        assert drafter.texts == [tuple(TEXT)]
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0
    assert not ready.exists()
    with SuffixCache(tmp_path / "cache") as cache:
        assert cache.namespace("trt").stats().outputs == 1


@pytest.mark.parametrize(("given", "drafted"), [(None, 32), ("4", 4), ("48", 48)])
def test_the_setting_replaces_the_length_of_drafts(
    given: str | None, drafted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def opened(settings: AdapterSettings, config: TrackerConfig) -> None:
        assert settings.override(config).max_draft_tokens == drafted
        raise StoreError("not opened")

    if given is not None:
        monkeypatch.setenv("SUFFIXSVC_ADAPTER_MAX_DRAFT_TOKENS", given)
    monkeypatch.setattr(trtllm_endpoint, "open_tracker", opened)
    assert main(["--listen", "127.0.0.1:0"]) == 2


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--listen", "nowhere"], "the listen address must be"),
        (["--listen", "127.0.0.1:99999"], "the listen address must be"),
        (["--listen", "0.0.0.0:0"], "could read stored outputs"),
        (["--target", "unix:/x", "--data", "/y"], "must not both be set"),
        (["--namespace", "//"], "namespace"),
        (["--ready-file", "/nowhere/at/all/ready"], "ready file"),
    ],
)
def test_what_a_user_can_put_right_is_one_line_and_exit_code_2(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--listen", "127.0.0.1:0", *arguments]) == 2
    error = capsys.readouterr().err
    assert says in error
    assert error.count("\n") == 1
