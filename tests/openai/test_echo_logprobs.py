"""Log probabilities of a prompt: ``echo`` with ``logprobs`` of text completions, as evaluations use them."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openai
from suffixsvc_driver.targets.single import LlamaTarget
from support.openai_serving import client_of, running, settings_of
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import EOS_ID, write_tiny_llama

PROMPT = "Grün ist die Farbe; \U0001f34f are green, and so on, and so on."


def complete(client: openai.OpenAI, **fields: Any) -> list[Any]:
    given = {"model": "noise", "prompt": PROMPT, "temperature": 0, "logprobs": 2, "echo": True}
    raw = client.completions.with_raw_response.create(**{**given, **fields})
    choices: list[Any] = json.loads(raw.text)["choices"]
    return choices


def oracle(model: Path, ids: list[int]) -> list[np.ndarray]:
    """float64 log probabilities of each token but the first, from plain decoding."""
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        target.begin(ids[:1])
        rows = []
        for token in ids[:-1]:
            wide = target.compute((token,))[0].astype(np.float64)
            rows.append(wide - wide.max() - math.log(np.exp(wide - wide.max()).sum()))
        return rows


def check(model: Path, choice: Any, ids: list[int], top: int = 2) -> None:
    """``ids``: prompt and answer."""
    found = choice["logprobs"]
    assert len(found["tokens"]) == len(found["text_offset"]) == len(ids)
    assert found["token_logprobs"][0] is None
    assert found["top_logprobs"][0] is None
    rows = oracle(model, ids)
    each = zip(found["token_logprobs"][1:], found["top_logprobs"][1:], rows, ids[1:], strict=True)
    for logprob, most, row, token in each:
        assert logprob == pytest.approx(row[token], abs=1e-4)
        assert sorted(most.values())[-top:] == pytest.approx(np.sort(row)[-top:].tolist(), abs=1e-4)


@pytest.mark.parametrize("max_tokens", [0, 1, 20])
def test_a_prompt_and_its_answer(noise: Path, noise_client: openai.OpenAI, max_tokens: int) -> None:
    plain = complete(noise_client, echo=False, logprobs=None, max_tokens=20)[0]["text"]  # its KV is cached
    (choice,) = complete(noise_client, max_tokens=max_tokens)
    ids = [ord(t) if len(t) == 1 and ord(t) < 128 else int(t[-2:], 16) for t in choice["logprobs"]["tokens"]]
    assert len(ids) == len(PROMPT.encode()) + max_tokens
    assert bytes(ids).startswith(PROMPT.encode())
    assert choice["text"] == bytes(ids).decode("utf-8", "replace")
    assert choice["finish_reason"] == "length"
    check(noise, choice, ids)
    offsets = choice["logprobs"]["text_offset"]
    assert offsets[: len(PROMPT.encode())] == [
        at for at, character in enumerate(PROMPT) for _ in character.encode()
    ]
    if max_tokens == 20:
        assert choice["text"] == PROMPT + plain
        assert offsets[len(PROMPT.encode())] == len(PROMPT)


def test_streamed_it_is_the_same(noise_client: openai.OpenAI) -> None:
    fields: dict[str, Any] = {"n": 2, "max_tokens": 12, "temperature": 1, "seed": 4}
    whole = complete(noise_client, **fields)
    joined: dict[int, dict[str, list[Any]]] = {0: {}, 1: {}}
    texts = {0: "", 1: ""}
    chunks = noise_client.completions.create(
        model="noise", prompt=PROMPT, logprobs=2, echo=True, stream=True, **fields
    )
    for chunk in chunks:
        choice = chunk.choices[0]
        texts[choice.index] += choice.text
        if choice.logprobs is not None:
            for name, values in choice.logprobs.model_dump().items():
                joined[choice.index].setdefault(name, []).extend(values)
    for choice in whole:
        found = joined[choice["index"]]
        assert texts[choice["index"]] == choice["text"]
        assert found["tokens"] == choice["logprobs"]["tokens"]
        assert found["text_offset"] == choice["logprobs"]["text_offset"]
        scores = [each["token_logprobs"][1:] for each in (found, choice["logprobs"])]
        assert scores[0] == pytest.approx(scores[1], abs=1e-4)


def test_prompts_as_an_evaluation_sends_them(noise: Path, noise_client: openai.OpenAI) -> None:
    """Lists of tokens, one token to generate; it reads the continuation's log probabilities and whether each
    token was the most probable one."""
    contexts, continuations = ["Is it", "A longer question is"], [" so?", " this one"]
    prompts = [list((a + b).encode()) for a, b in zip(contexts, continuations, strict=True)]
    choices = complete(noise_client, prompt=prompts, max_tokens=1, logprobs=1, seed=1234)
    for choice, ids, context in zip(choices, prompts, contexts, strict=True):
        found, at = choice["logprobs"], len(context)
        assert len(found["token_logprobs"]) == len(ids) + 1
        rows = oracle(noise, ids)[at - 1 :]
        scores = found["token_logprobs"][at:-1]
        exact = [row[token] for row, token in zip(rows, ids[at:], strict=True)]
        assert sum(scores) == pytest.approx(sum(exact), abs=1e-3)
        greedy = [
            score == max(top.values())
            for score, top in zip(scores, found["top_logprobs"][at:-1], strict=True)
        ]
        assert greedy == [int(row.argmax()) == token for row, token in zip(rows, ids[at:], strict=True)]


def test_the_bos_token_has_no_place_in_the_text(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "bos.gguf", seed=3, context=2048, add_bos=True)
    with running(settings_of(path)) as server, client_of(server) as client:
        (choice,) = complete(client, model="bos", prompt="abc", max_tokens=0)
        check(path, choice, [EOS_ID, *b"abc"])
        assert choice["text"] == "abc"
        assert choice["logprobs"]["text_offset"] == [0, 0, 1, 2]
        assert choice["logprobs"]["tokens"] == ["<|endoftext|>", "a", "b", "c"]


def test_no_tokens_without_echo(noise_client: openai.OpenAI) -> None:
    (choice,) = complete(noise_client, echo=False, max_tokens=0)
    assert choice["text"] == ""
    assert choice["logprobs"] == {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
    (choice,) = complete(noise_client, logprobs=None, max_tokens=0)
    assert choice["text"] == PROMPT
    assert choice["logprobs"] is None
