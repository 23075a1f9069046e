"""The four agents: their prompts (prompts.toml), and parsers of their answers.

Every agent has a fixed prefix (role, schema, worked examples as earlier turns), which stays in the model's KV
cache between calls, and a short user message that changes.
"""

from __future__ import annotations

import ast
import json
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc_bench.demo.database import SCHEMA, QueryResult

#: [{"role": "system" | "user" | "assistant", "content": text}, ...]
Messages = list[dict[str, str]]


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent.

    Attributes:
        name: label of its outputs.
        system: system message.
        given: format of a user message.
        examples: earlier turns in the prompt: (user message, assistant message).
        max_tokens: limit of an answer.
    """

    name: str
    system: str
    given: str
    examples: tuple[tuple[str, str], ...]
    max_tokens: int

    def messages(self, **values: str) -> Messages:
        """The conversation up to a user message with these values."""
        turns: Messages = [{"role": "system", "content": self.system}]
        for user, answer in self.examples:
            turns += [{"role": "user", "content": user}, {"role": "assistant", "content": answer}]
        return [*turns, {"role": "user", "content": self.given.format(**values)}]


def _agent(name: str) -> Agent:
    entry, examples = PROMPTS["agents"][name], PROMPTS["examples"]
    given, answer = entry["given"], entry["answer"]
    turns = tuple((given.format(**example), answer.format(**example)) for example in examples)
    return Agent(name, entry["system"].replace("@SCHEMA@", SCHEMA), given, turns, entry["max_tokens"])


#: prompts.toml: agents, their examples, and questions
PROMPTS: Final = tomllib.loads(Path(__file__).with_name("prompts.toml").read_text(encoding="utf-8"))
AGENTS: Final = tuple(map(_agent, PROMPTS["agents"]))
PLANNER, SQL_WRITER, REPORTER, PYTHON_WRITER = AGENTS


def plan_prompt(question: str) -> Messages:
    """Messages for the planner."""
    return PLANNER.messages(question=question)


def sql_prompt(question: str, plan: str) -> Messages:
    """Messages for the SQL writer."""
    return SQL_WRITER.messages(question=question, plan=plan)


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
    return REPORTER.messages(question=question, result=found)


def python_prompt(question: str, sql: str) -> Messages:
    """Messages for the Python writer."""
    return PYTHON_WRITER.messages(question=question, sql=sql)


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
