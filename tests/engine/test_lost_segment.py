"""A segment whose file is truncated while a cache is open, as on a failing disk."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

PROGRAM = """
import os, sys, time
import numpy as np
from suffixsvc.engine import SuffixCache
from suffixsvc.types import NewOutput

folder = sys.argv[1]
text = np.random.default_rng(1).integers(0, 30_000, 60_000).astype(np.int32)
with SuffixCache(folder) as cache:
    space = cache.namespace("a")
    output = NewOutput(
        namespace="a", token_ids=text, segment_lens=(len(text),), prompt_tail=np.empty(0, np.int32), labels={}
    )
    space.add_outputs([output])
    cache.seal()
    [name] = [n for n in os.listdir(os.path.join(folder, "segments")) if n.endswith(".seg")]
    os.truncate(os.path.join(folder, "segments", name), 4096)

    def drafted(start):
        with space.open_session(text[start : start + 40]) as session:
            session.retract()
            return session.step(text[start + 40 : start + 44].tolist()).token_ids.tolist()

    starts = iter(range(100, 50_000, 50))
    deadline = time.monotonic() + 300
    while True:  # drafts are asked for all the time; for a moment there are none
        start = next(starts)
        found = drafted(start)
        if found and found == text[start + 44 : start + 44 + len(found)].tolist():
            break
        assert time.monotonic() < deadline, "nothing was rebuilt"
        time.sleep(0.5)
    cache.check()
    space.add_outputs([output])  # writes go on
    assert cache.stats().outputs == 2
with SuffixCache(folder) as cache:
    cache.check()
    assert cache.stats().outputs == 2
print("clean", flush=True)
"""


def test_a_segment_that_was_cut_short_is_built_again_while_the_cache_drafts(tmp_path: Path) -> None:
    """Regression: the process ended with SIGBUS at the first draft. Now drafting continues without the
    segment, maintenance rebuilds it from the log, and index, log and segments agree afterwards."""
    result = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), os.fspath(tmp_path / "cache")],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.endswith("clean\n")  # after the log line about the segment
