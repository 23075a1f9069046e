"""Pipeline of one question: planner -> SQL writer -> executor -> reporter -> Python writer.

The pipeline is independent of the model: ``generate`` maps a call to its text, so tests can script it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from suffixsvc_bench.demo import agents
from suffixsvc_bench.demo.agents import Agent, Messages
from suffixsvc_bench.demo.database import QueryResult, execute
from suffixsvc_bench.demo.questions import Question


@dataclass(frozen=True, slots=True)
class Call:
    """One call of the model. ``turn`` counts the calls of a question, from 0."""

    agent: Agent
    question: Question
    turn: int
    messages: Messages

    @property
    def name(self) -> str:
        """Unique name of the call."""
        return f"{self.question.key}/{self.agent.name}" + (f"#{self.turn}" if self.turn else "")


@dataclass(slots=True)
class Outcome:
    """Results of the agents on one question.

    Attributes:
        plan: the planner's JSON; None if it wrote none.
        sql: the statement that was executed last.
        result: SQLite's result of it.
        repaired: the first statement failed, and the SQL writer was called again.
        report: the reporter's JSON; None if it wrote none.
        python: the code; None if it is not valid Python.
    """

    question: Question
    plan: dict[str, Any] | None = None
    sql: str = ""
    result: QueryResult = field(default_factory=QueryResult)
    repaired: bool = False
    report: dict[str, Any] | None = None
    python: str | None = None


def answer_question(question: Question, generate: Callable[[Call], str], database: Path) -> Outcome:
    """Run one question through all agents. A failing agent does not stop the following ones."""
    outcome, turn = Outcome(question), 0

    def ask(agent: Agent, messages: Messages) -> str:
        nonlocal turn
        text = generate(Call(agent, question, turn, messages))
        turn += 1
        return text

    plan = ask(agents.PLANNER, agents.plan_prompt(question.text)).strip()
    outcome.plan = agents.extract_json(plan)

    written = ask(agents.SQL_WRITER, agents.sql_prompt(question.text, plan))
    outcome.sql = agents.extract_sql(written)
    outcome.result = execute(database, outcome.sql)
    if not outcome.result.ok:
        outcome.repaired = True
        messages = agents.repair_prompt(question.text, plan, written, outcome.result.error)
        outcome.sql = agents.extract_sql(ask(agents.SQL_WRITER, messages))
        outcome.result = execute(database, outcome.sql)

    outcome.report = agents.extract_json(
        ask(agents.REPORTER, agents.report_prompt(question.text, outcome.result))
    )
    outcome.python = agents.extract_python(
        ask(agents.PYTHON_WRITER, agents.python_prompt(question.text, outcome.sql))
    )
    return outcome
