"""Chat sessions as token ids: each prompt extends the tokens of the turn before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest

from suffixsvc_driver.decode.chat_session import ChatSession, prompt_tokens
from suffixsvc_driver.targets.llama.model import LlamaModel
from support.tiny_gguf import EOS_ID, SPECIAL, write_tiny_llama

END = EOS_ID + SPECIAL.index("<|im_end|>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """A model with the ChatML template, in which <|im_end|> ends a turn."""
    path = write_tiny_llama(tmp_path_factory.mktemp("chat") / "m.gguf", seed=1, width=16, layers=1)
    with LlamaModel(path) as model:
        yield model


def test_a_prompt_extends_the_emitted_tokens(model: LlamaModel) -> None:
    chat = ChatSession(model, "be brief")
    first = chat.add_user("hi")
    assert model.detokenize(first, special=True).startswith("<|im_start|>system\nbe brief<|im_end|>\n")
    answer = [*b"h\xc3", END]  # half a character, which would be tokenized differently
    chat.add_assistant(answer, "h\ufffd")
    second = chat.add_user("go on")
    assert second[: len(first) + len(answer)] == [*first, *answer]
    rest = model.detokenize(second[len(first) + len(answer) :], special=True)
    assert rest == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n", "no second <|im_end|>"
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "user"]


def test_the_template_ends_a_truncated_answer(model: LlamaModel) -> None:
    chat = ChatSession(model)
    first = chat.add_user("hi")
    chat.add_assistant([*b"hel"], "hel")
    second = chat.add_user("go on")
    assert second[: len(first) + 4] == [*first, *b"hel", END]


def test_nul_in_a_message(model: LlamaModel) -> None:
    chat = ChatSession(model)
    first = chat.add_user("a\0b")
    assert "a\ufffdb<|im_end|>" in model.detokenize(first, special=True)
    chat.add_assistant([*b"o\0k", END], "o\0k")
    assert chat.add_user("go on")[: len(first) + 4] == [*first, *b"o\0k", END]


def test_an_answer_of_other_text_is_tokenized(model: LlamaModel) -> None:
    chat = ChatSession(model)
    chat.add_user("hi")
    chat.add_assistant([*b"one STOP"], "one ", cut=True)
    assert model.detokenize(chat.add_user("go on"), special=True).split("<|im_end|>")[1].endswith("\none ")


def test_an_end_token_of_the_model_is_replaced_by_the_templates(model: LlamaModel) -> None:
    chat = ChatSession(model)
    first = chat.add_user("hi")
    chat.add_assistant([*b"ok", EOS_ID], "ok")
    assert chat.add_user("go on")[: len(first) + 3] == [*first, *b"ok", END]


class Stripping:
    """The real model with a template that strips messages, as those of several families do."""

    def __init__(self, model: LlamaModel, **vocabulary: object) -> None:
        self._model = model
        self.vocabulary = replace(model.vocabulary, **vocabulary)  # type: ignore[arg-type]  # a test's choice
        self.eog_ids = model.eog_ids

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        ids = self._model.tokenize(text, parse_special=parse_special)
        bos, eos = ([EOS_ID], [EOS_ID]) if add_special else ([], [])
        return [*bos * self.vocabulary.add_bos, *ids, *eos * self.vocabulary.add_eos]

    def chat(self, messages: Sequence[Mapping[str, str]], *, add_assistant: bool = True) -> str:
        stripped = [{**message, "content": message["content"].strip()} for message in messages]
        return self._model.chat(stripped, add_assistant=add_assistant)


def test_a_template_that_strips_keeps_the_tokens(model: LlamaModel) -> None:
    chat = ChatSession(Stripping(model))
    first = chat.add_user("hi")
    chat.add_assistant([*b"ok \n", END], "ok \n")
    assert chat.add_user("go on")[: len(first) + 5] == [*first, *b"ok \n", END]


def test_prompts_have_one_bos_and_no_eos(model: LlamaModel) -> None:
    begins = Stripping(model, add_bos=True, add_eos=True, bos_id=EOS_ID, eos_id=EOS_ID)
    assert prompt_tokens(begins, "ab") == [EOS_ID, *b"ab"]
    assert prompt_tokens(begins, "<|endoftext|>ab") == [EOS_ID, *b"ab"]
    assert prompt_tokens(Stripping(model), "<|endoftext|>ab") == [EOS_ID, *b"ab"]
