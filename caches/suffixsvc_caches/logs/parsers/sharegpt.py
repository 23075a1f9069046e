"""Parser of ShareGPT conversations: lists of turns with their authors, as in fine-tuning files.

    {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}], "system": ".."}

Authors are human, user; gpt, assistant and other models; system; function_call (by the model; its value is
the call as JSON); tool, function, observation (tool results). A ``system`` field precedes the turns.

Sources: axolotl, docs/dataset-formats/conversation.qmd (from, value, human, gpt, system); LLaMA-Factory,
data/README.md (function_call, observation, system and tools beside the turns).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_caches.logs.base.json_text import parse_json
from suffixsvc_caches.logs.calls.prompts import PromptText
from suffixsvc_caches.logs.parsers.base import RawCall, RecordParser

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
    """Whether a record has a ShareGPT conversation."""
    return any(
        isinstance(turns := record.get(key), list)
        and bool(turns)
        and isinstance(turns[0], dict)
        and {"from", "value"} <= turns[0].keys()
        for key in _TURNS
    )


class ShareGptParser(RecordParser):
    """Parses conversations; ``response_field`` and ``prompt_field`` name the turns and the system message."""

    responses = _TURNS
    prompts = ("system",)

    def calls(self, record: dict[str, Any]) -> Iterator[RawCall]:
        """Yield one call for each turn of the model.

        Raises:
            InvalidInputError: there are no turns, or one is malformed.
        """
        turns, system, labels = self.find(record)
        if not isinstance(turns, list):
            raise InvalidInputError("a conversation must be a list of turns", got=type(turns).__name__)
        prompt = PromptText(self.options, [{"role": "system", "content": system}] if system else ())
        yield from self.turns(labels, map(_message, turns), prompt)


def _message(turn: Any) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise InvalidInputError("a turn must be an object", got=type(turn).__name__)
    name, value = turn.get("from"), turn.get("value")
    role = _ROLES.get(name.lower()) if isinstance(name, str) else None
    if role is None:
        raise InvalidInputError("unknown author of a turn", expected=", ".join(_ROLES), got=repr(name)[:80])
    if value is not None and not isinstance(value, str):
        raise InvalidInputError("the value of a turn must be a string", got=type(value).__name__)
    calls = _calls(value) if isinstance(name, str) and name.lower() == _CALL and value else None
    return {"role": role, "content": value} if calls is None else {"role": role, "tool_calls": calls}


def _calls(value: str) -> list[Any] | None:
    """Parse the tool calls in the value of a turn; None if it is plain text, with or without tags."""
    try:
        calls = parse_json(value)
    except InvalidInputError:
        return None
    calls = calls if isinstance(calls, list) else [calls]
    return calls if all(isinstance(call, dict) and "name" in call for call in calls) else None
