"""The rows of docs/reliability.md: ``make reliability``, not in ``make test``.

Each row is a test file. A short form of all rows takes less than ten minutes; RELIABILITY_FULL=1 runs the
long one. A test reports figures with the fixture ``figure``; a table of them is printed at the end and
written to RELIABILITY_OUT (default: build/reliability) as JSON, with machine and commit.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from support.long_form import FULL

_ROOT = Path(__file__).parents[2]
_OUT = Path(os.environ.get("RELIABILITY_OUT") or _ROOT / "build" / "reliability")
_STARTED = time.monotonic()


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    row: str
    what: str
    value: str
    must: str


_FIGURES: list[Figure] = []
_OUTCOMES: dict[str, str] = {}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect this folder only for ``pytest -m reliability``."""
    return True if "reliability" not in (config.getoption("markexpr") or "") else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.reliability)


@pytest.fixture(scope="session")
def full() -> bool:
    """Whether the long form runs."""
    return FULL


@pytest.fixture(scope="session")
def out() -> Path:
    """Folder of the table, for samples and charts beside it."""
    _OUT.mkdir(parents=True, exist_ok=True)
    return _OUT


@pytest.fixture
def figure(request: pytest.FixtureRequest) -> Callable[[str, object, str], None]:
    """``figure(what, value, must="")`` adds a line of the table to the row of this test's file.

    ``must`` is the condition in words. The test asserts it: a figure by itself fails nothing.
    """
    row = request.path.stem.removeprefix("test_").replace("_", " ")

    def add(what: str, value: object, must: str = "") -> None:
        _FIGURES.append(Figure(row, what, str(value), must))

    return add


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.when == "call" or report.outcome != "passed":
        _OUTCOMES[report.nodeid] = report.outcome


def _machine() -> dict[str, object]:
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=_ROOT, capture_output=True, text=True, check=False
    )
    return {
        "form": "full" if FULL else "short",
        "commit": commit.stdout.strip(),
        "machine": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "seconds": round(time.monotonic() - _STARTED),
    }


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if not _OUTCOMES:
        return
    terminalreporter.section(f"reliability, {'full' if FULL else 'short'} form")
    line = "{:16}{:58}{:>20}  {}".format
    terminalreporter.write_line(line("row", "figure", "found", "must"))
    for found in _FIGURES:
        terminalreporter.write_line(line(found.row, found.what, found.value, found.must))
    _OUT.mkdir(parents=True, exist_ok=True)
    path = _OUT / f"{'full' if FULL else 'short'}.json"
    content = _machine() | {"figures": [asdict(found) for found in _FIGURES], "tests": _OUTCOMES}
    path.write_text(json.dumps(content, indent=1) + "\n")
    terminalreporter.write_line(f"written to {path}")
