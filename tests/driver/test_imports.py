"""What the driver drags in: nothing heavy before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("module", "absent"),
    [
        ("suffixsvc_driver", ["llama_cpp", "grpc", "lmdb", "suffixsvc.core", "suffixsvc.engine"]),
        ("suffixsvc_driver.targets.llama", ["llama_cpp", "grpc", "lmdb", "suffixsvc.engine"]),
        ("suffixsvc_driver.layers.prompt_lookup", ["llama_cpp", "grpc", "lmdb", "suffixsvc.engine"]),
        ("suffixsvc_driver.retokenizing", ["llama_cpp", "grpc", "lmdb", "suffixsvc.core"]),
        ("suffixsvc_driver.workers.client", ["llama_cpp", "lmdb", "suffixsvc.core"]),
        ("suffixsvc.cli.draft_worker", ["llama_cpp", "grpc", "lmdb", "suffixsvc.core"]),
    ],
)
def test_importing_loads_nothing_heavy(module: str, absent: list[str]) -> None:
    program = f"import sys, {module}; print([m for m in {absent!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]", done.stdout
