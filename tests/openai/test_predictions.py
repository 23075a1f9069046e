"""Predicted outputs of chats: drafted, counted as OpenAI counts them, and without effect on the text."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

import openai
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import CONTEXT, NO_DRAFTS, client_of, running, settings_of
from support.tiny_gguf import SPECIAL, write_tiny_llama

MESSAGES = [{"role": "user", "content": "Write something."}]
TOKENS = 60
#: bans what is not ASCII, so that a text and its tokens are the same
ASCII = {str(token): -100 for token in range(128, 256 + len(SPECIAL))}


@pytest.fixture(scope="module")
def noise_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenAIServer]:
    path: Path = write_tiny_llama(tmp_path_factory.mktemp("noise") / "noise.gguf", seed=7, context=CONTEXT)
    with running(settings_of(path)) as server:
        yield server


@pytest.fixture(scope="module")
def noise_client(noise_server: OpenAIServer) -> Iterator[openai.OpenAI]:
    with client_of(noise_server) as client:
        yield client


def chat(client: openai.OpenAI, content: Any = None, **fields: Any) -> Any:
    given: dict[str, Any] = {"model": "noise", "messages": MESSAGES, "temperature": 0, "max_tokens": TOKENS}
    given["logit_bias"] = ASCII
    given["extra_body"] = {"suffixsvc": {"no_store": True}}
    if content is not None:
        given["prediction"] = {"type": "content", "content": content}
    raw = client.chat.completions.with_raw_response.create(**{**given, **fields})
    return json.loads(raw.text)


def counts(body: Any) -> tuple[int, int, int]:
    """Accepted and rejected tokens of the prediction, and tokens that it drafted."""
    details = body["usage"]["completion_tokens_details"]
    drafted = body["metrics"]["speculative_decoding"]["tokens_by_source"]["prediction"]
    return details["accepted_prediction_tokens"], details["rejected_prediction_tokens"], drafted


@pytest.fixture(scope="module")
def text(noise_client: openai.OpenAI) -> str:
    """What the model writes."""
    body = chat(noise_client)
    assert counts(body) == (0, 0, 0)
    found: str = body["choices"][0]["message"]["content"]
    assert len(found) == TOKENS
    return found


@pytest.mark.parametrize("parts", [False, True])
def test_a_right_prediction_is_accepted(noise_client: openai.OpenAI, text: str, parts: bool) -> None:
    texts = [{"type": "text", "text": part} for part in (text[:20], text[20:])]
    body = chat(noise_client, texts if parts else text)
    accepted, rejected, drafted = counts(body)
    assert (accepted, rejected) == (TOKENS, 0)
    assert TOKENS // 2 < drafted < TOKENS
    assert body["choices"][0]["message"]["content"] == text


def test_a_prediction_with_an_edit_is_accepted_around_it(noise_client: openai.OpenAI, text: str) -> None:
    body = chat(noise_client, text[:20] + "\x00\x01\x02" + text[24:])
    accepted, rejected, drafted = counts(body)
    assert accepted + rejected == TOKENS - 1
    assert accepted >= TOKENS - 10
    assert drafted > TOKENS // 3
    assert body["choices"][0]["message"]["content"] == text


@pytest.mark.parametrize("content", ["zzzz" * 100, "", [], "\x00", "<|im_end|>"])
@pytest.mark.parametrize("fields", [{}, {"temperature": 1, "seed": 5}, {"n": 2, "stop": ["\x01"]}])
def test_no_prediction_changes_the_text(noise_client: openai.OpenAI, content: Any, fields: Any) -> None:
    if content == []:
        content = [{"type": "text", "text": "ab"}, {"type": "text", "text": ""}]
    plain, predicted = chat(noise_client, **fields), chat(noise_client, content, **fields)
    texts = [[each["message"] for each in body["choices"]] for body in (plain, predicted)]
    assert texts[0] == texts[1]
    size = len(content.encode()) if isinstance(content, str) else 2
    accepted, rejected, _ = counts(predicted)
    assert accepted + rejected == size * len(plain["choices"])


def test_a_stream_reports_them_in_its_usage(noise_client: openai.OpenAI, text: str) -> None:
    whole = chat(noise_client, text)
    stream = noise_client.chat.completions.create(
        model="noise",
        messages=MESSAGES,  # type: ignore[arg-type]
        temperature=0,
        max_tokens=TOKENS,
        logit_bias=ASCII,  # type: ignore[arg-type]
        prediction={"type": "content", "content": text},
        stream=True,
        stream_options={"include_usage": True},
    )
    usage: Any = list(stream)[-1].usage
    details = usage.completion_tokens_details
    found = (details.accepted_prediction_tokens, details.rejected_prediction_tokens)
    assert found == counts(whole)[:2]


def test_without_drafts_there_is_nothing_to_count(noise_client: openai.OpenAI, text: str) -> None:
    body = chat(noise_client, text, extra_body=NO_DRAFTS)
    assert body["choices"][0]["message"]["content"] == text
    assert counts(body) == (0, 0, 0)


def test_the_metrics_count_its_tokens(
    noise_server: OpenAIServer, noise_client: openai.OpenAI, text: str
) -> None:
    def total() -> float:
        metrics = httpx.get(f"http://{noise_server.address}/metrics").text
        name = (
            'suffixsvc:spec_decode_tokens_by_source_total{engine="0",model_name="noise",source="prediction"}'
        )
        return sum(float(line.split()[-1]) for line in metrics.splitlines() if line.startswith(name))

    before = total()
    drafted = counts(chat(noise_client, text))[2]
    assert drafted > 0
    assert total() == before + drafted


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ({"type": "content", "content": "a" * (CONTEXT + 1)}, "prediction.content"),
        ({"type": "text", "content": "a"}, "prediction.type"),
        ({"type": "content"}, "prediction.content"),
        ({"type": "content", "content": None}, "prediction.content"),
        ({"type": "content", "content": 5}, "prediction.content"),
        (
            {"type": "content", "content": [{"type": "image_url", "image_url": {"url": "x"}}]},
            "prediction.content",
        ),
        ("a", "prediction"),
    ],
)
def test_a_malformed_prediction_is_refused(noise_client: openai.OpenAI, prediction: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(noise_client, prediction=prediction)
    assert caught.value.param == param
