"""Interrupts, and commits and sealing that overlap: no move and no commit is left half done."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sealing_testing import NS, SQL, fill, ngrams, open_cache

from suffixsvc.index import NamespaceIndex
from suffixsvc.index.pending_commit import PendingCommit


@pytest.mark.parametrize("turns", [1, 2])
def test_live_text_is_not_sealed_and_what_is_durable_can_be_before_its_session_knows(
    tmp_path: Path, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: an output of several runs was indexed again after it was durable; sealed in between, it
    would have stayed in the hot index forever. Now the index has its final form before the log has the
    output."""
    with open_cache(tmp_path / "d") as cache:
        fill(cache, 3)
        live = cache.namespace(NS).open_session([1])
        for turn in range(turns):
            live.append_context([turn])
            live.step(SQL, max_draft_tokens=0)
        assert cache.seal() == 3
        wait = PendingCommit.wait
        sealed: list[int] = []

        def wait_and_seal(commitment: PendingCommit) -> int:
            output_id = wait(commitment)
            sealed.append(cache.seal())
            return output_id

        monkeypatch.setattr(PendingCommit, "wait", wait_and_seal)
        assert live.close() is not None
        assert sealed == [1]
        assert cache.namespace(NS).stats().index_nodes == 1
        cache.check()


@pytest.mark.parametrize("turns", [1, 2])
def test_a_close_that_was_interrupted_and_dropped_leaves_index_and_log_agreed(
    tmp_path: Path, turns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: the output was durable, its session was collected without the result: the text was
    retracted from the index, and stayed in the log."""
    with open_cache(tmp_path / "d") as cache:
        session = cache.namespace(NS).open_session([1])
        for turn in range(turns):
            session.append_context([turn])
            session.step(SQL, max_draft_tokens=0)

        def interrupted(commitment: PendingCommit) -> int:
            assert commitment.submitted is not None
            commitment.submitted[1].result()
            raise KeyboardInterrupt

        monkeypatch.setattr(PendingCommit, "wait", interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.close()
        cache.check()
        del session
        gc.collect()
        assert cache.stats().sessions == 0
        cache.check()
        assert (cache.stats().outputs, cache.stats().tokens) == (1, 30 * turns)
        assert cache.seal() == 1
        cache.check()


@pytest.fixture
def sigint_raises() -> Iterator[None]:
    """SIGINT raises KeyboardInterrupt, also where a shell's background job ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("sigint_raises")
@pytest.mark.parametrize("point", ["seal-built", "seal-entered", "seal-published"])
def test_an_interrupt_does_not_cut_sealing_in_two(tmp_path: Path, point: str) -> None:
    """A real signal at an arbitrary line."""

    def interrupt(at: str) -> None:
        if at == point:
            signal.raise_signal(signal.SIGINT)

    with open_cache(tmp_path / "d", sync_point=interrupt) as cache:
        ids = fill(cache, 3)
        with pytest.raises(KeyboardInterrupt):
            cache.seal()
        cache.check()
        point = ""
        cache.compact()
        cache.namespace(NS).delete(output_ids=[ids[0]])
        cache.check()
        assert cache.stats().hot_tokens == 0


@pytest.mark.usefixtures("sigint_raises")
@pytest.mark.parametrize("at", [(NamespaceIndex, "insert"), (PendingCommit, "release")], ids=["begin", "end"])
def test_an_interrupt_does_not_cut_a_commit_in_two(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: tuple[type, str]
) -> None:
    """An output of several runs is indexed again, once."""
    with open_cache(tmp_path / "d") as cache:
        session = cache.namespace(NS).open_session([1])
        for run in (SQL[:20], SQL[20:]):
            session.step(run, 0)
            session.append_context([7, 7])
        work = getattr(*at)

        def interrupted(*arguments: Any) -> Any:
            signal.raise_signal(signal.SIGINT)
            return work(*arguments)

        monkeypatch.setattr(*at, interrupted)
        with pytest.raises(KeyboardInterrupt):
            session.close()
        output_id = session.close()
        assert output_id is not None
        cache.check()
        assert ngrams(cache, 2)[(SQL[0], SQL[1])] == 1
        cache.namespace(NS).delete(output_ids=[output_id])
        assert cache.namespace(NS).stats().index_nodes == 1
