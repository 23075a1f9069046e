"""Completions and chats through OpenAI's client: the text of the model, in one body and in a stream."""

from __future__ import annotations

from typing import Any

import pytest

import openai
from support.openai_serving import cycle_text

GREEDY: dict[str, Any] = {"model": "cycle", "temperature": 0}


def complete(client: openai.OpenAI, **fields: Any) -> Any:
    return client.completions.create(**{**GREEDY, "prompt": "ab", "max_tokens": 20, **fields})


def streamed(client: openai.OpenAI, **fields: Any) -> tuple[dict[int, str], dict[int, str], Any]:
    """Texts and reasons by index, and the last chunk."""
    texts: dict[int, str] = {}
    reasons: dict[int, str] = {}
    chunk = None
    for chunk in complete(client, stream=True, **fields):
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason:
                assert choice.index not in reasons
                reasons[choice.index] = choice.finish_reason
    return texts, reasons, chunk


def test_a_completion_is_what_the_model_writes(client: openai.OpenAI) -> None:
    answer = complete(client)
    assert answer.choices[0].text == cycle_text("b", 20)
    assert answer.choices[0].finish_reason == "length"
    assert answer.object == "text_completion"
    assert answer.usage.prompt_tokens == 2
    assert answer.usage.completion_tokens == 20
    assert answer.usage.total_tokens == 22


def test_sixteen_tokens_are_the_default(client: openai.OpenAI) -> None:
    answer = complete(client, max_tokens=openai.NOT_GIVEN)
    assert answer.usage.completion_tokens == 16


def test_a_stream_has_the_same_text(client: openai.OpenAI) -> None:
    texts, reasons, last = streamed(client, stream_options={"include_usage": True})
    assert texts == {0: cycle_text("b", 20)}
    assert reasons == {0: "length"}
    assert last.choices == []
    assert last.usage.completion_tokens == 20
    assert last.metrics["speculative_decoding"]["num_draft_tokens"] > 0


def test_a_stream_without_usage_ends_with_the_reason(client: openai.OpenAI) -> None:
    _, reasons, last = streamed(client)
    assert reasons == {0: "length"}
    assert last.choices[0].finish_reason == "length"
    assert last.usage is None


def test_every_prompt_has_n_choices_in_order(client: openai.OpenAI) -> None:
    fields = {"prompt": ["a", "d"], "n": 2, "max_tokens": 12}
    expected = [cycle_text("a", 12)] * 2 + [cycle_text("d", 12)] * 2
    answer = complete(client, **fields)
    assert [choice.text for choice in answer.choices] == expected
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (2, 48)
    texts, reasons, _ = streamed(client, **fields)
    assert [texts[index] for index in range(4)] == expected
    assert reasons == dict.fromkeys(range(4), "length")


@pytest.mark.parametrize("prompt", [[97, 98], [[97, 98]], "ab", ["ab"]])
def test_a_prompt_may_be_tokens(client: openai.OpenAI, prompt: Any) -> None:
    assert complete(client, prompt=prompt).choices[0].text == cycle_text("b", 20)


@pytest.mark.parametrize("prompt", [[97, 98], "ab"])
def test_echo_prepends_the_prompt(client: openai.OpenAI, prompt: Any) -> None:
    assert complete(client, prompt=prompt, echo=True).choices[0].text == "ab" + cycle_text("b", 20)
    assert streamed(client, prompt=prompt, echo=True)[0] == {0: "ab" + cycle_text("b", 20)}


@pytest.mark.parametrize("stop", ["fg", ["zz", "efg", "fg"], ["h\nab"]])
def test_a_stop_string_across_tokens_ends_the_text_before_it(client: openai.OpenAI, stop: Any) -> None:
    whole = cycle_text("b", 40)
    expected = min((whole[: whole.index(each)] for each in ([stop] if isinstance(stop, str) else stop)
                    if each in whole), key=len)  # fmt: skip
    answer = complete(client, stop=stop, max_tokens=40)
    assert answer.choices[0].text == expected
    assert answer.choices[0].finish_reason == "stop"
    texts, reasons, _ = streamed(client, stop=stop, max_tokens=40)
    assert (texts, reasons) == ({0: expected}, {0: "stop"})


def test_a_bias_bans_a_token(client: openai.OpenAI) -> None:
    answer = complete(client, logit_bias={"99": -100}, max_tokens=3)
    assert "c" not in answer.choices[0].text
    forced = complete(client, logit_bias={"122": 100}, max_tokens=3)
    assert forced.choices[0].text == "zzz"


def test_the_seed_decides_a_sampled_text(client: openai.OpenAI) -> None:
    hot = {"temperature": 2, "logit_bias": {str(token): 50 for token in range(100, 120)}, "max_tokens": 12}
    first, again, other = (complete(client, seed=seed, **hot).choices[0].text for seed in (1, 1, 2))
    assert first == again
    assert first != other
    two = complete(client, seed=1, n=2, **hot).choices
    assert two[0].text == first
    assert two[0].text != two[1].text


@pytest.mark.parametrize(
    "field", [{"top_p": 0.5}, {"top_p": 0}, {"frequency_penalty": 0.1}, {"presence_penalty": -0.1}]
)
def test_other_settings_are_accepted(client: openai.OpenAI, field: Any) -> None:
    assert complete(client, **field).choices[0].text == cycle_text("b", 20)


def test_a_chat_answers_and_ends(brief_client: openai.OpenAI) -> None:
    messages: Any = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
    answer = brief_client.chat.completions.create(model="brief", messages=messages, temperature=0)
    message = answer.choices[0].message
    assert (message.role, message.content, message.refusal) == ("assistant", "ok", None)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3  # with the end token
    raw = brief_client.chat.completions.with_raw_response.create(
        model="brief", messages=messages, temperature=0, max_completion_tokens=1
    )
    body: Any = raw.http_response.json()
    assert body["choices"][0]["logprobs"] is None
    expected = {"role": "assistant", "content": "o", "refusal": None, "annotations": []}
    assert body["choices"][0]["message"] == expected
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_chat_streams_a_role_text_and_a_reason(brief_client: openai.OpenAI) -> None:
    parts: Any = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo?"}]
    stream = brief_client.chat.completions.create(
        model="brief",
        messages=[{"role": "user", "content": parts}],
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks[:-1]) == "ok"
    assert [chunk.choices[0].finish_reason for chunk in chunks[-2:-1]] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks[:-1])
    assert chunks[-1].usage is not None
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1


def test_the_kv_of_an_earlier_prompt_is_reused(brief_client: openai.OpenAI) -> None:
    messages: Any = [{"role": "user", "content": "A prompt that two calls share. " * 3}]
    answers = [
        brief_client.chat.completions.create(model="brief", messages=messages, temperature=0)
        for _ in range(2)
    ]
    usage = answers[1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == usage.prompt_tokens - 1


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["cycle"]
    assert client.models.retrieve("cycle").owned_by == "suffixsvc"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other/model")
