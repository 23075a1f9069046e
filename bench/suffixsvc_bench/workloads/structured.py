"""Workload of answers as JSON: tool calls, extraction, plans, reports, test data.

A theme's file (tasks/json/THEME.toml) has ``prompts`` with {names} and, under ``values``, the values of each
name; every prompt is used ``count`` times. The system message is the theme's ``instruction``, or describes
its ``tools``: one table per tool, argument = "type: description".
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from suffixsvc_bench.workloads.task import Task, make_task, message, read_themes
from suffixsvc_openai.prompts.tool_prompt import TOOLS_TEXT

#: system message for tools of the Qwen and Hermes models
_TOOLS: Final = f"You are a helpful assistant.\n\n{TOOLS_TEXT}"
_COUNT: Final = 6
MAX_TOKENS: Final = 480

_SLOT: Final = re.compile(r"{(\w+)}")


def tasks() -> list[Task]:
    """All tasks of the workload, theme by theme."""
    return [task for name, theme in read_themes("json").items() for task in _of_theme(name, theme)]


def _of_theme(name: str, theme: dict[str, Any]) -> Iterator[Task]:
    system = theme.get("instruction") or _TOOLS.format(
        tools="\n".join(json.dumps(_signature(tool, about)) for tool, about in theme["tools"].items())
    )
    for question in _filled(theme["prompts"], theme["values"], theme.get("count", _COUNT)):
        messages = [message("system", system), message("user", question)]
        yield make_task(
            "json",
            name.replace("_", "-"),
            theme["kind"],
            messages,
            MAX_TOKENS,
            held_out_theme=theme.get("held_out", False),
        )


def _filled(prompts: Sequence[str], values: Mapping[str, Sequence[str]], count: int) -> list[str]:
    """Each prompt ``count`` times, or as often as its values give different texts."""
    texts = []
    for p, prompt in enumerate(prompts):
        for variant in range(count):
            # each name advances by a different stride, so that the combinations of values vary
            at = {
                slot: p + variant * (1 + 2 * i) + i
                for i, slot in enumerate(dict.fromkeys(_SLOT.findall(prompt)))
            }
            chosen = {slot: values[slot][n % len(values[slot])] for slot, n in at.items()}
            texts.append(_SLOT.sub(lambda match, chosen=chosen: chosen[match[1]], prompt))  # type: ignore[misc] # mypy cannot infer lambdas with defaults
    return list(dict.fromkeys(texts))


def _signature(name: str, about: Mapping[str, Any]) -> dict[str, Any]:
    """JSON schema of a tool."""
    properties = {}
    for argument, text in about.items():
        if argument not in ("description", "required"):
            kind, _, meaning = text.partition(": ")
            items = {"items": {"type": "string"}} if kind == "array" else {}
            properties[argument] = {"type": kind, **items, "description": meaning}
    parameters = {"type": "object", "properties": properties, "required": about["required"]}
    function = {"name": name, "description": about["description"], "parameters": parameters}
    return {"type": "function", "function": function}
