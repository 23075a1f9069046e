"""End of sequences in the session tracker: idle times, hints, eviction, closing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Hashable
from pathlib import Path

import numpy as np
import pytest
import structlog

from suffixsvc import SuffixCache
from suffixsvc_adapters import DraftRequest, SessionTracker, TrackerConfig
from suffixsvc_adapters.tracking.async_close import SessionCloser
from support.serving import eventually
from support.tracker_oracle import NAMESPACE, TEXT, RecordingNamespace, stored_tokens


def test_idle_sequences_are_stored(cache: SuffixCache) -> None:
    now = 0.0
    config = TrackerConfig(idle_seconds=10)
    with SessionTracker(cache.namespace(NAMESPACE), config, clock=lambda: now) as tracker:
        tracker.draft([1, 2, 3], written=2)
        now = 9.0
        tracker.draft([7, 8], written=1)
        tracker.flush()
        assert stored_tokens(cache) == []
        now = 18.0
        tracker.draft([9], written=1)
        tracker.flush()
        assert stored_tokens(cache) == [[2, 3]]
        assert tracker.stats.live == 2


def test_what_is_idle_is_kept_although_the_engine_stands_still(cache: SuffixCache) -> None:
    """Without further calls, the tracker's own thread closes the sequence."""
    with SessionTracker(cache.namespace(NAMESPACE), TrackerConfig(idle_seconds=0.02)) as tracker:
        tracker.draft([1, 2, 3], written=2)
        eventually(lambda: stored_tokens(cache) == [[2, 3]], "the idle sequence is kept")


def test_the_engine_says_that_a_sequence_is_over(cache: SuffixCache) -> None:
    with SessionTracker(cache.namespace(NAMESPACE)) as tracker:
        tracker.draft([1, 2, 3], hint="r1", written=2)
        tracker.draft([4, 5, 6], hint="r2", written=2)
        tracker.end("r1")
        tracker.end("never heard of it")
        tracker.flush()
        assert stored_tokens(cache) == [[2, 3]]
        tracker.end_all()
        tracker.flush()
        assert stored_tokens(cache) == [[2, 3], [5, 6]]
        assert tracker.stats.closed == 2


def test_the_last_tokens_of_a_sequence_end_it(recording: RecordingNamespace, cache: SuffixCache) -> None:
    """The engine knows that a response ends with these tokens. Its output waited for ``idle_seconds`` and was
    lost with the process; now it is kept at once, with its last step's feedback, and nothing is drafted."""
    with SessionTracker(recording) as tracker:
        tracker.draft([1, *TEXT], hint="r1", written=len(TEXT))
        tracker.end("r1")
        tracker.flush()
        assert tracker.draft([2, *TEXT[:3]], hint="r2", written=3).token_ids.tolist() == TEXT[3:]
        (draft,) = tracker.draft_many([DraftRequest([2, *TEXT[:6]], hint="r2", written=3, last=True)])
        tracker.flush()
        assert len(draft) == 0
        assert stored_tokens(cache)[1:] == [TEXT[:6]]
        assert (tracker.stats.live, tracker.stats.accepted, tracker.stats.asked) == (0, 3, 2)
        assert recording.opened[1].steps[-1] == (TEXT[3:6], (8, 3))
        tracker.draft_many(
            [DraftRequest([2, *TEXT[:6], 7], hint="r2", written=1)]
        )  # it continues, with a new session
        assert recording.opened[2].context == [2, *TEXT[:6]]


def test_a_new_request_id_is_a_new_sequence(recording: RecordingNamespace) -> None:
    """Two requests of one prompt write the same tokens; the second took over the first one's session as soon
    as the first one was not asked about in the same step."""
    with SessionTracker(recording) as tracker:
        for hint, text in (("r1", [1, 2, 3]), ("r2", [1, 2, 3]), ("r1", [1, 2, 3, 4]), ("r2", [1, 2, 3, 5])):
            tracker.draft_many([DraftRequest(text, hint=hint, hint_is_unique=True, written=1)])
    assert [session.written for session in recording.opened] == [[3, 4], [3, 5]]


