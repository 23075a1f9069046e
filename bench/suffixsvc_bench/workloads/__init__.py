"""Tasks whose recorded answers are the source of the shipped caches, and held-out tasks to evaluate them.

task.py         a task and its split; reader of the files
sql.py          questions about databases; one TOML file per schema in tasks/sql/
structured.py   tool calls, extraction, plans and reports as JSON; one TOML file per theme in tasks/json/
code.py         Python code; one TOML file per theme in tasks/code/

Nothing is random: the same tasks, in the same order, every time.
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
    """The tasks of a workload, in the order of recording.

    Raises:
        InvalidInputError: the workload is unknown.
    """
    if name not in WORKLOADS:
        raise InvalidInputError("workload must be known", expected=" or ".join(WORKLOADS), got=repr(name))
    return in_order(WORKLOADS[name]())
