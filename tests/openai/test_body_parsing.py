"""Long bodies are parsed in a thread, and no body has so many values that a parse holds the interpreter."""

from __future__ import annotations

import json
import sys
import threading
from typing import Any

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc_openai.app.http.bodies import MAX_BODY_BYTES, MAX_VALUES
from suffixsvc_openai.app.http.body_memory import SHORT_BODY_BYTES
from suffixsvc_openai.app.run import OpenAIServer
from suffixsvc_openai.protocol.completion_request import CompletionRequest
from suffixsvc_openai.protocol.json_values import count_values, parsed_bytes
from support.long_form import rounds
from support.serving import PATIENCE_S

TEXT: dict[str, Any] = {"model": "cycle", "prompt": "ab", "max_tokens": 4, "temperature": 0}


def test_others_are_answered_while_a_long_body_is_parsed(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    parse = CompletionRequest.model_validate_json
    parsing, go_on, parsed = threading.Event(), threading.Event(), threading.Event()

    def slow_parse(data: bytes) -> CompletionRequest:
        if len(data) > SHORT_BODY_BYTES:
            parsing.set()
            go_on.wait(10)  # an end, so that the test fails where this holds the event loop
            parsed.set()
        return parse(data)

    monkeypatch.setattr(CompletionRequest, "model_validate_json", slow_parse)
    answers: list[httpx.Response] = []

    def ask() -> None:
        body = {**TEXT, "unknown": "a" * SHORT_BODY_BYTES}
        answers.append(httpx.post(f"{base}/v1/completions", json=body, timeout=PATIENCE_S))

    base = f"http://{server.address}"
    thread = threading.Thread(target=ask)
    thread.start()
    assert parsing.wait(PATIENCE_S)
    assert httpx.get(f"{base}/health", timeout=PATIENCE_S).status_code == 200
    assert httpx.post(f"{base}/v1/completions", json=TEXT, timeout=PATIENCE_S).status_code == 200
    assert not parsed.is_set()
    go_on.set()
    thread.join()
    assert answers[0].json()["choices"][0]["text"] == "cdef"


@pytest.mark.parametrize("element", ["[]", "1", "{}", '"a"', "[[[]]]", '{"a": 1}'])
def test_a_body_of_too_many_values_is_refused_before_it_is_parsed(
    server: OpenAIServer, monkeypatch: pytest.MonkeyPatch, element: str
) -> None:
    monkeypatch.setattr(CompletionRequest, "model_validate_json", lambda _data: pytest.fail("it is parsed"))
    values = f"[{','.join([element] * (MAX_VALUES + 1))}]"
    body = f'{{"model": "cycle", "prompt": "ab", "unknown": {values}}}'
    answer = httpx.post(f"http://{server.address}/v1/completions", content=body, timeout=PATIENCE_S)
    assert answer.status_code == 400
    assert f"at most {MAX_VALUES} commas" in answer.json()["error"]["message"]


def test_commas_and_brackets_of_a_text_are_no_values(server: OpenAIServer) -> None:
    body = {**TEXT, "unknown": 'a, [{"\\' * MAX_VALUES}
    answer = httpx.post(f"http://{server.address}/v1/completions", json=body, timeout=PATIENCE_S)
    assert answer.status_code == 200, answer.text


def count(value: Any) -> int:
    children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(count, children))


TEXTS = st.text('"\\,[]{}:a\n', max_size=8)
VALUES = st.recursive(
    st.none() | st.integers() | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
    max_leaves=40,
)


@settings(max_examples=rounds(30, full=100), deadline=None)
@given(VALUES, st.booleans())
def test_the_number_of_values_is_that_of_the_parsed_text(value: Any, ascii_only: bool) -> None:
    text = bytearray(json.dumps(value, ensure_ascii=ascii_only).encode())
    values = count(value)
    assert count_values(text, 2 * values - 1) < 2 * values
    if values > 1:
        assert count_values(text, values - 2) == values - 1


@pytest.mark.parametrize("text", [b'"' + b'\\"' * (MAX_BODY_BYTES // 2), b'"' * MAX_BODY_BYTES, b'{"\\'])
def test_malformed_text_is_searched_once(text: bytes) -> None:
    """A quote without an end is a string to the end of the text, not one more begin of a search."""
    count_values(bytearray(b",[" * (MAX_VALUES // 4) + text), MAX_VALUES // 2 - 1)


SPELLINGS = (
    "a",
    "\xe9",
    "\u4e2d",
    "\U0001f600",
    "a\u4e2d",
    "a\U0001f600",
    "\\\\u",
    "\\",
    "\\\u4e2d",
    "\n\x01",
)


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("text", [a * 20_000 + b for a in SPELLINGS for b in SPELLINGS])
def test_what_is_parsed_takes_no_more_than_is_counted(text: str, ascii_only: bool) -> None:
    """One emoji makes four bytes of each character of its text."""
    value = {"a": [text, {"b": text[::-1]}]}
    data = bytearray(json.dumps(value, ensure_ascii=ascii_only).encode())
    found = json.loads(data)["a"]
    size = sum(sys.getsizeof(each) for each in (found[0], found[1]["b"]))
    if not text.isascii():  # the interpreter keeps the UTF-8 that another library asked for
        size += 2 * len(text.encode())
    counted = len(data) + parsed_bytes(data, 8)
    assert size <= counted <= 10 * size
