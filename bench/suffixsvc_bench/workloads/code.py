"""Workload of Python code: functions, classes, scripts, tests, fixes, diffs.

A theme's file (tasks/code/THEME.toml) has ``tasks``, each the end of a request or, if the theme has an
``instruction``, the code for it; ``intro`` precedes a task, ``kind`` is the kind of answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from suffixsvc_bench.workloads.task import Task, make_task, message, read_themes

_ROLE: Final = "You are a careful Python programmer. You write Python 3.11 and use the standard library only."
_INTRO: Final = "Write"
_WRITE: Final = (
    "Use type hints and a short docstring for every function. "
    "Answer with one ```python block and nothing else."
)
MAX_TOKENS: Final = 480


def tasks() -> list[Task]:
    """All tasks of the workload, theme by theme."""
    return [task for name, theme in read_themes("code").items() for task in _of_theme(name, theme)]


def _of_theme(name: str, theme: dict[str, Any]) -> Iterator[Task]:
    kind, held_out = theme.get("kind", "code-write"), theme.get("held_out", False)
    for text in theme["tasks"]:
        if "instruction" in theme:
            question = f"{theme['instruction']}\n\n{text.strip()}"
        else:
            question = f"{theme.get('intro', _INTRO)} {text}.\n{_WRITE}"
        messages = [message("system", _ROLE), message("user", question)]
        yield make_task("code", name, kind, messages, MAX_TOKENS, held_out_theme=held_out)
