"""The four agents: their prompts, and parsers of their answers.

Every agent has a fixed prefix (role, schema, worked examples as earlier turns), which stays in the model's KV
cache between calls, and a short user message that changes.
"""

from __future__ import annotations

import ast
import json
import re
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc_bench.demo.database import SCHEMA, QueryResult

__all__ = [
    "AGENTS",
    "PLANNER",
    "PYTHON_WRITER",
    "REPORTER",
    "SQL_WRITER",
    "Agent",
    "Messages",
    "extract_json",
    "extract_python",
    "extract_sql",
    "plan_prompt",
    "python_prompt",
    "repair_prompt",
    "report_prompt",
    "sql_prompt",
]

#: [{"role": "system" | "user" | "assistant", "content": text}, ...]
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent.

    Attributes:
        name: label of its outputs.
        system: system message.
        examples: earlier turns in the prompt: (user message, assistant message).
        max_tokens: limit of an answer.
    """

    name: str
    system: str
    examples: tuple[tuple[str, str], ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class _Example:
    """One question with the correct answer of every agent."""

    question: str
    plan: str
    sql: str
    result: str
    report: str

    @property
    def python(self) -> str:
        return _PYTHON.format(question=self.question, sql=self.sql)


_PYTHON: Final = """\
```python
def answer(db: sqlite3.Connection) -> list[tuple]:
    \"\"\"{question}\"\"\"
    query = \"\"\"
{sql}
    \"\"\"
    return db.execute(query).fetchall()
```"""

_EXAMPLES: Final = (
    _Example(
        "Which 3 customers joined first?",
        '{"goal": "names of the 3 customers who joined first", "tables": ["customers"], "join": null, '
        '"filter": null, "group_by": null, "order_by": "joined_on ASC", "limit": 3}',
        "SELECT name, joined_on FROM customers\nORDER BY joined_on ASC LIMIT 3;",
        '{"status": "ok", "rows": [{"name": "Zoe Adler", "joined_on": "2020-01-04"}]}',
        '{"question": "Which 3 customers joined first?", "status": "ok", "rows": '
        '[{"name": "Zoe Adler", "joined_on": "2020-01-04"}], "summary": "Zoe Adler joined first."}',
    ),
    _Example(
        "How many orders were shipped in each country?",
        '{"goal": "number of shipped orders per country", "tables": ["customers", "orders"], "join": '
        '"o.customer_id = c.id", "filter": "o.status = \'shipped\'", "group_by": "c.country", '
        '"order_by": "2 DESC", "limit": null}',
        "SELECT c.country, COUNT(*) FROM customers c JOIN orders o ON o.customer_id = c.id\n"
        "WHERE o.status = 'shipped' GROUP BY c.country ORDER BY 2 DESC;",
        '{"status": "ok", "rows": [{"country": "Austria", "COUNT(*)": 7}, '
        '{"country": "Italy", "COUNT(*)": 2}]}',
        '{"question": "How many orders were shipped in each country?", "status": "ok", "rows": '
        '[{"country": "Austria", "COUNT(*)": 7}, {"country": "Italy", "COUNT(*)": 2}], '
        '"summary": "Austria has most, with 7."}',
    ),
    _Example(
        "Which product was ordered in the largest quantity?",
        '{"goal": "product with the largest quantity ordered", "tables": ["products", "order_items"], '
        '"join": "i.product_id = p.id", "filter": null, "group_by": "p.name", "order_by": "2 DESC", '
        '"limit": 1}',
        "SELECT p.name, SUM(i.quantity) FROM products p JOIN order_items i ON i.product_id = p.id\n"
        "GROUP BY p.name ORDER BY 2 DESC LIMIT 1;",
        '{"status": "ok", "rows": [{"name": "Tent", "SUM(i.quantity)": 31}]}',
        '{"question": "Which product was ordered in the largest quantity?", "status": "ok", "rows": '
        '[{"name": "Tent", "SUM(i.quantity)": 31}], "summary": "Tent was ordered most, 31 times."}',
    ),
)


def _question(text: str) -> str:
    return f"Question: {text}"


def _planned(question: str, plan: str) -> str:
    return f"Question: {question}\nPlan: {plan}"


def _found(question: str, result: str) -> str:
    return f"Question: {question}\nResult: {result}"


def _stated(question: str, sql: str) -> str:
    return f"Question: {question}\nStatement:\n{sql}"


PLANNER: Final = Agent(
    "planner",
    f"""You plan SQL queries for a SQLite shop database:
{SCHEMA}
Answer with one JSON object and nothing else.""",
    tuple((_question(e.question), e.plan) for e in _EXAMPLES),
    100,
)

SQL_WRITER: Final = Agent(
    "sql-writer",
    f"""You write SQLite queries for a shop database:
{SCHEMA}
The revenue of an item is products.price * order_items.quantity.
Answer with one SQL statement in a code block and nothing else.""",
    tuple((_planned(e.question, e.plan), f"```sql\n{e.sql}\n```") for e in _EXAMPLES),
    120,
)

REPORTER: Final = Agent(
    "reporter",
    "You report query results as JSON. Answer with one JSON object and nothing else.",
    tuple((_found(e.question, e.result), e.report) for e in _EXAMPLES),
    140,
)

PYTHON_WRITER: Final = Agent(
    "python-writer",
    "You write one Python function that answers a question with sqlite3. Answer with one code block.",
    tuple((_stated(e.question, e.sql), e.python) for e in _EXAMPLES),
    150,
)

AGENTS: Final = (PLANNER, SQL_WRITER, REPORTER, PYTHON_WRITER)


def _messages(agent: Agent, user: str) -> Messages:
    turns: Messages = [{"role": "system", "content": agent.system}]
    for user_text, answer in agent.examples:
        turns += [{"role": "user", "content": user_text}, {"role": "assistant", "content": answer}]
    return [*turns, {"role": "user", "content": user}]


def plan_prompt(question: str) -> Messages:
    """Messages for the planner."""
    return _messages(PLANNER, _question(question))


def sql_prompt(question: str, plan: str) -> Messages:
    """Messages for the SQL writer."""
    return _messages(SQL_WRITER, _planned(question, plan))


def repair_prompt(question: str, plan: str, answer: str, error: str) -> Messages:
    """Messages for the SQL writer with the executor's error as the next turn of the same conversation."""
    return [
        *sql_prompt(question, plan),
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"SQLite says: {error}. Write the corrected statement."},
    ]


