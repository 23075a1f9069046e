"""The pipeline on scripted answers: prompts, reading what agents write, the real database."""

from __future__ import annotations

import io
import json
import os
import signal
import sqlite3
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from rich.console import Console

from suffixsvc.errors import ServiceUnavailableError
from suffixsvc.runtime.stop_signals import stop_on_signals
from suffixsvc_bench.demo import agents, database, show
from suffixsvc_bench.demo.database import MAX_ROWS, QueryResult, execute
from suffixsvc_bench.demo.pipeline import Call, answer_question
from suffixsvc_bench.demo.questions import (
    AFTER_RESTART,
    FIRST_MATCH,
    FIRST_PASS,
    SECOND_PASS,
    THIRD_PASS,
    Question,
)

QUESTION = Question("p1-q1", "Which 5 customers placed the most orders?")
GOOD_SQL = (
    "SELECT c.name, COUNT(*) AS orders FROM customers c JOIN orders o ON o.customer_id = c.id\n"
    "GROUP BY c.id ORDER BY orders DESC LIMIT 5;"
)
PLAN = '{"goal": "top customers", "tables": ["customers", "orders"]}'
REPORT = 'Here it is: {"question": "?", "status": "ok", "rows": []} I hope that helps.'
PYTHON = "```python\ndef answer(db):\n    return db.execute('SELECT 1').fetchall()\n```"


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop") / "shop.sqlite"
    database.create(path)
    return path


class Script:
    """Answers by agent; a list is used up call by call."""

    def __init__(self, **answers: str | list[str]) -> None:
        self.answers = {name.replace("_", "-"): text for name, text in answers.items()}
        self.calls: list[Call] = []

    def __call__(self, call: Call) -> str:
        self.calls.append(call)
        answer = self.answers[call.agent.name]
        return answer.pop(0) if isinstance(answer, list) else answer


def test_a_question_goes_through_all_agents(shop: Path) -> None:
    script = Script(
        planner=PLAN, sql_writer=f"```sql\n{GOOD_SQL}\n```", reporter=REPORT, python_writer=PYTHON
    )

    outcome = answer_question(QUESTION, script, shop)

    assert [call.agent.name for call in script.calls] == [
        "planner",
        "sql-writer",
        "reporter",
        "python-writer",
    ]
    assert [call.turn for call in script.calls] == [0, 1, 2, 3]
    assert outcome.plan == {"goal": "top customers", "tables": ["customers", "orders"]}
    assert outcome.result.ok
    assert outcome.result.total_rows == 5
    assert not outcome.repaired
    assert outcome.report is not None
    assert outcome.report["status"] == "ok"
    assert outcome.python is not None
    assert "def answer" in outcome.python


def test_each_agent_sees_what_the_one_before_it_made(shop: Path) -> None:
    script = Script(planner=PLAN, sql_writer=GOOD_SQL, reporter=REPORT, python_writer=PYTHON)
    answer_question(QUESTION, script, shop)
    planner, sql, report, python = (call.messages[-1]["content"] for call in script.calls)
    assert QUESTION.text in planner
    assert PLAN in sql
    with closing(sqlite3.connect(shop)) as db:
        best = db.execute(GOOD_SQL).fetchone()[0]
    assert best in report
    assert "GROUP BY c.id" in python
    for call in script.calls:
        assert call.messages[0] == {"role": "system", "content": call.agent.system}


def test_a_failing_statement_goes_back_to_its_writer_once(shop: Path) -> None:
    script = Script(
        planner=PLAN,
        sql_writer=["SELECT nme FROM customers", GOOD_SQL],
        reporter=REPORT,
        python_writer=PYTHON,
    )
    outcome = answer_question(QUESTION, script, shop)
    repair = script.calls[2]
    assert repair.agent is agents.SQL_WRITER
    assert "no such column: nme" in repair.messages[-1]["content"]
    turns = ["user", "assistant"] * (len(agents.SQL_WRITER.examples) + 1)
    assert [m["role"] for m in repair.messages] == ["system", *turns, "user"]
    assert outcome.repaired
    assert outcome.result.ok


def test_the_worked_examples_are_right(shop: Path) -> None:
    """A model copies its examples, mistakes included."""
    for _, plan in agents.PLANNER.examples:
        assert agents.extract_json(plan) == json.loads(plan)
    for _, answer in agents.SQL_WRITER.examples:
        assert execute(shop, agents.extract_sql(answer)).rows
    for _, report in agents.REPORTER.examples:
        assert agents.extract_json(report) == json.loads(report)
    for _, code in agents.PYTHON_WRITER.examples:
        assert agents.extract_python(code) is not None
    everything = (*FIRST_PASS, *SECOND_PASS, *THIRD_PASS, AFTER_RESTART, FIRST_MATCH)
    questions = {question.text for question in everything}
    for agent in agents.AGENTS:
        assert not any(text in user_text for text in questions for user_text, _ in agent.examples)


