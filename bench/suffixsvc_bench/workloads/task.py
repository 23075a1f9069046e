"""A task for a model, its side of the train / held-out split, and the files that tasks are made from."""

from __future__ import annotations

import enum
import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import xxhash

from suffixsvc_bench.demo.agents import Messages

#: of the order of the tasks and of the split
SEED: Final = 4
_TASKS: Final = Path(__file__).with_name("tasks")
#: share of the tasks of a training theme that are held out
HELD_OUT_SHARE: Final = 0.08


class Split(enum.StrEnum):
    """Permitted use of a task's answer."""

    #: to build caches from
    TRAIN = "train"
    #: to judge caches with
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Task:
    """One question to a model.

    Attributes:
        id: unique, derived from the messages: "sql-shop-91b2c04e".
        workload: "sql", "json" or "code".
        theme: subject: a schema, a set of tools, a field of programming.
        kind: kind of answer; the agent's name in a recording.
        split: see :class:`Split`.
        messages: the conversation; the last message is the user's.
        max_tokens: limit of the answer.
    """

    id: str
    workload: str
    theme: str
    kind: str
    split: Split
    messages: Messages
    max_tokens: int


def make_task(
    workload: str, theme: str, kind: str, messages: Messages, max_tokens: int, *, held_out_theme: bool = False
) -> Task:
    """A task whose id and split are derived from the messages, independent of other tasks.

    Args:
        held_out_theme: the whole theme is held out.
    """
    digest = xxhash.xxh3_64_intdigest(json.dumps(messages, ensure_ascii=False).encode(), SEED)
    held_out = held_out_theme or digest % 1000 < HELD_OUT_SHARE * 1000
    split = Split.HELD_OUT if held_out else Split.TRAIN
    return Task(f"{workload}-{theme}-{digest >> 32:08x}", workload, theme, kind, split, messages, max_tokens)


def in_order(tasks: Iterable[Task]) -> list[Task]:
    """Sort by a hash of the id: a pseudo-random order in which added tasks keep the relative order of the
    others.

    Any prefix of it is a fair sample of all themes, kinds and splits.
    """
    return sorted(tasks, key=lambda task: xxhash.xxh3_64_intdigest(task.id.encode(), SEED))


def read_themes(workload: str) -> dict[str, dict[str, Any]]:
    """The files of a workload by name without suffix, sorted."""
    return {
        path.stem: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted((_TASKS / workload).glob("*.toml"))
    }


def message(role: str, content: str) -> dict[str, str]:
    """One message of a conversation."""
    return {"role": role, "content": content}
