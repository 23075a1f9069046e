"""One thing that a model is asked, and on which side of the split it lies."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import xxhash

from suffixsvc_bench.demo.agents import Messages

__all__ = ["Split", "Task", "in_order", "make_task"]

#: of the order of the tasks and of the split
SEED: Final = 4
#: share of the tasks of a seen theme that training never sees
HELD_OUT_SHARE: Final = 0.08


class Split(enum.StrEnum):
    """What a task's answer may be used for."""

    #: to build caches from
    TRAIN = "train"
    #: to judge caches with
    HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Task:
    """One question to a model.

    Attributes:
        id: unique, and the same as long as the messages are: "sql-shop-91b2c04e".
        workload: whose task it is: "sql", "json", "code".
        theme: what it is about: a schema, a set of tools, a field of programming.
        kind: what kind of answer it wants; the agent's name in a recording.
        split: see :class:`Split`.
        messages: the conversation so far, the last message the user's.
        max_tokens: the most tokens the answer may have.
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
    """A task, its id and its split derived from the messages, so that neither depends on other tasks.

    Args:
        held_out_theme: training sees nothing of this theme.
    """
    digest = xxhash.xxh3_64_intdigest(json.dumps(messages, ensure_ascii=False).encode(), SEED)
    held_out = held_out_theme or digest % 1000 < HELD_OUT_SHARE * 1000
    split = Split.HELD_OUT if held_out else Split.TRAIN
    return Task(f"{workload}-{theme}-{digest >> 32:08x}", workload, theme, kind, split, messages, max_tokens)


def in_order(tasks: Iterable[Task]) -> list[Task]:
    """In a random-looking order that is always the same and that further tasks do not disturb: whatever
    beginning of it was recorded is a fair sample of all themes, kinds and splits."""
    return sorted(tasks, key=lambda task: xxhash.xxh3_64_intdigest(task.id.encode(), SEED))
