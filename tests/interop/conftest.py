"""Fixtures of the interoperability tests with llama.cpp's programs: ``make interop``, not in ``make test``.

What the tests find goes into a table, which is printed at the end and written into docs/interop.md when all
of them passed.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import __version__
from suffixsvc_caches.tokenizers.base import Tokenizer
from suffixsvc_caches.tokenizers.load import load_tokenizer
from support.llama_tools import ROOT, Note, Tools

PAGE = ROOT / "docs" / "interop.md"
_BEGIN, _END = "<!-- written by make interop: begin -->\n", "<!-- written by make interop: end -->\n"
MODEL = "smollm2-135m"
PROGRAMS = ("llama-lookup-create", "llama-lookup-merge", "llama-lookup-stats", "llama-lookup", "llama-server")

#: (program, what was compared, outcome), in the order of the tests
FOUND: list[tuple[str, str, str]] = []
VERSIONS: dict[str, str] = {}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Collect this folder only for ``pytest -m interop``."""
    return True if "interop" not in (config.getoption("markexpr") or "") else None


@pytest.fixture(scope="session")
def tools() -> Tools:
    import suffixsvc_models as models

    folder = os.environ.get("LLAMA_CPP_BIN")
    if not folder:
        pytest.fail("LLAMA_CPP_BIN is not set; run: make interop")
    found = Tools(Path(folder), models.path(MODEL))
    said = found.run("llama-server", "--version")
    version = re.search(r"version:\s*(.+)", said.stdout + said.stderr)
    stamp = found.folder / "VERSION"
    VERSIONS["llama.cpp"] = (version[1].strip() if version else "unknown") + (
        f", {stamp.read_text().strip()}" if stamp.is_file() else ""
    )
    VERSIONS["model"] = found.model.name
    VERSIONS["suffixsvc"] = __version__
    return found


@pytest.fixture(scope="session")
def tokenizer(tools: Tools) -> Tokenizer:
    return load_tokenizer(tools.model)


@pytest.fixture(scope="session")
def note() -> Note:
    return lambda program, what, outcome: FOUND.append((program, what, outcome))


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int) -> None:
    if not FOUND:
        return
    lines = ["| program | compared | outcome |", "|---|---|---|"]
    lines += [f"| {program} | {what} | {outcome} |" for program, what, outcome in FOUND]
    text = ", ".join(f"{name} {version}" for name, version in VERSIONS.items())
    terminalreporter.section("interop")
    terminalreporter.write_line(text)
    for line in lines:
        terminalreporter.write_line(line)
    programs = {program for program, _, _ in FOUND}
    if exitstatus != 0 or terminalreporter.stats.get("deselected") or programs != set(PROGRAMS):
        terminalreporter.write_line(f"{PAGE.name} is left as it is: not all tests ran and passed")
        return
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(_BEGIN)
    _, after = rest.split(_END)
    table = "\n".join([f"Versions: {text}.", "", *lines, ""])
    PAGE.write_text(f"{before}{_BEGIN}{table}{_END}{after}", encoding="utf-8")
