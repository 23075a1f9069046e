"""Checks of a conversation's calls and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from suffixsvc_openai.prompts.messages import MessageError


def check_calls(messages: Sequence[Mapping[str, Any]]) -> None:
    """Check that calls have ids, names and arguments, and that each result belongs to an earlier call.

    Raises:
        MessageError: ``param`` names the field, as ``messages[2].tool_call_id``.
    """
    known: set[str] = set()
    for i, message in enumerate(messages):
        param = f"messages[{i}]"
        for k, call in enumerate(message.get("tool_calls") or ()):
            known.add(_id_of(call, f"{param}.tool_calls[{k}]"))
        if message["role"] != "tool":
            continue
        given = message.get("tool_call_id")
        if given is None:
            raise MessageError(f"{param}.tool_call_id", "be given in a message of role tool")
        if given not in known:
            raise MessageError(
                f"{param}.tool_call_id", "be the id of a call in an earlier message", got=repr(given)[:80]
            )


def _id_of(call: Mapping[str, Any], param: str) -> str:
    kind, given, function = call.get("type", "function"), call.get("id"), call.get("function")
    if kind != "function":
        raise MessageError(f"{param}.type", 'be "function"', got=repr(kind)[:60])
    if not isinstance(given, str) or not given:
        raise MessageError(f"{param}.id", "be a string", got=repr(given)[:60])
    if not isinstance(function, Mapping):
        raise MessageError(f"{param}.function", "be an object", got=repr(function)[:60])
    for name in ("name", "arguments"):
        if not isinstance(function.get(name), str):
            raise MessageError(f"{param}.function.{name}", "be a string", got=repr(function.get(name))[:60])
    return given
