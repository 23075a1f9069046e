"""``suffix`` of text completions: the text between two others, by the model's fill-in-the-middle tokens."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc.errors import InvalidInputError
from suffixsvc_driver.decode.loop import generate
from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.targets.single import LlamaTarget
from suffixsvc_openai.prompts.infill import infill_prompt
from support.openai_serving import client_of, running, settings_of
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import EOS_ID, SPECIAL, byte_texts, write_tiny_llama

#: in an order of their own: they are found by their names
MARKS = ["<|fim_middle|>", "<|fim_prefix|>", "<|fim_suffix|>"]
MIDDLE, PREFIX, SUFFIX = range(256 + len(SPECIAL), 256 + len(SPECIAL) + len(MARKS))
BEFORE, AFTER = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))  # <|fim_middle|>"


def written(path: Path, **options: Any) -> Path:
    return write_tiny_llama(path, seed=5, context=2048, texts=[*byte_texts(), *SPECIAL, *MARKS], **options)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("infill") / "infill.gguf")


@pytest.fixture(scope="module")
def infill_client(model: Path) -> Iterator[openai.OpenAI]:
    with running(settings_of(model)) as server, client_of(server) as client:
        yield client


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    given = {"model": "infill", "prompt": BEFORE, "suffix": AFTER, "temperature": 0, "max_tokens": 24}
    return client.completions.create(**{**given, **fields})


@pytest.mark.parametrize("prompt", [BEFORE, list(BEFORE.encode())], ids=["text", "tokens"])
def test_the_model_reads_both_texts_in_its_own_order(
    model: Path, infill_client: openai.OpenAI, prompt: Any
) -> None:
    ids = [PREFIX, *BEFORE.encode(), SUFFIX, *AFTER.encode(), MIDDLE]  # what AFTER spells is no mark
    with LlamaTarget(model, WIDTH_INDEPENDENT) as target:
        expected = generate(target, ids, max_tokens=24).token_ids
    answer = complete(infill_client, prompt=prompt, logprobs=1)
    assert answer.usage.prompt_tokens == len(ids)
    text = bytes(token for token in expected if token < 256).decode("utf-8", "replace")
    assert answer.choices[0].text == text
    assert len(answer.choices[0].logprobs.tokens) == len(expected)
    echoed = complete(infill_client, prompt=prompt, echo=True)
    assert echoed.choices[0].text == BEFORE + text
    chunks = complete(infill_client, prompt=prompt, stream=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == text


def test_an_empty_suffix_is_none(infill_client: openai.OpenAI) -> None:
    plain = complete(infill_client, suffix=openai.NOT_GIVEN)
    empty = complete(infill_client, suffix="")
    assert empty.usage.prompt_tokens == plain.usage.prompt_tokens == len(BEFORE)
    assert empty.choices[0].text == plain.choices[0].text


def test_the_prompt_begins_with_bos_where_the_model_wants_it(tmp_path: Path) -> None:
    with LlamaModel(written(tmp_path / "bos.gguf", add_bos=True)) as model:
        a, b = ord("a"), ord("b")
        assert infill_prompt(model, [a], [b]) == (EOS_ID, PREFIX, a, SUFFIX, b, MIDDLE)


def test_log_probabilities_of_such_a_prompt_are_refused(infill_client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        complete(infill_client, echo=True, logprobs=1)
    assert caught.value.param == "logprobs"


def test_a_model_without_the_tokens_refuses(client: openai.OpenAI, cycle: Path) -> None:
    with pytest.raises(openai.BadRequestError, match="no fill-in-the-middle tokens") as caught:
        complete(client, model="cycle")
    assert caught.value.param == "suffix"
    with LlamaModel(cycle) as model, pytest.raises(InvalidInputError, match="fill-in-the-middle"):
        infill_prompt(model, [1], [2])
