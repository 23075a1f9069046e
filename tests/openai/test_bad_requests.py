"""Invalid requests over a socket: OpenAI's statuses and bodies, and a server that goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from suffixsvc_openai.app.run import OpenAIServer
from support.serving import PATIENCE_S
from support.tiny_gguf import VOCAB_SIZE

CHAT: dict[str, Any] = {
    "model": "cycle",
    "messages": [{"role": "user", "content": "ab"}],
    "max_tokens": 4,
    "temperature": 0,
}
TEXT: dict[str, Any] = {"model": "cycle", "prompt": "ab", "max_tokens": 4, "temperature": 0}


@pytest.fixture(scope="module")
def http(server: OpenAIServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=f"http://{server.address}", timeout=PATIENCE_S) as http:
        yield http


def error_of(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error of a response, whose form is OpenAI's."""
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"error"}
    assert set(body["error"]) == {"message", "type", "param", "code"}
    assert body["error"]["message"]
    error: dict[str, Any] = body["error"]
    return error


def chat_error(http: httpx.Client, status: int = 400, **fields: Any) -> dict[str, Any]:
    return error_of(http.post("/v1/chat/completions", json={**CHAT, **fields}), status)


def text_error(http: httpx.Client, status: int = 400, **fields: Any) -> dict[str, Any]:
    return error_of(http.post("/v1/completions", json={**TEXT, **fields}), status)


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("temperature", {"temperature": 5}),
        ("temperature", {"temperature": "0.5"}),
        ("temperature", {"temperature": -1}),
        ("temperature", {"temperature": True}),
        ("top_p", {"top_p": -0.1}),
        ("n", {"n": 0}),
        ("n", {"n": 100_000}),
        ("max_tokens", {"max_tokens": 0}),
        ("max_tokens", {"max_tokens": 1.5}),
        ("max_completion_tokens", {"max_completion_tokens": "many"}),
        ("messages", {"messages": []}),
        ("messages", {"messages": "hello"}),
        ("messages[0].role", {"messages": [{"role": "wizard", "content": "x"}]}),
        ("messages[0].role", {"messages": [{"content": "x"}]}),
        ("messages[0].content", {"messages": [{"role": "user"}]}),
        ("messages[0].content", {"messages": [{"role": "user", "content": 7}]}),
        (
            "messages[0].content",
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        ),
        ("stop", {"stop": ["x"] * 10_000}),
        ("stop", {"stop": ["a", ""]}),
        ("stop", {"stop": "x" * 5000}),
        ("stop", {"stop": 5}),
        ("seed", {"seed": "x"}),
        ("seed", {"seed": 2**70}),
        ("frequency_penalty", {"frequency_penalty": 3}),
        ("logit_bias", {"logit_bias": {"999999": 1}}),
        ("logit_bias", {"logit_bias": {"-1": 1}}),
        ("logit_bias.x", {"logit_bias": {"x": 1}}),
        ("logit_bias.97", {"logit_bias": {"97": 1000}}),
        ("logit_bias", {"logit_bias": {str(token): -100 for token in range(VOCAB_SIZE)}}),
        ("repetition_penalty", {"repetition_penalty": 1e-300}),
        ("logprobs", {"top_logprobs": 2}),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}),
        ("modalities", {"modalities": ["audio"]}),
        ("functions", {"functions": []}),
        ("stream", {"stream": "yes"}),
        ("metadata.a", {"metadata": {"a": 1}}),
        ("suffixsvc.namespace", {"suffixsvc": {"namespace": "a//b"}}),
        ("suffixsvc.namespace", {"suffixsvc": {"namespace": "../other"}}),
        ("suffixsvc.no_store", {"suffixsvc": {"no_store": "yes"}}),
        ("suffixsvc.namespce", {"suffixsvc": {"namespce": "x"}}),
        ("metadata.namespace", {"metadata": {"namespace": "a b"}}),
        ("model", {"model": None}),
        ("model", {"model": 5}),
    ],
)
def test_an_invalid_field_is_named(http: httpx.Client, param: str, fields: dict[str, Any]) -> None:
    error = chat_error(http, **fields)
    assert error["param"] == param, error
    assert error["type"] == "invalid_request_error"
    assert param in error["message"]


