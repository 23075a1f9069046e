"""Ids of requests: the header of every response, as OpenAI's client shows it."""

from __future__ import annotations

import json
import re
from typing import Any

import httpx
import pytest

import openai
from suffixsvc_openai.app.run import OpenAIServer
from support.serving import PATIENCE_S

NEW = re.compile(r"req_[0-9a-f]{32}")
BODY = {"model": "cycle", "prompt": "ab", "max_tokens": 4}


def test_the_client_has_the_id_of_its_request(client: openai.OpenAI) -> None:
    chat: Any = {"model": "cycle", "messages": [{"role": "user", "content": "ab"}], "max_tokens": 4}
    answers: list[Any] = [
        client.completions.create(**BODY),  # type: ignore[call-overload]
        client.chat.completions.create(**chat),
        client.responses.create(model="cycle", input="ab", max_output_tokens=16),
        client.models.retrieve("cycle"),
    ]
    ids = [answer._request_id for answer in answers]
    assert all(NEW.fullmatch(each) for each in ids), ids
    assert len(set(ids)) == len(ids)


def test_an_id_that_the_client_chose_is_kept(client: openai.OpenAI) -> None:
    headers = {"X-Request-Id": "trace/7f:1"}
    answer: Any = client.completions.create(**BODY, extra_headers=headers)  # type: ignore[call-overload]
    assert answer._request_id == "trace/7f:1"
    with pytest.raises(openai.NotFoundError) as refused:
        client.models.retrieve("none", extra_headers=headers)
    assert refused.value.request_id == "trace/7f:1"


def test_streams_and_errors_have_ids(
    server: OpenAIServer, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.completions.with_streaming_response.create(
        **BODY, stream=True, extra_headers={"X-Request-Id": "own"}
    ) as stream:  # type: ignore[call-overload]
        assert stream.headers.get_list("x-request-id") == ["own"]
        assert "[DONE]" in stream.read().decode()
    url = f"http://{server.address}"

    def status(method: str, path: str, **more: Any) -> int:
        found = httpx.request(method, url + path, timeout=PATIENCE_S, **more)
        [each] = found.headers.get_list("x-request-id")
        assert NEW.fullmatch(each)
        return found.status_code

    assert status("GET", "/health") == status("GET", "/metrics") == status("GET", "/") == 200
    assert status("POST", "/v1/completions", content=b"{") == 400
    assert status("POST", "/v1/completions", json={**BODY, "temperature": 5}) == 400
    assert status("GET", "/nothing") == 404
    assert status("PUT", "/v1/models") == 405
    assert status("GET", "/v1/models", headers={"Origin": "http://evil.example"}) == 403
    monkeypatch.setattr(type(server.service), "require_model", lambda *_: 1 / 0)
    assert status("POST", "/v1/completions", json=BODY) == 500


@pytest.mark.parametrize("sent", ["", "a" * 129, "two words", "tab\there", "umlaut-ü", "control\x80"])
def test_an_id_is_kept_only_if_it_is_well_formed(server: OpenAIServer, sent: str) -> None:
    headers = {b"X-Request-Id": sent.encode("latin-1")}
    found = httpx.get(f"http://{server.address}/v1/models", headers=headers, timeout=PATIENCE_S)
    assert NEW.fullmatch(found.headers["x-request-id"])
    longest = {"X-Request-Id": "~" * 128}
    found = httpx.get(f"http://{server.address}/v1/models", headers=longest, timeout=PATIENCE_S)
    assert found.headers["x-request-id"] == "~" * 128


def test_a_live_page_has_an_id(server: OpenAIServer) -> None:
    with httpx.stream("GET", f"http://{server.address}/live", timeout=PATIENCE_S) as live:
        assert NEW.fullmatch(live.headers["x-request-id"])
        assert json.loads(next(live.iter_lines()).removeprefix("data: "))
