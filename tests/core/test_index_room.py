"""The index when the system refuses memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

#: run in a separate process, which limits its address space. The texts have few distinct tokens, so that no
#: edge list is large: a mapping of 8 MiB or more is the next segment of the slab, mapped ahead of need.
_SPECULATION = """
import gc, resource
from pathlib import Path
import numpy as np
from suffixsvc.core import Index

LARGE = 8 << 20

def mapped_bytes():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()

def texts():
    rng = np.random.default_rng(4)
    while True:
        yield rng.integers(0, 3_000, 200).astype(np.int32)

index, count = Index(), 0
for text in texts():
    before = mapped_bytes()
    index.add(text, 0, 1)
    if mapped_bytes() - before >= LARGE:
        break
    count += 1
assert count > 100, count
del index

index, more = Index(), texts()
for _ in range(count):
    index.add(next(more), 0, 1)
soft, hard = resource.getrlimit(resource.RLIMIT_AS)
resource.setrlimit(resource.RLIMIT_AS, (mapped_bytes() + LARGE // 2, hard))
index.add(next(more), 0, 1)  # the text that maps memory ahead of need
index.add(next(more), 0, 1)
resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
for _ in range(count):
    index.add(next(more), 0, 1)
assert index.check() == ""
assert index.stats().tokens == (2 * count + 2) * 200
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measured with /proc")
def test_memory_that_is_mapped_ahead_of_need_may_be_refused() -> None:
    """The slab maps its next segment 128 pages before the current one is full, so that its first large page
    can be populated outside of the lock. When the system refused that mapping, the current write failed half
    done, although the current segment had enough space. A refused segment is now mapped when it is needed."""
    subprocess.run([sys.executable, "-c", _SPECULATION], check=True)