@pytest.mark.parametrize(
    ("message", "fields"),
    [
        ("messages must have at least 1 item; got []", {"messages": []}),
        ("tools must have at most 1024 items; got [", {"tools": [{"type": "function"}] * 1025}),
        ("suffixsvc.reads must have at most 7 items; got [", {"suffixsvc": {"reads": ["a"] * 8}}),
        ("metadata.a must have at most 512 characters; got ", {"metadata": {"a": "x" * 513}}),
        ("n must be greater than or equal to 1; got 0", {"n": 0}),
    ],
)
def test_a_condition_is_one_of_the_field(http: httpx.Client, message: str, fields: dict[str, Any]) -> None:
    assert chat_error(http, **fields)["message"].startswith(message)


def test_an_image_is_named_once(http: httpx.Client) -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    content = [{"type": "text", "text": "a"}, image]
    message = chat_error(http, messages=[{"role": "user", "content": content}])["message"]
    assert "must have parts of type text only, not 'image_url'" in message
    assert message.count("got") == 1
    long = chat_error(http, messages=[{"role": "user", "content": [{"type": "x" * 10_000}]}])["message"]
    assert len(long) < 400


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("prompt", {"prompt": []}),
        ("prompt", {"prompt": 5}),
        ("prompt", {"prompt": ["a", 1]}),
        ("prompt", {"prompt": [[1], "a"]}),
        ("stream_options", {"stream_options": {"include_usage": True}}),
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": [99999999]}),
        ("prompt", {"prompt": [-1]}),
        ("prompt", {"prompt": ["a"] * 65}),
        ("best_of", {"best_of": 3}),
        ("logprobs", {"logprobs": 6}),
        ("suffix", {"suffix": "end"}),  # the model has no tokens for it
    ],
)
def test_an_invalid_field_of_a_completion_is_named(
    http: httpx.Client, param: str, fields: dict[str, Any]
) -> None:
    assert text_error(http, **fields)["param"] == param


def test_a_missing_model_is_400_and_an_unknown_one_404(http: httpx.Client) -> None:
    without = {name: value for name, value in CHAT.items() if name != "model"}
    assert error_of(http.post("/v1/chat/completions", json=without), 400)["param"] == "model"
    error = chat_error(http, 404, model="gpt-4o")
    assert (error["param"], error["code"]) == ("model", "model_not_found")
    assert "'cycle'" in error["message"]


@pytest.mark.parametrize("fields", [{}, {"stream": True}])
def test_a_prompt_that_fills_the_context_is_400(http: httpx.Client, fields: dict[str, Any]) -> None:
    error = text_error(http, prompt="a" * 2048, **fields)
    assert (error["param"], error["code"]) == ("prompt", "context_length_exceeded")
    answer = http.post("/v1/completions", json={**TEXT, "prompt": "a" * 2045, "max_tokens": 100})
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    assert answer.json()["usage"]["total_tokens"] <= 2048


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'"text"', b"\xff\xfe", b'{"model": "cycle"', b"[" * 100_000]
)
def test_a_body_that_is_no_object_is_400(http: httpx.Client, body: bytes) -> None:
    error = error_of(http.post("/v1/chat/completions", content=body), 400)
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1" * 400 + ".0"])
@pytest.mark.parametrize(
    ("path", "param", "value"),
    [
        (
            "responses",
            "tools[0].parameters.properties.x.maximum",
            '[{"type": "function", "name": "f", "parameters": {"properties": {"x": {"maximum": NUMBER}}}}]',
        ),
        ("responses", "input[0].foo", '[{"role": "user", "content": "ab", "foo": NUMBER}]'),
        ("responses", "text.hint", '{"hint": NUMBER}'),
        (
            "chat/completions",
            "messages[0].hints[1]",
            '[{"role": "user", "content": "a", "hints": [1, NUMBER]}]',
        ),
        ("completions", "wish", "NUMBER"),
    ],
)
def test_a_number_that_is_not_finite_is_named(
    http: httpx.Client, path: str, param: str, value: str, number: str
) -> None:
    """JSON has none: they once were stored, and made every answer that repeated them a 500."""
    fields = {"model": "cycle", "messages": CHAT["messages"], "prompt": "ab", "input": "ab"}
    names = {"chat/completions": ("model", "messages"), "completions": ("model", "prompt")}
    body = {name: fields[name] for name in names.get(path, ("model", "input"))}
    head = param.partition(".")[0].partition("[")[0]
    text = ", ".join(f'"{name}": {json.dumps(one)}' for name, one in body.items() if name != head)
    sent = f'{{{text}, "{head}": {value.replace("NUMBER", number)}}}'
    error = error_of(http.post(f"/v1/{path}", content=sent), 400)
    assert error["param"] == param
    assert f"{param} must be a finite number" in error["message"]


