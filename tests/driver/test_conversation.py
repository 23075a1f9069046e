"""Chats as token ids: turns go on where the one before ended."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import pytest
from suffixsvc_driver.conversation import Conversation, prompt_tokens
from suffixsvc_driver.targets.llama_model import LlamaModel
from support.tiny_gguf import EOS_ID, SPECIAL, write_tiny_llama

END = EOS_ID + SPECIAL.index("<|im_end|>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LlamaModel]:
    """Its template is ChatML, and <|im_end|> ends a turn."""
    path = write_tiny_llama(tmp_path_factory.mktemp("chat") / "m.gguf", seed=1, width=16, layers=1)
    with LlamaModel(path) as model:
        yield model


def test_a_turn_goes_on_behind_what_was_written(model: LlamaModel) -> None:
    chat = Conversation(model, "be brief")
    first = chat.ask("hi")
    assert model.detokenize(first, special=True).startswith("<|im_start|>system\nbe brief<|im_end|>\n")
    answer = [*b"h\xc3", END]  # half a character: read again, this would be other tokens
    chat.answered(answer, "h\ufffd")
    second = chat.ask("go on")
    assert second[: len(first) + len(answer)] == [*first, *answer]
    rest = model.detokenize(second[len(first) + len(answer) :], special=True)
    assert rest == "\n<|im_start|>user\ngo on<|im_end|>\n<|im_start|>assistant\n", "no second <|im_end|>"
    assert [message["role"] for message in chat.messages] == ["system", "user", "assistant", "user"]


def test_an_answer_that_was_cut_short_gets_its_end(model: LlamaModel) -> None:
    chat = Conversation(model)
    first = chat.ask("hi")
    chat.answered([*b"hel"], "hel")
    second = chat.ask("go on")
    assert second[: len(first) + 4] == [*first, *b"hel", END]


def test_a_text_that_c_would_cut(model: LlamaModel) -> None:
    chat = Conversation(model)
    first = chat.ask("a\0b")
    assert "a\ufffdb<|im_end|>" in model.detokenize(first, special=True)
    chat.answered([*b"o\0k", END], "o\0k")
    assert chat.ask("go on")[: len(first) + 4] == [*first, *b"o\0k", END]


def test_a_text_that_is_not_the_tokens_is_read_anew(model: LlamaModel) -> None:
    chat = Conversation(model)
    chat.ask("hi")
    chat.answered([*b"one STOP"], "one ", cut=True)
    assert model.detokenize(chat.ask("go on"), special=True).split("<|im_end|>")[1].endswith("\none ")


def test_another_end_than_the_templates_is_not_left_in_the_text(model: LlamaModel) -> None:
    chat = Conversation(model)
    first = chat.ask("hi")
    chat.answered([*b"ok", EOS_ID], "ok")
    assert chat.ask("go on")[: len(first) + 3] == [*first, *b"ok", END]


class Stripping:
    """A model whose template strips what was said, as those of several families do; the rest is real."""

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


def test_a_template_that_strips_costs_nothing(model: LlamaModel) -> None:
    chat = Conversation(Stripping(model))
    first = chat.ask("hi")
    chat.answered([*b"ok \n", END], "ok \n")
    assert chat.ask("go on")[: len(first) + 5] == [*first, *b"ok \n", END]


def test_prompts_begin_once_and_do_not_end(model: LlamaModel) -> None:
    begins = Stripping(model, add_bos=True, add_eos=True, bos_id=EOS_ID, eos_id=EOS_ID)
    assert prompt_tokens(begins, "ab") == [EOS_ID, *b"ab"]
    assert prompt_tokens(begins, "<|endoftext|>ab") == [EOS_ID, *b"ab"]
    assert prompt_tokens(Stripping(model), "<|endoftext|>ab") == [EOS_ID, *b"ab"]
