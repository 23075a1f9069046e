"""A segment file whose close() fails: some file systems report a failed write only there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BUILD = """
import sys
import numpy as np
from suffixsvc.core.segments import SegmentText, build_segment
from suffixsvc.errors import StoreError
try:
    build_segment(sys.argv[1], [SegmentText(np.array([1, 2, 3], np.int32), 0, 5)])
except StoreError as error:
    print(error)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="LD_PRELOAD is Linux's")
def test_a_failed_close_leaves_no_file(tmp_path: Path) -> None:
    """The result of close() was not looked at: the file got its name although it may be incomplete."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("needs a C compiler")
    library, folder = tmp_path / "failing_close.so", tmp_path / "folder"
    folder.mkdir()
    source = Path(__file__).with_name("failing_close.c")
    subprocess.run([compiler, "-O1", "-fPIC", "-shared", "-o", library, source, "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, "-c", BUILD, folder / "one.seg"],
        env={**os.environ, "LD_PRELOAD": str(library)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot close" in done.stdout
    assert "Input/output error" in done.stdout
    assert list(folder.iterdir()) == []
