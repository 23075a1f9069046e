"""Libraries for LD_PRELOAD, compiled by the tests that use them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

__all__ = ["preloaded_library"]


def preloaded_library(source: Path, folder: Path) -> Path:
    """Compile a C file to a library in ``folder``; skips without a C compiler and outside Linux."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None or not sys.platform.startswith("linux"):
        pytest.skip("needs a C compiler and LD_PRELOAD")
    library = folder / f"{source.stem}.so"
    options = ["-O1", "-fPIC", "-shared", "-o", str(library), str(source), "-ldl", "-lpthread"]
    subprocess.run([compiler, *options], check=True)
    return library