def test_invalid_answers_do_not_stop_the_pipeline(shop: Path) -> None:
    script = Script(planner="hmm", sql_writer="I cannot", reporter="{broken", python_writer="def (:")
    outcome = answer_question(QUESTION, script, shop)
    assert len(script.calls) == 5  # one repair
    assert outcome.plan is outcome.report is outcome.python is None
    assert not outcome.result.ok
    assert "failed" in script.calls[3].messages[-1]["content"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("```sql\nSELECT 1;\n```", "SELECT 1"),
        ("```\nselect 1\n```", "select 1"),
        ("```sql\nSELECT 1", "SELECT 1"),  # cut off by the token limit
        ("Sure! SELECT a FROM b; and more", "SELECT a FROM b"),
        ("WITH t AS (SELECT 1) SELECT * FROM t", "WITH t AS (SELECT 1) SELECT * FROM t"),
        ("SELECT 1; DROP TABLE customers", "SELECT 1"),
        ("no statement here", ""),
        ("", ""),
    ],
)
def test_sql_is_found_wherever_it_stands(text: str, expected: str) -> None:
    assert agents.extract_sql(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1}', {"a": 1}),
        ('```json\n{"a": {"b": []}}\n```', {"a": {"b": []}}),
        ('not { this but {"a": 1} that', {"a": 1}),
        ("{broken", None),
        ("[1, 2]", None),
        ("", None),
    ],
)
def test_json_is_found_wherever_it_stands(text: str, expected: object) -> None:
    assert agents.extract_json(text) == expected


@pytest.mark.parametrize("text", ["```python\ndef f(:\n```", "def f(:", "", "```python\n```"])
def test_invalid_python_is_none(text: str) -> None:
    assert agents.extract_python(text) is None


def test_the_shop_is_the_same_every_time(tmp_path: Path, shop: Path) -> None:
    other = tmp_path / "again.sqlite"
    database.create(other)
    with closing(sqlite3.connect(shop)) as a, closing(sqlite3.connect(other)) as b:
        assert list(a.iterdump()) == list(b.iterdump())


@pytest.mark.parametrize(
    "sql",
    [
        "DROP TABLE customers",
        "DELETE FROM orders",
        "UPDATE products SET price = 0",
        "ATTACH DATABASE 'other.sqlite' AS other",
        "PRAGMA journal_mode = wal",
        "CREATE TABLE t (a)",
        "SELECT load_extension('x')",
    ],
)
def test_the_executor_only_reads(shop: Path, sql: str) -> None:
    before = shop.read_bytes()
    assert not execute(shop, sql).ok
    assert shop.read_bytes() == before


def test_the_executor_reports_errors_instead_of_raising(shop: Path) -> None:
    assert execute(shop, "") == QueryResult(error="no SQL statement found in the answer")
    assert "syntax error" in execute(shop, "SELEC 1").error
    assert execute(shop, "SELECT 1; SELECT 2").error


def test_the_executor_keeps_few_rows_and_counts_all(shop: Path) -> None:
    result = execute(shop, "SELECT id, price FROM products")
    assert len(result.rows) == MAX_ROWS
    assert result.total_rows == 20
    assert result.columns == ("id", "price")


def test_any_value_of_a_row_fits_into_the_reporter_s_prompt(shop: Path) -> None:
    result = execute(shop, "SELECT zeroblob(3) AS a, NULL AS b, 1e999 AS c, zeroblob(100000) AS d")
    assert result.ok
    prompt = agents.report_prompt("What is in there?", result)[-1]["content"]
    assert r"\x00" in prompt
    assert len(prompt) < 20 * database.MAX_CELL


@pytest.mark.parametrize("name", ["[/b]", "[bold]", "[link=x]"])
def test_what_a_model_wrote_is_printed_as_it_is(name: str, shop: Path) -> None:
    sql = f'SELECT c."{name}" FROM customers c'
    script = Script(planner=PLAN, sql_writer=sql, reporter=REPORT, python_writer=PYTHON)
    question = Question("p1-q1", f"What is {name}?")
    outcome = answer_question(question, script, shop)
    said = io.StringIO()
    console = Console(file=said, width=200)
    show.print_outcome(console, outcome, [])
    show.heading(console, name)
    assert question.text in said.getvalue()
    assert f"no such column: c.{name}"[:40] in said.getvalue()
    assert said.getvalue().count(name) == 3


def test_a_runaway_query_is_stopped(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "MAX_SECONDS", 0.05)
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    assert execute(shop, endless).error == "interrupted"


def test_all_passes_ask_different_questions_of_the_same_number() -> None:
    everything = (*FIRST_PASS, *SECOND_PASS, *THIRD_PASS, AFTER_RESTART, FIRST_MATCH)
    assert len(FIRST_PASS) == len(SECOND_PASS) == len(THIRD_PASS) == 6
    assert len({q.text for q in everything}) == len({q.key for q in everything}) == len(everything)


def lose_a_signal() -> None:
    """As in a callback of a C library: what is raised in there goes nowhere."""
    with suppress(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)


def test_a_signal_whose_exception_was_lost_still_stops() -> None:
    def work() -> None:
        with stop_on_signals() as signals:
            signals.check()
            lose_a_signal()
            with pytest.raises(KeyboardInterrupt):
                signals.check()

    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt):
        work()
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_error_after_a_signal_is_an_interrupt() -> None:
    """Children hear the signal, too: that one of them is gone may be raised instead of ours."""

    def work(signalled: bool) -> None:
        with stop_on_signals():
            if signalled:
                lose_a_signal()
            raise ServiceUnavailableError("the service is gone")

    with pytest.raises(KeyboardInterrupt) as caught:
        work(signalled=True)
    assert isinstance(caught.value.__cause__, ServiceUnavailableError)
    with pytest.raises(ServiceUnavailableError):
        work(signalled=False)


def test_an_ignored_signal_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_on_signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            signals.check()
    finally:
        signal.signal(signal.SIGHUP, before)
