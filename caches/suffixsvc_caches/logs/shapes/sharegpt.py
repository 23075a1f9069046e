"""ShareGPT: conversations of turns that say who wrote them, as fine-tuning files keep them.

    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": ".."}

human, user; gpt, assistant and the other models; system; function_call (the model's; its value is the call as
JSON); tool, function, observation (what the tool gave back). ``system`` beside the turns stands before them.

Sources: axolotl, docs/dataset-formats/conversation.qmd (from, value, human, gpt, system); LLaMA-Factory,
data/README.md (function_call, observation, system and tools beside the turns).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.fields import Finder
from suffixsvc_caches.logs.json_text import parse_json
from suffixsvc_caches.logs.messages import written_text
from suffixsvc_caches.logs.options import ReadOptions
from suffixsvc_caches.logs.prompts import PromptText
from suffixsvc_caches.logs.shapes.base import LabelReader, RawCall

__all__ = ["ShareGptLog", "is_sharegpt"]

_TURNS: Final = ("conversations", "conversation")
_CALL: Final = "function_call"
_ROLES: Final = {
    "human": "user",
    "user": "user",
    **dict.fromkeys(("gpt", "assistant", "model", "chatgpt", "bing", "bard", _CALL), "assistant"),
    **dict.fromkeys(("tool", "function", "observation"), "tool"),
    "system": "system",
}


def is_sharegpt(record: dict[str, Any]) -> bool:
    """Whether a record holds a conversation of such turns."""
    return any(
        isinstance(turns := record.get(key), list)
        and bool(turns)
        and isinstance(turns[0], dict)
        and {"from", "value"} <= turns[0].keys()
        for key in _TURNS
    )


class ShareGptLog:
    """Reads conversations. ``response_field`` and ``prompt_field`` name the turns and the system message."""

    #: prompts are made of the turns that hold the responses
    unneeded: frozenset[str] = frozenset()

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._labels = LabelReader(options)
        self._turns = Finder("response_field", options.response_field, _TURNS)
        self._system = Finder("prompt_field", options.prompt_field, ("system",))
        self.finders = (self._turns, self._system, *self._labels.finders)

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """One call for each turn of the model.

        Raises:
            InvalidInputError: no turns, or one that is none.
        """
        if not self._turns.has(record):
            raise self._turns.missing(record)
        turns = self._turns.find(record)
        if not isinstance(turns, list):
            raise InvalidInputError("no conversation", expected="a list of turns", got=type(turns).__name__)
        labels = self._labels.read(record)
        prompt = PromptText(self._options)
        system = self._system.find(record)
        if system:
            prompt.add({"role": "system", "content": system})
        for turn in turns:
            message = _message(turn)
            if message["role"] == "assistant":
                written = partial(written_text, message, self._options.tool_format, self._options.reasoning)
                yield RawCall(labels, written, prompt.text, together=True)
            prompt.add(message)


def _message(turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise InvalidInputError("a turn is no object", got=type(turn).__name__)
    name, value = turn.get("from"), turn.get("value")
    role = _ROLES.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        raise InvalidInputError("a turn of nobody known", expected=", ".join(_ROLES), got=repr(name)[:80])
    if value is not None and not isinstance(value, str):
        raise InvalidInputError("the value of a turn is no text", got=type(value).__name__)
    calls = _calls(value) if isinstance(name, str) and name.lower() == _CALL and value else None
    return {"role": role, "content": value} if calls is None else {"role": role, "tool_calls": calls}


def _calls(value: str) -> list[Any] | None:
    """The calls in the value of a turn; None where it is a text of the model's own, tags and all."""
    try:
        calls = parse_json(value)
    except InvalidInputError:
        return None
    calls = calls if isinstance(calls, list) else [calls]
    return calls if all(isinstance(call, dict) and "name" in call for call in calls) else None
