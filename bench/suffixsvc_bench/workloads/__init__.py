"""Tasks whose recorded answers the ready-made caches are built from, and held-out ones to judge them.

task.py         a task and its split
sql.py          questions about databases; tasks/sql/ has a TOML file a schema
structured.py   tool calls, extraction, plans and reports as JSON; tasks/json/ has a TOML file a theme
code.py         Python code; tasks/code/ has a TOML file a theme
files.py        reads them

Nothing here is drawn at random: the same tasks, in the same order, every time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench.workloads import code, sql, structured
from suffixsvc_bench.workloads.task import Split, Task, in_order

__all__ = ["WORKLOADS", "Split", "Task", "load_workload"]

WORKLOADS: Final[dict[str, Callable[[], list[Task]]]] = {
    "sql": sql.tasks,
    "json": structured.tasks,
    "code": code.tasks,
}


def load_workload(name: str) -> list[Task]:
    """The tasks of a workload, in the order in which they are recorded.

    Raises:
        InvalidInputError: no such workload.
    """
    if name not in WORKLOADS:
        raise InvalidInputError("no such workload", expected=" or ".join(WORKLOADS), got=repr(name))
    return in_order(WORKLOADS[name]())
