"""Memory of live sessions, as the core accounts for it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.core import Index, Session, new_learner
from support.engine_parts import parts_of


def tokens(rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.integers(0, 150_000, count).astype(np.int32)


def session_of(index: Index, writer: int) -> Session:
    return Session(index, [], new_learner(), writer, 64)


#: run in a separate process: this one would reuse memory freed by other tests
_MEASURE = """
import gc, resource
from pathlib import Path
import numpy as np
from suffixsvc.core import Index, Session, new_learner

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

index = Index()
session = Session(index, [], new_learner(), 1, 64)
prompt = np.random.default_rng(1).integers(0, 150_000, 1_000_000).astype(np.int32)
gc.collect()
before, counted = resident_bytes(), index.stats().session_bytes
session.append_context(prompt)
grown = resident_bytes() - before
held = index.stats().session_bytes - counted
assert 0.7 * grown < held < 1.3 * grown, (grown, held)
assert session.held_bytes == index.session_bytes == index.stats().session_bytes
assert index.stats().session_tokens == 0
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="measured with /proc")
def test_a_long_prompt_is_counted_as_it_takes_memory() -> None:
    """A prompt of a million tokens takes 45 MB, ten times its own bytes, and no limit or statistic included
    the prompts of live sessions."""
    subprocess.run([sys.executable, "-c", _MEASURE], check=True)


def test_what_sessions_write_counts_for_them_until_they_end() -> None:
    """Their share of the index by positions; committed text counts for outputs, retracted text not at all."""
    rng = np.random.default_rng(2)
    index = Index()
    index.add(tokens(rng, 50_000), 0, 1)
    used = index.stats().used
    kept, dropped = session_of(index, 2), session_of(index, 3)
    for session in (kept, dropped):
        session.append_context(tokens(rng, 1_000))
        session.append(tokens(rng, 50_000), False)
    stats = index.stats()
    assert stats.session_tokens == 2 * (64 + 50_000)
    share = stats.used * stats.session_tokens / stats.tokens
    assert share == pytest.approx(2 * used, rel=0.2)
    assert stats.session_bytes == pytest.approx(kept.held_bytes + dropped.held_bytes, abs=16)
    assert stats.session_bytes > share + 2 * 51_000 * 4

    dropped.retract()
    stats = index.stats()
    assert stats.session_tokens == 64 + 50_000
    kept.end()
    dropped.end()
    stats = index.stats()
    assert stats.session_tokens == 0
    assert stats.session_bytes < 2 * (51_000 * 4 + 8_192)  # their texts; their local indexes are freed
    assert len(kept) == 51_000
    del kept, dropped, session
    assert index.stats().session_bytes == 0
    assert index.check() == ""


def test_a_session_that_ended_neither_drafts_nor_writes() -> None:
    session = session_of(Index(), 1)
    session.append_context(np.arange(50, dtype=np.int32))
    session.append(np.arange(20, dtype=np.int32), True)
    session.end()
    session.end()
    assert session.draft(8, np.ones(9), False, b"\0\1") is None
    for write in (session.append_context, lambda text: session.append(text, True)):
        with pytest.raises(RuntimeError, match="has ended"):
            write(np.arange(3, dtype=np.int32))
    assert session.text(0, 100).tolist() == [*range(50), *range(20)]
    tokens_, counts = session.ngrams(1)
    assert (len(tokens_), int(counts.sum())) == (50, 70)


def test_a_closed_session_frees_its_memory_while_it_is_referenced() -> None:
    rng = np.random.default_rng(4)
    with SuffixCache() as cache:
        space = cache.namespace("a")
        index = parts_of(cache).catalog.index_of("a").index
        sessions = [space.open_session(tokens(rng, 20_000)) for _ in range(3)]
        assert index.session_bytes > 3 * 20_000 * 20
        for session, commit in zip(sessions, (True, False, True), strict=True):
            session.step(tokens(rng, 2_000), 0)
            session.close(commit=commit)
        assert index.stats().session_tokens == 0
        assert index.session_bytes < 3 * (22_000 * 4 + 8_192)
        assert [len(session.token_ids()) for session in sessions] == [22_000] * 3
