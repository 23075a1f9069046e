"""The four agents: what each is told, and how what it answers is read.

Every agent has a fixed system message (role, schema, format, one worked example), so that its beginning
stays in the model's KV cache between calls, and a short user message that changes.
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
    """An agent: its name (a label of its outputs), system message and the most tokens it may write."""

    name: str
    system: str
    max_tokens: int


_EXAMPLE_SQL: Final = (
    "SELECT c.name, c.city FROM customers c JOIN orders o ON o.customer_id = c.id\n"
    "WHERE o.status = 'shipped' ORDER BY c.name LIMIT 5;"
)

PLANNER: Final = Agent(
    "planner",
    f"""You plan SQL queries for a SQLite shop database:
{SCHEMA}
Answer with one JSON object and nothing else, in this form:
{{"goal": "names of customers with shipped orders", "tables": ["customers", "orders"], \
"join": "o.customer_id = c.id", "filter": "o.status = 'shipped'", "group_by": null, "order_by": "c.name", \
"limit": 5}}""",
    100,
)

SQL_WRITER: Final = Agent(
    "sql-writer",
    f"""You write SQLite queries for a shop database:
{SCHEMA}
The revenue of an item is products.price * order_items.quantity.
Answer with one SQL statement in a code block and nothing else, in this form:
```sql
{_EXAMPLE_SQL}
```""",
    120,
)

REPORTER: Final = Agent(
    "reporter",
    """You report query results as JSON. Answer with one JSON object and nothing else, in this form:
{"question": "Which customers have shipped orders?", "status": "ok", "rows": \
[{"name": "Zoe Adler", "city": "Vienna"}], "summary": "1 customer has shipped orders."}""",
    140,
)

PYTHON_WRITER: Final = Agent(
    "python-writer",
    f"""You write one Python function that answers a question with sqlite3. Answer with one code block:
```python
def answer(db: sqlite3.Connection) -> list[tuple]:
    \"\"\"Which customers have shipped orders?\"\"\"
    query = \"\"\"
{_EXAMPLE_SQL}
    \"\"\"
    return db.execute(query).fetchall()
```""",
    150,
)

AGENTS: Final = (PLANNER, SQL_WRITER, REPORTER, PYTHON_WRITER)


def _messages(agent: Agent, user: str) -> Messages:
    return [{"role": "system", "content": agent.system}, {"role": "user", "content": user}]


def plan_prompt(question: str) -> Messages:
    return _messages(PLANNER, f"Question: {question}")


def sql_prompt(question: str, plan: str) -> Messages:
    return _messages(SQL_WRITER, f"Question: {question}\nPlan: {plan}")


def repair_prompt(question: str, plan: str, answer: str, error: str) -> Messages:
    """The executor's error goes back to the SQL writer as the next turn of the same conversation."""
    return [
        *sql_prompt(question, plan),
        {"role": "assistant", "content": answer},
        {"role": "user", "content": f"SQLite says: {error}. Write the corrected statement."},
    ]


def report_prompt(question: str, result: QueryResult) -> Messages:
    if not result.ok:
        found = json.dumps({"status": "failed", "error": result.error})
    else:
        rows = [dict(zip(result.columns, row, strict=True)) for row in result.rows]
        # a statement may well return a BLOB
        found = json.dumps({"status": "ok", "rows": rows}, default=str)
    return _messages(REPORTER, f"Question: {question}\nResult: {found}")


def python_prompt(question: str, sql: str) -> Messages:
    return _messages(PYTHON_WRITER, f"Question: {question}\nStatement:\n{sql}")


def extract_json(text: str) -> dict[str, Any] | None:
    """The first JSON object in ``text``, wherever it stands; None when there is none."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text):
        try:
            value, _ = decoder.raw_decode(text, match.start())
        except ValueError:
            continue
        return value if isinstance(value, dict) else None
    return None


def extract_sql(text: str) -> str:
    """The first statement: out of a code block if there is one, else from SELECT or WITH on."""
    block = _code_block(text, "sql|sqlite")
    match = re.search(r"\b(?:SELECT|WITH)\b", block, re.IGNORECASE)
    if match is None:
        return ""
    statement = block[match.start() :].partition("```")[0]
    return statement.partition(";")[0].strip()


def extract_python(text: str) -> str | None:
    """The code, if it is valid Python (it is parsed, never executed)."""
    code = _code_block(text, "python|py")
    try:
        ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    return code if code.strip() else None


def _code_block(text: str, languages: str) -> str:
    match = re.search(rf"```(?:{languages})?[ \t]*\n(.*?)(?:```|\Z)", text, re.DOTALL | re.IGNORECASE)
    return match.group(1) if match else text
