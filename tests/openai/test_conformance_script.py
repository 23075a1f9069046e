"""tools/conformance.sh where it cannot do its work: one message, exit code 2."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "conformance.sh"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with nothing but the script in its place."""
    (tmp_path / "tools").mkdir()
    for script in (SCRIPT, SCRIPT.with_name("common.sh")):
        shutil.copy(script, tmp_path / "tools" / script.name)
    return tmp_path


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def conformance(checkout: Path, node: Path) -> str:
    """The last line of the message."""
    ran = subprocess.run(
        [str(checkout / "tools" / SCRIPT.name)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NODE": str(node), "PATH": f"{checkout / 'bin'}:{os.environ['PATH']}"},
    )
    assert ran.returncode == 2
    return ran.stderr.splitlines()[-1]


def test_without_an_environment_it_says_what_to_run(checkout: Path) -> None:
    assert conformance(checkout, Path("node")) == "suffixsvc: no .venv; run make setup first"


def test_node_that_is_missing_or_old_is_named(checkout: Path) -> None:
    program(checkout / ".venv" / "bin" / "python", "exit 1")
    missing = checkout / "no-node"
    assert f"there is no {missing}. Install it" in conformance(checkout, missing)
    old = program(checkout / "old", 'case "$1" in --version) echo v18.1.0;; *) exit 1;; esac')
    assert "Node 20 or newer is needed for compatcanary; found v18.1.0." in conformance(checkout, old)


def test_what_cannot_be_installed_is_named(checkout: Path) -> None:
    makes = "mkdir -p .venv-conformance/bin; cp fake .venv-conformance/bin/python"
    program(checkout / ".venv" / "bin" / "python", f'case "$*" in *venv*) {makes};; esac')
    program(checkout / "fake", 'case "$*" in *langchain-tests==*) echo no such release; exit 1;; esac')
    program(checkout / "bin" / "npm", "exit 0")
    said = conformance(checkout, program(checkout / "node", "exit 0"))
    assert "langchain-tests==1.1.9 could not be installed" in said
    assert not (checkout / "build" / "conformance" / "VERSION").exists()
