"""Workload of text to SQL over several schemas.

A schema's file (tasks/sql/SCHEMA.toml) has its CREATE TABLE statements (``ddl``), hand-written questions, and
facts: what is counted (``things``), ``measures``, ``groups``, ``entities`` that own the rows, ``filters``.
Templates generate more questions from the facts. ``repair`` has failed statements with the database's error
message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import xxhash

from suffixsvc_bench.workloads.files import read_themes
from suffixsvc_bench.workloads.task import SEED, Task, make_task

__all__ = ["tasks"]

_ROLE: Final = "You write {dialect} queries for this database:\n{ddl}"

#: kind of answer -> instruction after the question
_STYLES: Final = {
    "sql-only": "Write the query, one clause a line. Answer with the SQL only.",
    "sql-explained": (
        "Write the query in a ```sql block, one clause a line, "
        "then explain in one or two sentences how it works."
    ),
    "sql-steps": (
        "Write the query in a ```sql block: a CTE for each step, and a short -- comment above each. "
        "No text besides."
    ),
}
#: frequency of each kind, in tenths
_SHARES: Final = ("sql-only",) * 3 + ("sql-explained",) * 5 + ("sql-steps",) * 2

_REPAIR: Final = "Name the mistake in one sentence, then write the corrected query in a ```sql block."
MAX_TOKENS: Final = 320

#: questions about a measure and a group
_BY_GROUP: Final = (
    "What is the {measure} per {group}?",
    "Show the {measure} per {group} in {year}, highest first.",
    "Give the top {n} by {measure}, one row per {group}.",
    "Rank every {group} by {measure} with a window function.",
    "Show the {measure} per {group}, but only where there are more than {n} {things}.",
    "Which {group} has a {measure} above the average over all of them? Use a subquery.",
)
#: about a measure over time
_BY_TIME: Final = (
    "Show the {measure} per month in {year}.",
    "Compare the {measure} of every month with that of the month before, using a CTE and LAG.",
    "Show the {measure} per month with a running total.",
    "What is the {measure} per quarter and per {group} in {year}?",
)
#: about things and a group
_COUNTS: Final = (
    "How many {things} are there per {group}?",
    "What percentage of all {things} falls to each {group}?",
)
#: about filtered things
_FILTERED: Final = (
    "How many {things} {filter} are there?",
    "Count the {things} {filter}, per {group}, most first.",
    "List the {n} most recent {things} {filter}.",
)
#: about the rows of an entity
_OF_ENTITY: Final = (
    "List every {entity} without any {things}.",
    "For each {entity}, return the most recent of its {things}, using ROW_NUMBER.",
    "Which {entity} has the most {things}?",
)


def tasks() -> list[Task]:
    """All tasks of the workload, schema by schema."""
    return [task for name, schema in read_themes("sql").items() for task in _of_schema(name, schema)]


def _of_schema(name: str, schema: dict[str, Any]) -> Iterator[Task]:
    held_out = schema.get("held_out", False)
    role = _ROLE.format(dialect=schema.get("dialect", "SQLite"), ddl=schema["ddl"].strip())
    questions = [*schema["questions"], *_from_templates(schema["fact"])]
    for question in dict.fromkeys(questions):
        style = _SHARES[xxhash.xxh3_64_intdigest((name + question).encode(), SEED) % len(_SHARES)]
        messages = [_message("system", role), _message("user", f"{question}\n{_STYLES[style]}")]
        yield make_task("sql", name, style, messages, MAX_TOKENS, held_out_theme=held_out)
    for repair in schema["repair"]:
        messages = [
            _message("system", role),
            _message("user", repair["question"]),
            _message("assistant", f"```sql\n{repair['sql']}\n```"),
            _message("user", f"Error: {repair['error']}\n{_REPAIR}"),
        ]
        yield make_task("sql", name, "sql-repair", messages, MAX_TOKENS, held_out_theme=held_out)


def _from_templates(facts: Sequence[dict[str, Any]]) -> Iterator[str]:
    for fact in facts:
        things, groups = fact["things"], fact["groups"]
        for m, measure in enumerate(fact["measures"]):
            for t, template in enumerate(_BY_GROUP):
                # not every measure with every group: pairs of neighbours in the lists
                group = groups[(m + t) % len(groups)]
                yield template.format(
                    measure=measure, group=group, things=things, n=_number(m + t), year=_year(t)
                )
            for t, template in enumerate(_BY_TIME):
                yield template.format(measure=measure, group=groups[(m + t) % len(groups)], year=_year(m + t))
        for group in groups:
            for template in _COUNTS:
                yield template.format(things=things, group=group)
        for f, condition in enumerate(fact["filters"]):
            for t, template in enumerate(_FILTERED):
                group = groups[(f + t) % len(groups)]
                yield template.format(things=things, filter=condition, group=group, n=_number(f + t))
        for entity in fact["entities"]:
            for template in _OF_ENTITY:
                yield template.format(things=things, entity=entity)


def _number(i: int) -> int:
    return (3, 5, 10, 20, 7)[i % 5]


def _year(i: int) -> int:
    return 2021 + i % 4


def _message(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}
