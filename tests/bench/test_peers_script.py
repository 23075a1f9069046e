"""tools/peers.sh where it cannot do its work: one clear message, exit code 2, nothing half-built is used."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "peers.sh"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with nothing but the script in its place."""
    (tmp_path / "tools").mkdir()
    for script in (SCRIPT, SCRIPT.with_name("common.sh")):
        shutil.copy(script, tmp_path / "tools" / script.name)
    return tmp_path


def peers(checkout: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(checkout / "tools" / "peers.sh")], capture_output=True, text=True, timeout=300, check=False
    )


def python_that(checkout: Path, body: str) -> None:
    path = checkout / ".venv" / "bin" / "python"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def test_without_an_environment_it_says_what_to_run(checkout: Path) -> None:
    result = peers(checkout)
    assert result.returncode == 2
    assert result.stderr == "suffixsvc: no .venv; run make setup first\n"


def test_an_environment_that_cannot_be_made(checkout: Path) -> None:
    python_that(checkout, "echo no ensurepip here; exit 1")
    result = peers(checkout)
    assert result.returncode == 2
    assert "no ensurepip here" in result.stderr
    last = result.stderr.splitlines()[-1]
    assert "cannot create a virtual environment" in last
    assert "bench replay works without this peer" in last


def test_a_package_that_cannot_be_had(checkout: Path) -> None:
    """pip installs the build tools and then does not find the package."""
    made = '#!/bin/sh\\ncase "$*" in *download*) echo no such release; exit 1;; *import*) exit 1;; esac\\n'
    body = (
        f"mkdir -p .venv-peers/bin; printf '{made}' >.venv-peers/bin/python; chmod +x .venv-peers/bin/python"
    )
    python_that(checkout, body)
    result = peers(checkout)
    assert result.returncode == 2, result.stderr
    assert "no such release" in result.stderr
    assert "could not be downloaded" in result.stderr.splitlines()[-1]
    # the next run begins anew instead of taking what is there for a whole one
    assert peers(checkout).returncode == 2


def test_the_package_is_pinned_by_content() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert "--require-hashes" in text
    digest = next(line for line in text.splitlines() if line.startswith("sha256="))
    assert len(digest.removeprefix("sha256=")) == 64
