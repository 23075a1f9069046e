"""Strict JSON schemas on against off: the same request with and without ``response_format``.

Answers are not stored, or the second one of a pair would be drafted from the first. The prompt is in the KV
cache before both.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc_bench.serving.servers.client import Reply
from suffixsvc_bench.serving.servers.subject import ChatSubject

_FILE: Final[dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("json_schema.toml").read_text(encoding="utf-8")
)
_UNSTORED: Final = {"suffixsvc": {"no_store": True}}


@dataclass(frozen=True, slots=True)
class SchemaTask:
    """A request whose answer has a schema."""

    key: str
    messages: tuple[dict[str, str], ...]
    response_format: dict[str, Any]


@dataclass(frozen=True, slots=True)
class SchemaPair:
    """The same request answered with the schema and without."""

    key: str
    on: Reply
    off: Reply

    @property
    def valid(self) -> bool:
        """Whether the answer with the schema is a JSON object."""
        try:
            return isinstance(json.loads(self.on.text), dict)
        except ValueError:
            return False


def schema_tasks(most: int) -> list[SchemaTask]:
    """At most ``most`` of the tasks of json_schema.toml."""
    system = {"role": "system", "content": _FILE["system"]}
    return [
        SchemaTask(
            task["name"],
            (system, {"role": "user", "content": task["request"].strip()}),
            {
                "type": "json_schema",
                "json_schema": {"name": task["name"], "strict": True, "schema": json.loads(task["schema"])},
            },
        )
        for task in _FILE["task"][:most]
    ]


def run_schemas(
    subject: ChatSubject,
    tasks: list[SchemaTask],
    max_tokens: int,
    rounds: int,
    on_task: Callable[[str], None],
) -> list[SchemaPair]:
    """Answer every task with its schema and without, in alternating order.

    Args:
        rounds: repetitions of all tasks.
        on_task: called before each with its key.

    Raises:
        ServiceUnavailableError: the server refuses or fails.
    """
    subject.restart()
    pairs = []
    for number in range(rounds):
        for turn, task in enumerate(tasks, number):
            on_task(task.key)
            subject.chat(task.messages, 1, _UNSTORED)
            with_schema = {**_UNSTORED, "response_format": task.response_format}
            order = (with_schema, _UNSTORED) if turn % 2 else (_UNSTORED, with_schema)
            replies = [subject.chat(task.messages, max_tokens, each) for each in order]
            on, off = replies if turn % 2 else reversed(replies)
            pairs.append(SchemaPair(task.key, on, off))
    return pairs
