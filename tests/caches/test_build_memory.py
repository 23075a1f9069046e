"""Memory limit of builds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from suffixsvc_caches.counting.memory import peak_bytes
from support.build_logs import FINGERPRINT

#: builds, and prints the peak resident memory and the number of runs
CHILD = """
import sys
from pathlib import Path
from suffixsvc_caches.building.lookup_caches import LookupSpec
from suffixsvc_caches.building.run import build
from suffixsvc_caches.building.spec import BuildSpec
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.memory import peak_bytes
log, memory, workers = sys.argv[1:]
folder, runs = Path(log).parent, []
new_run = Journal.new_run
Journal.new_run = lambda self: runs.append(1) or new_run(self)
spec = BuildSpec(
    [Path(log)], work=folder / "work", dynamic=LookupSpec(folder / "d.bin", min_count=2),
    memory_bytes=int(memory), workers=int(workers),
)
print(build(spec).counted.tokens, peak_bytes(), len(runs))
"""


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five million ids with hardly any repeated n-gram, so that the counts are large."""
    path = tmp_path_factory.mktemp("log") / "ids.jsonl"
    rng = np.random.default_rng(1)
    with path.open("w") as file:
        for _ in range(5000):
            ids = rng.integers(0, 1 << 17, 1000).tolist()
            file.write(
                json.dumps({"response_token_ids": ids, "session_id": "s", "tokenizer": FINGERPRINT}) + "\n"
            )
    return path


def test_the_peak_excludes_the_parent_process() -> None:
    """A process started by a large one was reported to be as large."""
    ballast = np.ones(300 << 20, np.uint8)
    code = "from suffixsvc_caches.counting.memory import peak_bytes; print(peak_bytes())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 1 << 20 < int(done.stdout) < ballast.nbytes
    assert peak_bytes() > ballast.nbytes


@pytest.mark.parametrize("workers", [1, 2])
def test_a_build_keeps_to_its_memory(workers: int, log: Path) -> None:
    """The windows of all tokens take three times the memory of the counters."""
    memory = 112 << 20
    command = [sys.executable, "-c", CHILD, str(log), str(memory), str(workers)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (log.parent / "d.bin").unlink()
    (log.parent / "d.bin.manifest.json").unlink()
    tokens, peak, runs = map(int, done.stdout.split())
    assert tokens == 5_000_000
    assert runs > 2
    assert peak <= 1.1 * memory
