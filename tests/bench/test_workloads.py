"""The tasks whose answers are recorded."""

from __future__ import annotations

import ast
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from suffixsvc.errors import InvalidInputError
from suffixsvc_bench import workloads
from suffixsvc_bench.workloads import WORKLOADS, Split, Task, load_workload
from suffixsvc_bench.workloads.task import make_task, read_themes

#: at least so many tasks, and kinds of answers
SIZES = {"sql": (800, 4), "json": (400, 6), "code": (200, 4)}


def question(task: Task) -> str:
    return "\n".join(message["content"] for message in task.messages)


@pytest.mark.parametrize("name", WORKLOADS)
def test_tasks_are_distinct(name: str) -> None:
    tasks = load_workload(name)
    least, kinds = SIZES[name]
    assert len(tasks) >= least
    assert len({task.kind for task in tasks}) >= kinds
    assert len({task.id for task in tasks}) == len(tasks)
    assert len({question(task) for task in tasks}) == len(tasks)
    assert {task.workload for task in tasks} == {name}
    assert all(task.messages[-1]["role"] == "user" and 0 < task.max_tokens <= 512 for task in tasks)


@pytest.mark.parametrize("name", WORKLOADS)
def test_held_out_tasks_are_not_in_training(name: str) -> None:
    tasks = load_workload(name)
    held_out = [task for task in tasks if task.split is Split.HELD_OUT]
    training = [task for task in tasks if task.split is Split.TRAIN]
    assert 0.1 < len(held_out) / len(tasks) < 0.2
    assert not {question(task) for task in held_out} & {question(task) for task in training}
    # themes it never saw, and other questions on those it did
    unseen = {task.theme for task in held_out} - {task.theme for task in training}
    assert unseen
    assert {task.theme for task in held_out} - unseen


@pytest.mark.parametrize("name", WORKLOADS)
def test_any_prefix_is_a_fair_sample(name: str) -> None:
    tasks = load_workload(name)
    beginning = tasks[: len(tasks) // 4]
    themes = Counter(task.theme for task in beginning)
    assert set(themes) == {task.theme for task in tasks}
    assert {task.split for task in beginning} == set(Split)


def test_another_process_gets_the_same_tasks() -> None:
    program = (
        "from suffixsvc_bench.workloads import WORKLOADS, load_workload\n"
        "for name in WORKLOADS:\n"
        "    for task in load_workload(name): print(task.id, task.split, task.kind)"
    )
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    here = [f"{t.id} {t.split} {t.kind}" for name in WORKLOADS for t in load_workload(name)]
    assert other.stdout.splitlines() == here


def test_a_task_keeps_its_id_and_split_whatever_is_added() -> None:
    messages = [{"role": "user", "content": "Which customers ordered twice?"}]
    task = make_task("sql", "shop", "sql-only", messages, 100)
    # pinned: recorded answers are found again by it
    assert (task.id, task.split) == ("sql-shop-cb47f0bd", Split.TRAIN)
    assert make_task("sql", "shop", "sql-only", messages, 100, held_out_theme=True).split is Split.HELD_OUT


def test_no_blank_was_left_unfilled() -> None:
    for name in ("sql", "json"):
        for task in load_workload(name):
            assert not re.search(r"\{\w+\}", task.messages[-1]["content"]), task.id


def test_the_schemas_are_sql_and_the_broken_statements_fail() -> None:
    schemas = read_themes("sql")
    assert len(schemas) >= 10
    for name, schema in schemas.items():
        db = sqlite3.connect(":memory:")
        db.executescript(schema["ddl"])
        for repair in schema["repair"]:
            with pytest.raises(sqlite3.OperationalError) as error:
                db.execute(repair["sql"])
            if schema.get("dialect", "SQLite") == "SQLite":
                assert str(error.value) == repair["error"], name
        db.close()


def test_code_in_questions_is_python() -> None:
    for code in read_themes("code")["tests"]["tasks"]:
        ast.parse(code)


def test_task_files_stay_small() -> None:
    files = list(Path(workloads.__file__).parent.rglob("*.toml"))
    assert files
    assert all(len(file.read_text(encoding="utf-8").splitlines()) < 400 for file in files)


def test_an_unknown_workload_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="sql or json or code"):
        load_workload("prose")