def report_prompt(question: str, result: QueryResult) -> Messages:
    """Messages for the reporter."""
    if not result.ok:
        found = json.dumps({"status": "failed", "error": result.error})
    else:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        # default=str: a statement can return a BLOB
        found = json.dumps({"status": "ok", "rows": rows}, default=str)
    return _messages(REPORTER, _found(question, found))


def python_prompt(question: str, sql: str) -> Messages:
    """Messages for the Python writer."""
    return _messages(PYTHON_WRITER, _stated(question, sql))


def extract_json(text: str) -> dict[str, Any] | None:
    """The first JSON object in ``text``; None if there is none."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text):
        try:
            value, _ = decoder.raw_decode(text, match.start())
        except ValueError:
            continue
        return value if isinstance(value, dict) else None
    return None


def extract_sql(text: str) -> str:
    """The first statement, from a code block if there is one, else from SELECT or WITH on; "" if there is
    none.
    """
    block = _code_block(text, "sql|sqlite")
    match = re.search(r"\b(?:SELECT|WITH)\b", block, re.IGNORECASE)
    if match is None:
        return ""
    statement = block[match.start() :].partition("```")[0]
    return statement.partition(";")[0].strip()


def extract_python(text: str) -> str | None:
    """The code if it is valid Python (it is parsed, never executed); None otherwise."""
    code = _code_block(text, "python|py")
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    return code if code.strip() else None


def _code_block(text: str, languages: str) -> str:
    match = re.search(rf"```(?:{languages})?[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL | re.IGNORECASE)
    return match.group(1) if match else text