def test_text_that_is_no_unicode_is_400_or_answered(http: httpx.Client) -> None:
    body = json.dumps({**TEXT, "prompt": "\ud800"}).encode()
    assert http.post("/v1/completions", content=body).status_code == 400


def test_a_large_body_is_413(http: httpx.Client) -> None:
    body = json.dumps({**TEXT, "prompt": "a" * (17 << 20)}).encode()
    assert error_of(http.post("/v1/completions", content=body), 413)["code"] == "request_too_large"

    def endless() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * (1 << 20)

    error_of(http.post("/v1/completions", content=endless()), 413)


@pytest.mark.parametrize(
    "request_bytes", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 17_000]
)
def test_a_request_that_is_no_http_is_400(server: OpenAIServer, request_bytes: bytes) -> None:
    """In plain text, as docs/openai.md says: it is uvicorn's answer."""
    host, _, port = server.address.rpartition(":")
    with socket.create_connection((host, int(port)), PATIENCE_S) as client:
        client.sendall(request_bytes)
        assert client.recv(100).startswith(b"HTTP/1.1 400 ")


@pytest.mark.parametrize("at_once", [True, False])
@pytest.mark.parametrize("host", [None, "elsewhere"])  # the second is refused, before its body
def test_a_body_that_is_no_http_leaves_no_traceback(
    server: OpenAIServer, caplog: pytest.LogCaptureFixture, host: str | None, at_once: bool
) -> None:
    address, _, port = server.address.rpartition(":")
    fields = f"Host: {host or server.address}\r\nTransfer-Encoding: chunked\r\n"
    head = f"POST /v1/completions HTTP/1.1\r\n{fields}\r\n"
    with socket.create_connection((address, int(port)), PATIENCE_S) as client:
        client.settimeout(PATIENCE_S)
        client.sendall(head.encode() + (b"" if at_once else b"1\r\n{\r\n"))
        found = b""
        if host is not None and not at_once:
            found = client.recv(1 << 16)
        client.sendall(b"no length\r\n")
        while data := client.recv(1 << 16):
            found += data
    assert found.startswith(b"HTTP/1.1 403 " if host is not None and not at_once else b"HTTP/1.1 4")
    error_of(httpx.post(f"http://{server.address}/v1/completions", json={**TEXT, "n": 0}), 400)
    assert [each for each in caplog.records if each.exc_info] == []


def test_an_unknown_url_is_404_and_a_wrong_method_405(http: httpx.Client) -> None:
    assert error_of(http.post("/v1/nothing", json={}), 404)["message"].count("/v1/nothing") == 1
    assert error_of(http.get("/v1/chat/completions"), 405)["message"].count("/v1/chat/completions") == 1


def test_unknown_fields_are_ignored_and_counted(http: httpx.Client) -> None:
    def ignored() -> float:
        [line] = [
            line
            for line in http.get("/metrics").text.splitlines()
            if line.startswith("suffixsvc:ignored_fields_total")
        ]
        return float(line.rpartition(" ")[2])

    before = ignored()
    answer = http.post("/v1/chat/completions", json={**CHAT, "wish": 1, "hope": {"a": []}})
    assert answer.status_code == 200
    assert ignored() == before + 2


def test_a_temperature_next_to_0_is_0(http: httpx.Client) -> None:
    answer = http.post("/v1/completions", json={**TEXT, "temperature": 5e-324})
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["text"] == "cdef"


def test_null_is_the_default_of_every_optional_field(http: httpx.Client) -> None:
    names = [
        "n",
        "stop",
        "seed",
        "top_p",
        "stream",
        "stream_options",
        "logit_bias",
        "user",
        "tools",
        "logprobs",
        "suffixsvc",
    ]
    answer = http.post("/v1/chat/completions", json={**CHAT, **dict.fromkeys(names)})
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example:80"},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
    ],
)
def test_a_page_of_another_host_is_refused(http: httpx.Client, headers: dict[str, str]) -> None:
    error = error_of(http.post("/v1/chat/completions", json=CHAT, headers=headers), 403)
    assert error["code"] == "origin_not_allowed"
    own = {"Origin": "http://localhost:3000"}
    assert http.post("/v1/chat/completions", json=CHAT, headers=own).status_code == 200
