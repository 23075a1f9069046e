"""tools/setup.sh on machines that lack something: one clear message, exit code 2, nothing touched."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "setup.sh"
#: what the script itself needs; no Python and no compiler among them
TOOLS = ("bash", "cat", "dirname", "env", "getconf", "head", "mktemp", "rm", "sh", "uname")


@pytest.fixture
def bare(tmp_path: Path) -> Path:
    """A folder of commands with neither Python nor compiler, to be the whole PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        where = shutil.which(tool)
        assert where is not None
        (folder / tool).symlink_to(where)
    return folder


def fake(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)


def setup(step: str, path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("CXX", "PYTHON")}
    return subprocess.run(
        [str(SCRIPT), step],
        env={**kept, "PATH": str(path), **env},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


OLD_PYTHON = 'case "$1" in -V) echo Python 3.9.2;; *) exit 1;; esac'


def test_a_python_that_is_too_old_is_named(bare: Path) -> None:
    fake(bare, "python3", OLD_PYTHON)
    result = setup("venv", bare)
    assert result.returncode == 2
    assert "Python 3.11 or newer is needed; found Python 3.9.2" in result.stderr
    assert "make PYTHON=" in result.stderr


def test_a_missing_python_is_reported(bare: Path) -> None:
    result = setup("venv", bare)
    assert result.returncode == 2
    assert "found none" in result.stderr


def test_the_python_that_was_named_must_do(bare: Path) -> None:
    fake(bare, "python3.9", OLD_PYTHON)
    result = setup("venv", bare, PYTHON="python3.9")
    assert result.returncode == 2
    assert "PYTHON=python3.9 is Python 3.9.2" in result.stderr
    assert "PYTHON must be a command; got python9" in setup("venv", bare, PYTHON="python9").stderr


def test_a_missing_compiler_is_reported_before_the_installation(bare: Path) -> None:
    result = setup("core", bare)
    assert result.returncode == 2
    assert "a C++20 compiler is needed" in result.stderr
    assert "found none" in result.stderr
    assert result.stdout == ""


def test_a_compiler_without_the_standard_is_named(bare: Path) -> None:
    fake(bare, "c++", 'if [ "$1" = --version ]; then echo "c++ (GCC) 7.5.0"; else exit 1; fi')
    result = setup("core", bare)
    assert result.returncode == 2
    assert "c++ (GCC) 7.5.0" in result.stderr


def test_an_unknown_step_is_a_usage_error(bare: Path) -> None:
    result = setup("everything", bare)
    assert result.returncode == 2
    assert "venv|core|llama" in result.stderr


def llama_tools(folder: Path) -> subprocess.CompletedProcess[str]:
    script = SCRIPT.with_name("llama_tools.sh")
    env = {**os.environ, "LLAMA_CPP_BIN": str(folder)}
    return subprocess.run([str(script)], env=env, capture_output=True, text=True, timeout=300, check=False)


def test_existing_programs_of_llama_cpp_are_used(tmp_path: Path) -> None:
    programs = ["llama-lookup", "llama-lookup-create", "llama-lookup-merge", "llama-lookup-stats"]
    for program in programs:
        fake(tmp_path, program, "exit 0")
    result = llama_tools(tmp_path)
    assert result.returncode == 2
    assert f"LLAMA_CPP_BIN={tmp_path} lacks llama-server" in result.stderr
    fake(tmp_path, "llama-server", "exit 0")
    result = llama_tools(tmp_path)
    assert (result.returncode, result.stdout) == (0, f"{tmp_path}\n")


@pytest.mark.parametrize(
    ("probe", "flags"),
    [
        ("exit 0", []),
        ("kill -SEGV $$", ["-mno-amx-tile", "-mno-amx-int8", "-mno-amx-bf16"]),
        (None, []),
    ],
    ids=["runs", "crashes", "cannot be compiled"],
)
def test_llama_cpp_is_built_without_amx_where_that_crashes(
    tmp_path: Path, probe: str | None, flags: list[str]
) -> None:
    program = tmp_path / "program"
    fake(tmp_path, "program", str(probe))
    copies = f'while [ "$1" != -o ]; do shift; done; rm "$2"; cp "{program}" "$2"'
    fake(tmp_path, "compiler", "exit 1" if probe is None else copies)
    result = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "source tools/common.sh; flags=$(llama_flags); echo $flags"],
        cwd=SCRIPT.parents[1],
        env={**os.environ, "CC": str(tmp_path / "compiler")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert result.stdout.split() == flags
    assert result.stderr == ""
