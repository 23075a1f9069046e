"""Chat session as token ids: each turn's prompt extends the tokens of the turn before.

The prompt of a turn is the whole chat. Detokenized and tokenized again, an answer may become other tokens
than the model sampled, and no state after the first different token could be reused: no KV cells, and
nothing of a recurrent state. The tokens of a turn are therefore kept, and only the text that the chat
template adds is tokenized.

    turn 1   <user> question <assistant>
             '--------- prompt --------' answer <end>
    turn 2   '------------ unchanged ---------------'  <user> question <assistant>
                                                       '------- tokenized -------'
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from suffixsvc_driver.targets.llama.model import LlamaModel


def prompt_tokens(model: LlamaModel, text: str) -> list[int]:
    """Return the token ids of a whole prompt.

    It starts with the vocabulary's BOS token, once even if the template adds another one, and has
    no EOS token.
    """
    ids = model.tokenize(text, add_special=True)
    vocabulary = model.vocabulary
    if vocabulary.add_bos and ids[:2] == [vocabulary.bos_id] * 2:
        del ids[0]
    if vocabulary.add_eos and ids[-1:] == [vocabulary.eos_id]:
        del ids[-1]
    return ids


class ChatSession:
    """Chat of a user and a model. Not thread-safe.

    Args:
        model: provides the chat template and the tokenizer.
        system: system message; "" for none.

    Attributes:
        messages: all messages so far, in the form of chat templates.
    """

    def __init__(self, model: LlamaModel, system: str = "") -> None:
        self._model = model
        self.messages: list[dict[str, str]] = [_message("system", system)] if system else []
        self._ids: list[int] = []  # of the last prompt and its answer; empty if unknown
        self._prompt = ""  # text of the last prompt

    def add_user(self, text: str) -> list[int]:
        """Add a user message and return the tokens of the prompt.

        Raises:
            ModelError: llama.cpp does not support the chat template; the chat is unchanged.
        """
        messages = [*self.messages, _message("user", text)]
        whole = self._model.chat(messages)
        self.messages = messages
        self._ids = self._continuation(whole) or prompt_tokens(self._model, whole)
        self._prompt = whole
        return list(self._ids)

    def add_assistant(self, token_ids: Sequence[int], text: str, *, cut: bool = False) -> None:
        """Add the model's answer to the last prompt.

        Args:
            token_ids: of the answer.
            text: of the answer, for the chat template.
            cut: ``text`` is shorter than the tokens (a stop string was removed): the next prompt is tokenized
                from text.
        """
        self.messages.append(_message("assistant", text))
        self._ids = [] if cut else [*self._ids, *token_ids]

    def _continuation(self, whole: str) -> list[int]:
        """Return the tokens so far and those that ``whole`` adds, or [] if it does not extend them."""
        if not self._ids:
            return []
        answer = self.messages[-2]["content"]
        for before in (self._prompt + answer, self._prompt + answer.strip()):  # some templates strip
            if whole.startswith(before):
                new = self._model.tokenize(whole[len(before) :])
                if self._ids[-1] not in self._model.eog_ids:
                    return self._ids + new
                # the template writes the end of the turn, which need not be the model's end token
                return self._ids[:-1] + new
        return []


def _message(role: str, text: str) -> dict[str, str]:
    """Return a message; NUL, which would end the text in C, becomes U+FFFD."""
    return {"role": role, "content": text.replace("\0", "\ufffd")}
