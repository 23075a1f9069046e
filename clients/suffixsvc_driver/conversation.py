"""A chat with a model as token ids, so that each turn goes on where the one before ended.

A turn's prompt is the whole chat. Written as text and read again, an answer may come out as other tokens
than the model chose, and nothing behind the first of them could be used again: no keys and values, and of a
recurrent state nothing at all. So the tokens of a turn stay as they are, and only what the chat template puts
behind them is tokenized.

    turn 1   <user> question <assistant>
             '----- prompt -----------' answer <end>
    turn 2   '----- as it was -----------------'  <user> question <assistant>
                                                  '----- tokenized ----'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from suffixsvc_driver.vocabulary import Vocabulary

__all__ = ["ChatModel", "Conversation", "prompt_tokens"]


class ChatModel(Protocol):
    """What of :class:`suffixsvc_driver.targets.llama_model.LlamaModel` a chat needs."""

    @property
    def vocabulary(self) -> Vocabulary: ...

    @property
    def eog_ids(self) -> frozenset[int]: ...

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]: ...

    def chat(self, messages: Sequence[Mapping[str, str]], *, add_assistant: bool = True) -> str: ...


def prompt_tokens(model: ChatModel, text: str) -> list[int]:
    """Token ids of a whole prompt: begun as the model's tokenizer begins a text, and only once where a
    template has begun it already; never ended, for it goes on."""
    ids = model.tokenize(text, add_special=True)
    vocabulary = model.vocabulary
    if vocabulary.add_bos and ids[:2] == [vocabulary.bos_id] * 2:
        del ids[0]
    if vocabulary.add_eos and ids[-1:] == [vocabulary.eos_id]:
        del ids[-1]
    return ids


class Conversation:
    """Turns of a user and a model. Not thread-safe.

    Args:
        model: whose chat template and tokenizer are used.
        system: what the model is told before; "" for nothing.

    Attributes:
        messages: so far, as chat templates take them.
    """

    def __init__(self, model: ChatModel, system: str = "") -> None:
        self._model = model
        self.messages: list[dict[str, str]] = [_message("system", system)] if system else []
        self._ids: list[int] = []  # of the last prompt, and of the answer behind it
        self._said = ""  # the same as text, as the template gave it

    def ask(self, text: str) -> list[int]:
        """The prompt for what the user says next.

        Raises:
            ModelError: a template that llama.cpp does not know. Nothing changes.
        """
        messages = [*self.messages, _message("user", text)]
        whole = self._model.chat(messages)
        self.messages = messages
        self._ids = self._go_on(whole) or prompt_tokens(self._model, whole)
        self._said = whole
        return list(self._ids)

    def answered(self, token_ids: Sequence[int], text: str, *, cut: bool = False) -> None:
        """The model wrote this behind the last prompt.

        Args:
            text: as it goes into the chat.
            cut: that is not all the tokens say (a stop text was cut off): the next prompt is tokenized from
                the text.
        """
        self.messages.append(_message("assistant", text))
        self._ids = [] if cut else [*self._ids, *token_ids]

    def _go_on(self, whole: str) -> list[int]:
        """The tokens so far and those of what is new in ``whole``; empty where it does not go on so."""
        if not self._ids:
            return []
        answer = self.messages[-2]["content"]
        for said in (self._said + answer, self._said + answer.strip()):  # some templates strip
            if whole.startswith(said):
                new = self._model.tokenize(whole[len(said) :])
                if self._ids[-1] not in self._model.eog_ids:
                    return self._ids + new
                # the model ended its turn itself, as the template does or otherwise
                return self._ids[:-1] + new
        return []


def _message(role: str, text: str) -> dict[str, str]:
    """A NUL would end the text where C reads it."""
    return {"role": role, "content": text.replace("\0", "\ufffd")}
