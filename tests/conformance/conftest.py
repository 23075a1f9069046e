"""Conformance of ``suffixsvc openai`` with the suites of others: ``make conformance``, not in ``make test``.

The server is a process of its own, with a model that calls tools. A table is printed at the end: how many
tests of a suite pass by its own verdict, and how many must.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import suffixsvc_models as models
from support.conformance import MODEL, Endpoint
from support.openai_process import process_of

#: tests of each suite that must pass
MUST = {
    "llm-comply 0.5.0, chat": 7,  # of 8: a model of texts refuses images
    "llm-comply 0.5.0, responses": 11,  # of 12, for the same reason
    "compatcanary 0.2.2, modern": 7,
    "langchain-tests 1.1.9, ChatOpenAI": 43,
    "examples, the tool runs": 3,
}
#: suite -> verdicts of its tests
FOUND: dict[str, Counter[str]] = {suite: Counter() for suite in MUST}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect this folder only for ``pytest -m conformance``: an environment of its own has the packages."""
    return True if "conformance" not in (config.getoption("markexpr") or "") else None


@pytest.fixture(scope="session")
def endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Endpoint]:
    """The server of all suites."""
    folder = tmp_path_factory.mktemp("server")
    options = ("--data", str(folder / "data"), "--context", "8192", "--parallel", "2")
    threads = ("--threads", str(len(os.sched_getaffinity(0))))
    with process_of(models.path(MODEL), folder, *options, *threads) as (_, address):
        yield Endpoint(address, f"http://{address}/v1")


@pytest.fixture
def refused(record_property: Callable[[str, object], None]) -> Callable[[], None]:
    """Tell that the suite's own verdict is "failed", as the test asserts."""
    return lambda: record_property("verdict", "refused")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if mark := item.get_closest_marker("conformance"):
            item.user_properties.append(("suite", mark.args[0]))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    properties = dict(report.user_properties)
    if (report.when == "call" or report.outcome != "passed") and "suite" in properties:
        FOUND[str(properties["suite"])][str(properties.get("verdict", report.outcome))] += 1


def _short() -> list[str]:
    return [suite for suite, found in FOUND.items() if found and found["passed"] < MUST[suite]]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A suite that skips a test passes fewer than it must, and pytest is content."""
    if _short() and session.exitstatus == pytest.ExitCode.OK and not session.config.option.keyword:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any) -> None:
    terminalreporter.section("conformance")
    row = "{:36}{:>8}{:>5}{:>6}  {}".format
    terminalreporter.write_line(row("suite", "passed", "of", "must", ""))
    for suite, found in FOUND.items():
        ran = found.total() - found["skipped"]
        verdict = "not run" if not found else "too few" if suite in _short() else "ok"
        terminalreporter.write_line(row(suite, found["passed"], ran, MUST[suite], verdict))