def test_the_engine_knows_which_sequences_are_over(cache: SuffixCache) -> None:
    """What the engine is done with is kept although nothing is asked any more; what it is not done with (a
    preempted request) is spared however long it is idle."""
    running = {"r1", "r2"}
    with SessionTracker(
        cache.namespace(NAMESPACE),
        TrackerConfig(idle_seconds=0.05),
        is_over=lambda hint: None if hint == "row" else hint not in running,
    ) as tracker:
        for hint, token in (("r1", 1), ("r2", 4), ("row", 7)):
            tracker.draft([token, token + 1, token + 2], hint=hint, written=2)
        running.remove("r1")
        eventually(lambda: stored_tokens(cache) == [[2, 3], [8, 9]], "what is over and what is idle is kept")
        time.sleep(0.2)  # idle_seconds, several times
        tracker.draft([4, 5, 6, 10], hint="r2", written=1)
    assert stored_tokens(cache) == [[2, 3], [8, 9], [5, 6, 10]]


def test_what_goes_on_is_spared_within_a_bound_when_room_is_made(cache: SuffixCache) -> None:
    """The least recently used sequence made room, a preempted one before any other. Now those that are over
    go first, then those of which nothing is known; those that go on when there are eight times as many."""
    over, running = set[str](), {f"r{i}" for i in range(100)}
    with SessionTracker(
        cache.namespace(NAMESPACE),
        TrackerConfig(max_sequences=3, idle_seconds=3600.0),
        is_over=lambda hint: True if hint in over else False if hint in running else None,
    ) as tracker:

        def ask(hint: str, token: int) -> None:
            tracker.draft([token, token + 1], hint=hint, written=1)

        ask("r0", 0)
        ask("row", 10)
        ask("r1", 20)
        ask("r2", 30)
        tracker.flush()
        assert stored_tokens(cache) == [[11]], "of this one nothing is known"
        ask("r3", 40)
        assert tracker.stats.live == 4, "all go on"
        over.add("r1")
        ask("r4", 50)
        tracker.flush()
        assert stored_tokens(cache) == [[11], [21]]
        for i in range(5, 60):
            ask(f"r{i}", 10 * i + 1000)
        assert tracker.stats.live == 24
        tracker.flush()
        assert stored_tokens(cache)[:4] == [[11], [21], [1], [31]], "the least recently used first"


@pytest.mark.parametrize("answer", ["raises", "nonsense"])
def test_an_engine_that_cannot_say_what_is_over_does_not_hear_of_it(cache: SuffixCache, answer: str) -> None:
    """``is_over`` was called outside the guard: what it raised reached the engine that had asked for drafts,
    and a sequence that it was asked about to make room stayed claimed for ever."""

    def is_over(hint: Hashable) -> bool:
        if answer == "raises":
            raise RuntimeError(f"no state of {hint}")
        return np.zeros(2)  # type: ignore[return-value]

    with (
        structlog.testing.capture_logs() as logs,
        SessionTracker(
            cache.namespace(NAMESPACE), TrackerConfig(max_sequences=2, idle_seconds=3600.0), is_over=is_over
        ) as tracker,
    ):
        for token in (1, 11, 21, 31):
            assert len(tracker.draft_many([DraftRequest([token, token + 1] * 4, hint=token, written=1)])) == 1
        assert tracker.stats.live == 2
        assert tracker.stats.failures >= 4
        assert tracker.stats.answered > 0
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert len(stored_tokens(cache)) == 4


def test_after_close_drafts_are_empty(cache: SuffixCache) -> None:
    closed = []
    tracker = SessionTracker(cache.namespace(NAMESPACE), on_close=lambda: closed.append(1))
    tracker.draft([1, 2, 3], written=2)
    tracker.close()
    tracker.close()
    assert stored_tokens(cache) == [[2, 3]]
    assert closed == [1]
    assert len(tracker.draft([1, 2, 3])) == 0
    assert tracker.stats.failures == 0


def test_a_service_that_hangs_does_not_hold_up_the_end_for_long() -> None:
    """Closing waits for a disk or a network; of several that never answer, the rest is let go and counted."""
    released = threading.Event()

    class Hangs:
        def close(self, commit: bool = True) -> None:
            released.wait()

    failures: list[Exception] = []
    closer = SessionCloser(failures.append, lambda: None, 60.0)
    closer.start()
    closer.put([Hangs(), Hangs(), Hangs()])  # type: ignore[list-item]  # all a closer needs
    closer.stop(0.01)
    assert len(failures) == 1
    assert "sessions were not closed" in str(failures[0])
    released.set()


def test_the_end_of_the_interpreter_stores_outputs(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom suffixsvc import SuffixCache\n"
        "from suffixsvc_adapters import SessionTracker\n"
        "cache = SuffixCache(sys.argv[1])\n"
        "SessionTracker(cache.namespace('tests')).draft([1, 2, 3], written=2)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "cache")], check=True)
    with SuffixCache(tmp_path / "cache") as cache:
        assert stored_tokens(cache) == [[2, 3]]
