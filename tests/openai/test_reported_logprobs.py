"""Log probabilities over HTTP: those of plain decoding, whole and streamed, with and without drafts."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openai
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_openai.protocol.logprobs import ScoredToken, chat_logprobs, completion_logprobs
from support.openai_serving import NO_DRAFTS, client_of, running, settings_of
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import chain_of, write_tiny_chain

#: characters of two, three and four bytes, each byte a token
WIDE = "aä€\U0001f4a9\n"
PROMPT = "the same words, the same words, the same"


@pytest.fixture(scope="module")
def wide_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    path = tmp_path_factory.mktemp("wide") / "wide.gguf"
    write_tiny_chain(path, chain_of(WIDE), context=2048)
    with running(settings_of(path)) as server, client_of(server) as client:
        yield client


def chat(client: openai.OpenAI, **fields: Any) -> Any:
    """The body of an answer, as JSON."""
    given = {"model": "noise", "messages": [{"role": "user", "content": PROMPT}], "logprobs": True}
    raw = client.chat.completions.with_raw_response.create(**{"temperature": 0, **given, **fields})
    return json.loads(raw.text)


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    """The only choice of an answer, as JSON."""
    raw = client.completions.with_raw_response.create(**{"temperature": 0, "logprobs": 3, **fields})
    (choice,) = json.loads(raw.text)["choices"]
    return choice


def oracle(model: Path, prompt: str, written: list[int]) -> list[np.ndarray]:
    """float64 log probabilities of each position of plain decoding."""
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        ids = target.model.tokenize(prompt)
        target.begin(ids)
        rows = []
        for token in [ids[-1], *written[:-1]]:
            wide = target.compute((token,))[0].astype(np.float64)
            rows.append(wide - wide.max() - math.log(np.exp(wide - wide.max()).sum()))
        return rows


@pytest.mark.parametrize("extra", [{}, NO_DRAFTS], ids=["drafts", "plain"])
@pytest.mark.parametrize("temperature", [0, 1.3])
def test_a_chat_has_the_log_probabilities_of_plain_decoding(
    noise: Path, noise_client: openai.OpenAI, temperature: float, extra: Any
) -> None:
    fields: dict[str, Any] = {"temperature": temperature, "seed": 5, "max_completion_tokens": 60}
    body = chat(noise_client, top_logprobs=4, **fields, extra_body=extra)
    choice = body["choices"][0]
    assert choice["logprobs"]["refusal"] is None
    content = choice["logprobs"]["content"]
    assert len(content) == 60
    assert all(len(each["bytes"]) == 1 for each in content)
    written = [each["bytes"][0] for each in content]
    assert bytes(written).decode("utf-8", "replace") == choice["message"]["content"]
    with LlamaTarget(noise, WIDTH_INDEPENDENT) as target:
        prompt = target.model.chat([{"role": "user", "content": PROMPT}])
    for entry, token, scores in zip(content, written, oracle(noise, prompt, written), strict=True):
        assert entry["logprob"] == pytest.approx(scores[token], abs=1e-4)
        top = [each["logprob"] for each in entry["top_logprobs"]]
        assert top == pytest.approx(np.sort(scores)[::-1][:4].tolist(), abs=1e-4)
    if not extra and not temperature:
        assert body["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_a_stream_of_a_chat_has_the_same_tokens(noise_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"top_logprobs": 2, "max_completion_tokens": 50, "stop": ["\x00"], "n": 2}
    whole = chat(noise_client, temperature=1, seed=3, **fields)
    streamed: dict[int, list[Any]] = {0: [], 1: []}
    texts = {0: "", 1: ""}
    chunks = noise_client.chat.completions.create(
        model="noise", messages=[{"role": "user", "content": PROMPT}], logprobs=True, temperature=1, seed=3,
        stream=True, **fields,
    )  # fmt: skip
    for chunk in chunks:
        choice = chunk.choices[0]
        texts[choice.index] += choice.delta.content or ""
        if choice.logprobs is not None:
            streamed[choice.index] += choice.logprobs.model_dump()["content"]
        else:
            assert not choice.delta.content
    for choice in whole["choices"]:
        assert texts[choice["index"]] == choice["message"]["content"]
        assert_same(streamed[choice["index"]], choice["logprobs"]["content"])


def assert_same(found: list[Any], expected: list[Any]) -> None:
    """The same tokens, with log probabilities of another width of the batch."""
    assert [each["bytes"] for each in found] == [each["bytes"] for each in expected]
    scores = [[each["logprob"] for each in entries] for entries in (found, expected)]
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_not_asked_for_they_are_null(noise_client: openai.OpenAI) -> None:
    for fields in ({"logprobs": False}, {"logprobs": None}):
        assert chat(noise_client, max_tokens=2, **fields)["choices"][0]["logprobs"] is None
    answer = complete(noise_client, model="noise", prompt="a", max_tokens=2, logprobs=None)
    assert answer["logprobs"] is None


def test_without_top_logprobs_the_lists_are_empty(noise_client: openai.OpenAI) -> None:
    content = chat(noise_client, max_tokens=3)["choices"][0]["logprobs"]["content"]
    assert [each["top_logprobs"] for each in content] == [[]] * 3


def test_bytes_of_characters_of_several_tokens(wide_client: openai.OpenAI) -> None:
    answer = complete(wide_client, model="wide", prompt="a", max_tokens=14)
    assert answer["text"] == "ä€\U0001f4a9\naä\ufffd"
    found = answer["logprobs"]
    assert found["tokens"][:3] == ["bytes:\\xc3", "bytes:\\xa4", "bytes:\\xe2"]
    assert found["tokens"][9:11] == ["\n", "a"]
    assert found["text_offset"] == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3, 4, 5, 5, 6]
    assert all(-1e-3 < each < 0 for each in found["token_logprobs"])
    assert all(len(top) >= 3 for top in found["top_logprobs"])


@pytest.mark.parametrize("stop", ["\n", "\U0001f4a9", "€\U0001f4a9"])
def test_tokens_end_where_the_text_does(wide_client: openai.OpenAI, stop: str) -> None:
    expected = ("ä€\U0001f4a9\n" * 2).split(stop, maxsplit=1)[0]
    fields: dict[str, Any] = {"model": "wide", "prompt": "a", "max_tokens": 30, "stop": stop}
    answer = complete(wide_client, **fields)
    assert answer["text"] == expected
    assert len(answer["logprobs"]["tokens"]) == len(expected.encode())
    chunks = list(wide_client.completions.create(**fields, temperature=0, logprobs=3, stream=True))
    tokens: list[str] = []
    offsets: list[int] = []
    for chunk in chunks:
        found: Any = chunk.choices[0].logprobs
        if found is not None:
            tokens += found.tokens
            offsets += found.text_offset
    assert "".join(chunk.choices[0].text for chunk in chunks) == expected
    assert tokens == answer["logprobs"]["tokens"]
    assert offsets == answer["logprobs"]["text_offset"]


def test_the_end_token_is_not_reported(brief_client: openai.OpenAI) -> None:
    body = chat(brief_client, model="brief")
    assert [each["token"] for each in body["choices"][0]["logprobs"]["content"]] == ["o", "k"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"logprobs": None, "top_logprobs": 2}, "logprobs"),
        ({"logprobs": False, "top_logprobs": 0}, "logprobs"),
        ({"top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": -1}, "top_logprobs"),
        ({"logprobs": 1}, "logprobs"),
    ],
)
def test_a_chat_refuses(noise_client: openai.OpenAI, fields: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(noise_client, **fields)
    assert caught.value.param == param


@pytest.mark.parametrize("count", [6, -1, True])
def test_a_completion_refuses(noise_client: openai.OpenAI, count: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(noise_client, model="noise", prompt="a", logprobs=count)
    assert caught.value.param == "logprobs"


def test_what_json_and_objects_cannot_express() -> None:
    token = ScoredToken(b"\xff", 2, -math.inf, ((b"", -0.5), (b"", -0.7), (b"\xff", -math.inf)))
    chat: Any = chat_logprobs([token])
    assert chat["content"][0]["logprob"] == -9999.0
    assert chat["content"][0]["token"] == "\\xff"
    assert len(chat["content"][0]["top_logprobs"]) == 3
    found: Any = completion_logprobs([ScoredToken(b"a", 0, None), token])
    assert found["token_logprobs"] == [None, -9999.0]
    assert found["top_logprobs"] == [None, {"": -0.5, "bytes:\\xff": -9999.0}]
    assert found["text_offset"] == [0, 2]
