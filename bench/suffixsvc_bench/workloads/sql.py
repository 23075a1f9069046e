"""Workload of text to SQL over several schemas.

A schema's file (tasks/sql/SCHEMA.toml) has its CREATE TABLE statements (``ddl``), hand-written questions, and
facts: what is counted (``things``), ``measures``, ``groups``, ``entities`` that own the rows, ``filters``.
Templates (sql.toml) generate more questions from the facts. ``repair`` has failed statements with the
database's error message.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import xxhash

from suffixsvc_bench.workloads.task import SEED, Task, make_task, message, read_themes

_TEXTS: Final = tomllib.loads(Path(__file__).with_name("sql.toml").read_text(encoding="utf-8"))
_STYLES: Final = _TEXTS["styles"]
#: kinds of answers, each as often as its share in tenths
_SHARES: Final = [name for name, style in _STYLES.items() for _ in range(style["tenths"])]
MAX_TOKENS: Final = 320


def tasks() -> list[Task]:
    """All tasks of the workload, schema by schema."""
    return [task for name, schema in read_themes("sql").items() for task in _of_schema(name, schema)]


def _of_schema(name: str, schema: dict[str, Any]) -> Iterator[Task]:
    held_out = schema.get("held_out", False)
    role = _TEXTS["role"].format(dialect=schema.get("dialect", "SQLite"), ddl=schema["ddl"].strip())
    questions = [*schema["questions"], *_from_templates(schema["fact"])]
    for question in dict.fromkeys(questions):
        style = _SHARES[xxhash.xxh3_64_intdigest((name + question).encode(), SEED) % len(_SHARES)]
        messages = [message("system", role), message("user", f"{question}\n{_STYLES[style]['instruction']}")]
        yield make_task("sql", name, style, messages, MAX_TOKENS, held_out_theme=held_out)
    for repair in schema["repair"]:
        messages = [
            message("system", role),
            message("user", repair["question"]),
            message("assistant", f"```sql\n{repair['sql']}\n```"),
            message("user", f"Error: {repair['error']}\n{_TEXTS['repair']}"),
        ]
        yield make_task("sql", name, "sql-repair", messages, MAX_TOKENS, held_out_theme=held_out)


def _from_templates(facts: Sequence[dict[str, Any]]) -> Iterator[str]:
    templates = {name: list(enumerate(texts)) for name, texts in _TEXTS["templates"].items()}
    for fact in facts:
        for m, measure in enumerate(fact["measures"]):
            for t, template in templates["by_group"]:
                yield _filled(template, fact, m + t, t, measure=measure)
            for t, template in templates["by_time"]:
                yield _filled(template, fact, m + t, m + t, measure=measure)
        for group in fact["groups"]:
            for _, template in templates["counts"]:
                yield _filled(template, fact, group=group)
        for f, condition in enumerate(fact["filters"]):
            for t, template in templates["filtered"]:
                yield _filled(template, fact, f + t, filter=condition)
        for entity in fact["entities"]:
            for _, template in templates["of_entity"]:
                yield _filled(template, fact, entity=entity)


def _filled(template: str, fact: dict[str, Any], number: int = 0, year: int = 0, **values: str) -> str:
    # not everything with every group: pairs of neighbours in the lists
    values = {"things": fact["things"], "group": fact["groups"][number % len(fact["groups"])], **values}
    return template.format(n=(3, 5, 10, 20, 7)[number % 5], year=2021 + year % 4, **values)
