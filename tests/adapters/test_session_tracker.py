"""The tracker against brute force, on the real engine: whose tokens these are, what became of the draft."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Hashable, Iterator
from typing import Any

import numpy as np
import pytest
import structlog
from suffixsvc_driver.adapters import Asked, SessionTracker, TrackerConfig
from suffixsvc_driver.adapters.closing import SessionCloser
from support.serving import eventually
from support.stored import stored_outputs
from support.tracker_oracle import TrackerOracle, WatchedNamespace

from suffixsvc import SuffixCache
from suffixsvc.errors import InvalidConfigError, InvalidCostError, InvalidInputError
from suffixsvc.types import Draft

TEXT = [11, 12, 13, 14, 15, 16, 17, 18, 19, 20]


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache
        cache.check()


@pytest.fixture
def watched(cache: SuffixCache) -> WatchedNamespace:
    return WatchedNamespace(cache.namespace("tests"))


def outputs(cache: SuffixCache) -> list[list[int]]:
    """Everything that was kept, in the order of their commits."""
    return [stored.output.token_ids.tolist() for stored in stored_outputs(cache, "tests")]


# ------------------------------------------------------------------------------------------- property tests


def an_engine(
    rng: random.Random, alphabet: int, drafts: dict[int, list[int]], views: list[list[int]]
) -> list[int]:
    """What an engine shows next: a sequence after a step, rewound or after another turn, or a new one."""
    if not views or rng.random() < 0.15:
        prompt = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 6))]
        views.append(prompt)
        return views[-1]
    i = rng.randrange(len(views))
    what = rng.random()
    if what < 0.70:  # a step: a part of the draft and the model's own token
        drafted = drafts.get(i, [])
        views[i] = views[i] + drafted[: rng.randrange(len(drafted) + 1)] + [rng.randrange(alphabet)]
    elif what < 0.78:  # the next turn
        views[i] = views[i] + [rng.randrange(alphabet) for _ in range(rng.randrange(2, 12))]
    elif what < 0.86:  # rewound
        views[i] = views[i][: rng.randrange(1, len(views[i]) + 1)]
    elif what < 0.92:  # a fork: two samples of one prompt
        views.append(list(views[i]))
        return views[-1]
    elif what < 0.96:  # regenerated from the beginning
        views[i] = [*views[i][: max(1, len(views[i]) // 2)], rng.randrange(alphabet)]
    return views[i]


@pytest.mark.parametrize("seed", range(8))
def test_every_view_finds_the_session_that_brute_force_finds(
    seed: int, cache: SuffixCache, watched: WatchedNamespace
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    alphabet, most = rng.choice([(2, 3), (3, 8), (50, 2), (5, 1)])
    oracle = TrackerOracle(most)
    views: list[list[int]] = []
    drafts: dict[int, list[int]] = {}
    handed_out: dict[int, list[int]] = {}  # by session
    with SessionTracker(watched, TrackerConfig(max_sequences=most, max_draft_tokens=6)) as tracker:
        for _ in range(300):
            view = an_engine(rng, alphabet, drafts, views)
            expected, closed = oracle.ask(view)
            known = len(watched.opened[expected].text) if expected < len(watched.opened) else None
            steps_before = len(watched.opened[expected].steps) if known is not None else 0
            draft = tracker.draft(np.array(view, np.int32), written=rng.randrange(2))
            session = watched.opened[expected]
            assert session.text == view
            assert session.session.token_ids().tolist() == view  # type: ignore[attr-defined]  # the engine's own
            assert len(watched.opened) == oracle.opened
            new = [] if known is None else view[known:]
            if known is not None and new:
                sent = handed_out[expected]
                true = next((i for i, (a, b) in enumerate(zip(sent, new, strict=False)) if a != b), None)
                accepted = min(len(sent), len(new)) if true is None else true
                told = [feedback for tokens, feedback in session.steps[steps_before:] if tokens]
                if len(new) <= len(sent) + 1:
                    assert told == [(len(sent) + 1, accepted)]
                else:
                    assert told[:1] in ([], [(len(sent) + 1, accepted)], [(1, 0)])
            handed_out[expected] = draft.token_ids.tolist()
            drafts[next(i for i, v in enumerate(views) if v is view)] = draft.token_ids.tolist()
            tracker.settle()
            assert all(watched.opened[i].closed == [True] for i in closed)
            assert tracker.stats.live == len(oracle.live)
    assert tracker.stats.failures == 0
    assert all(session.closed == [True] for session in watched.opened)
    kept = sorted(s.written for s in watched.opened if s.written)
    assert sorted(outputs(cache)) == kept


def test_sequences_are_told_apart_by_several_threads_at_once(cache: SuffixCache) -> None:
    """Eight generations through one tracker: each output is exactly what its thread wrote, once."""
    namespace = cache.namespace("tests")
    wrote: list[list[int]] = []

    def generate(number: int) -> None:
        rng = random.Random(number)
        view = [1, 2, 3, 100 + number]  # the first tokens are everybody's, as with a system prompt
        mine: list[int] = []
        for _ in range(60):
            draft = tracker.draft(np.array(view, np.int32), hint=number if number % 2 else None)
            drafted = draft.token_ids.tolist()
            new = [*drafted[: rng.randrange(len(drafted) + 1)], rng.randrange(40)]
            view = view + new
            mine += new
        tracker.draft(view, max_draft_tokens=0)
        wrote.append(mine)

    with SessionTracker(namespace, TrackerConfig(max_draft_tokens=4)) as tracker:
        threads = [threading.Thread(target=generate, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert tracker.stats.live == 8
    assert tracker.stats.failures == 0
    assert sorted(outputs(cache)) == sorted(wrote)


# ------------------------------------------------------------------------------------------------ one by one


def test_what_one_sequence_wrote_is_drafted_for_the_next(cache: SuffixCache) -> None:
    with SessionTracker(cache.namespace("tests")) as tracker:
        for n in range(1, len(TEXT) + 1):
            tracker.draft([1, 2, *TEXT[:n]], written=1)
        draft = tracker.draft([3, 4, *TEXT[:3]], written=1)
    assert draft.token_ids.tolist() == TEXT[3:]
    assert tracker.stats.opened == 2


def test_a_turn_keeps_what_came_true_and_takes_the_rest_for_context(watched: WatchedNamespace) -> None:
    """Between two calls the model finished, a user spoke and the model wrote one token: only what had been
    drafted and that token are known to be the model's."""
    with SessionTracker(watched) as tracker:
        for n in range(1, len(TEXT) + 1):
            tracker.draft([1, *TEXT[:n]], written=1)
        draft = tracker.draft([2, *TEXT[:4]], written=1)
        assert draft.token_ids.tolist() == TEXT[4:]
        user = [50, 51, 52, 53, 54, 55, 56]
        tracker.draft([2, *TEXT[:6], *user, 60], written=1)
    session = watched.opened[1]
    assert session.text == [2, *TEXT[:6], *user, 60]
    assert session.written == [TEXT[3], TEXT[4], TEXT[5], 60]
    assert session.steps[1] == (TEXT[4:6], (len(TEXT) - 4 + 1, 2))
    assert tracker.stats.turns == 1


def test_an_engine_that_vouches_for_many_tokens_has_them_learned(watched: WatchedNamespace) -> None:
    """An engine that did not ask for some steps, but says that the model wrote all of it."""
    with SessionTracker(watched) as tracker:
        tracker.draft([1, 2, 3])
        tracker.draft([1, 2, 3, 4, 5, 6, 7, 8, 9], written=6)
    assert watched.opened[0].written == [4, 5, 6, 7, 8, 9]
    assert tracker.stats.turns == 0


def test_asking_again_tells_nothing_twice(watched: WatchedNamespace) -> None:
    with SessionTracker(watched) as tracker:
        first = tracker.draft([1, 2, 1, 2, 1], written=1)
        again = tracker.draft([1, 2, 1, 2, 1], written=1)
    assert len(watched.opened) == 1
    assert watched.opened[0].text == [1, 2, 1, 2, 1]
    assert again.token_ids.tolist() == first.token_ids.tolist()


def test_two_rows_of_one_prompt_stay_two(watched: WatchedNamespace) -> None:
    """Parallel samples show the same tokens; in one batch, and by their hints, they are not mixed up."""
    with SessionTracker(watched) as tracker:
        tracker.draft_many([Asked([1, 2, 3], hint=0), Asked([1, 2, 3], hint=1)])
        assert len(watched.opened) == 2
        tracker.draft_many([Asked([1, 2, 3, 4], hint=0), Asked([1, 2, 3, 5], hint=1)])
        tracker.draft_many([Asked([1, 2, 3, 4, 6], hint=1), Asked([1, 2, 3, 5, 7], hint=0)])  # rows swapped
    assert [s.text for s in watched.opened] == [[1, 2, 3, 4, 6], [1, 2, 3, 5, 7]]


def test_tails_are_placed_by_their_position(watched: WatchedNamespace) -> None:
    """SGLang shows the last tokens and how many there are: what is missing in between begins anew."""
    text = list(range(100, 140))
    with SessionTracker(watched) as tracker:
        tracker.draft(text[10:20], start=10, hint="a")
        tracker.draft(text[14:23], start=14, hint="a", written=3)
        assert watched.opened[0].text == text[10:23]
        assert watched.opened[0].written == text[20:23]
        tracker.draft(text[30:40], start=30, hint="a")
        assert len(watched.opened) == 2
        tracker.draft(text[30:40], start=31, hint="a")  # the same tokens elsewhere
        assert len(watched.opened) == 3
        tracker.draft(text[10:23], start=10)  # nobody's
        assert len(watched.opened) == 4


def test_the_engine_may_write_into_its_buffer_again(watched: WatchedNamespace) -> None:
    buffer = np.arange(1, 9, dtype=np.int32)
    with SessionTracker(watched) as tracker:
        tracker.draft(buffer[:4])
        tracker.draft(buffer[:6], written=2)
        buffer[:] = 77
    assert [given.tolist() for given in watched.opened[0].given] == [[1, 2, 3, 4], [], [5, 6]]
    assert watched.opened[0].session.token_ids().tolist() == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]


# -------------------------------------------------------------------------------------------------- its end


def test_what_nobody_asks_about_any_more_is_kept(cache: SuffixCache) -> None:
    now = 0.0
    config = TrackerConfig(idle_seconds=10)
    with SessionTracker(cache.namespace("tests"), config, clock=lambda: now) as tracker:
        tracker.draft([1, 2, 3], written=2)
        now = 9.0
        tracker.draft([7, 8], written=1)
        tracker.settle()
        assert outputs(cache) == []
        now = 18.0
        tracker.draft([9], written=1)
        tracker.settle()
        assert outputs(cache) == [[2, 3]]
        assert tracker.stats.live == 2


def test_what_is_idle_is_kept_although_the_engine_stands_still(cache: SuffixCache) -> None:
    """Nobody calls any more: the tracker's own thread finds it."""
    with SessionTracker(cache.namespace("tests"), TrackerConfig(idle_seconds=0.02)) as tracker:
        tracker.draft([1, 2, 3], written=2)
        eventually(lambda: outputs(cache) == [[2, 3]], "the idle sequence is kept")


def test_the_engine_says_that_a_sequence_is_over(cache: SuffixCache) -> None:
    with SessionTracker(cache.namespace("tests")) as tracker:
        tracker.draft([1, 2, 3], hint="r1", written=2)
        tracker.draft([4, 5, 6], hint="r2", written=2)
        tracker.end("r1")
        tracker.end("never heard of it")
        tracker.settle()
        assert outputs(cache) == [[2, 3]]
        tracker.end_all()
        tracker.settle()
        assert outputs(cache) == [[2, 3], [5, 6]]
        assert tracker.stats.closed == 2


def test_the_last_tokens_of_a_sequence_end_it(watched: WatchedNamespace, cache: SuffixCache) -> None:
    """The engine knows that a response ends with these tokens. Its output waited for ``idle_seconds`` and was
    lost with the process; now it is kept at once, with its last step's feedback, and nothing is drafted."""
    with SessionTracker(watched) as tracker:
        tracker.draft([1, *TEXT], hint="r1", written=len(TEXT))
        tracker.end("r1")
        tracker.settle()
        assert tracker.draft([2, *TEXT[:3]], hint="r2", written=3).token_ids.tolist() == TEXT[3:]
        (draft,) = tracker.draft_many([Asked([2, *TEXT[:6]], hint="r2", written=3, last=True)])
        tracker.settle()
        assert len(draft) == 0
        assert outputs(cache)[1:] == [TEXT[:6]]
        assert (tracker.stats.live, tracker.stats.accepted, tracker.stats.asked) == (0, 3, 2)
        assert watched.opened[1].steps[-1] == (TEXT[3:6], (8, 3))
        tracker.draft_many([Asked([2, *TEXT[:6], 7], hint="r2", written=1)])  # it goes on: with a new session
        assert watched.opened[2].context == [2, *TEXT[:6]]


def test_a_new_request_id_is_a_new_sequence(watched: WatchedNamespace) -> None:
    """Two requests of one prompt write the same tokens; the second took over the first one's session as soon
    as the first one was not asked about in the same step."""
    with SessionTracker(watched) as tracker:
        for hint, text in (("r1", [1, 2, 3]), ("r2", [1, 2, 3]), ("r1", [1, 2, 3, 4]), ("r2", [1, 2, 3, 5])):
            tracker.draft_many([Asked(text, hint=hint, named=True, written=1)])
    assert [session.written for session in watched.opened] == [[3, 4], [3, 5]]


def test_the_engine_knows_which_sequences_are_over(cache: SuffixCache) -> None:
    """What the engine is done with is kept although nothing is asked any more; what it is not done with (a
    preempted request) is spared however long it is idle."""
    running = {"r1", "r2"}
    with SessionTracker(
        cache.namespace("tests"),
        TrackerConfig(idle_seconds=0.05),
        is_over=lambda hint: None if hint == "row" else hint not in running,
    ) as tracker:
        for hint, token in (("r1", 1), ("r2", 4), ("row", 7)):
            tracker.draft([token, token + 1, token + 2], hint=hint, written=2)
        running.remove("r1")
        eventually(lambda: outputs(cache) == [[2, 3], [8, 9]], "what is over and what is idle is kept")
        time.sleep(0.2)  # idle_seconds, several times
        tracker.draft([4, 5, 6, 10], hint="r2", written=1)
    assert outputs(cache) == [[2, 3], [8, 9], [5, 6, 10]]


def test_what_goes_on_is_spared_within_a_bound_when_room_is_made(cache: SuffixCache) -> None:
    """The least recently used sequence made room, a preempted one before any other. Now those that are over
    go first, then those of which nothing is known; those that go on when there are eight times as many."""
    over, running = set[str](), {f"r{i}" for i in range(100)}
    with SessionTracker(
        cache.namespace("tests"),
        TrackerConfig(max_sequences=3, idle_seconds=3600.0),
        is_over=lambda hint: True if hint in over else False if hint in running else None,
    ) as tracker:

        def ask(hint: str, token: int) -> None:
            tracker.draft([token, token + 1], hint=hint, written=1)

        ask("r0", 0)
        ask("row", 10)
        ask("r1", 20)
        ask("r2", 30)
        tracker.settle()
        assert outputs(cache) == [[11]], "of this one nothing is known"
        ask("r3", 40)
        assert tracker.stats.live == 4, "all go on"
        over.add("r1")
        ask("r4", 50)
        tracker.settle()
        assert outputs(cache) == [[11], [21]]
        for i in range(5, 60):
            ask(f"r{i}", 10 * i + 1000)
        assert tracker.stats.live == 24
        tracker.settle()
        assert outputs(cache)[:4] == [[11], [21], [1], [31]], "the least recently used first"


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
            cache.namespace("tests"), TrackerConfig(max_sequences=2, idle_seconds=3600.0), is_over=is_over
        ) as tracker,
    ):
        for token in (1, 11, 21, 31):
            assert len(tracker.draft_many([Asked([token, token + 1] * 4, hint=token, written=1)])) == 1
        assert tracker.stats.live == 2
        assert tracker.stats.failures >= 4
        assert tracker.stats.answered > 0
    assert [entry["log_level"] for entry in logs] == ["warning"]
    assert len(outputs(cache)) == 4


def test_after_close_drafts_are_empty(cache: SuffixCache) -> None:
    closed = []
    tracker = SessionTracker(cache.namespace("tests"), on_close=lambda: closed.append(1))
    tracker.draft([1, 2, 3], written=2)
    tracker.close()
    tracker.close()
    assert outputs(cache) == [[2, 3]]
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


def test_an_interpreter_that_ends_keeps_what_was_written(tmp_path: pytest.TempPathFactory) -> None:
    import subprocess
    import sys

    program = (
        "import sys\nfrom suffixsvc import SuffixCache\n"
        "from suffixsvc_driver.adapters import SessionTracker\n"
        "cache = SuffixCache(sys.argv[1])\n"
        "SessionTracker(cache.namespace('tests')).draft([1, 2, 3], written=2)\n"
    )
    subprocess.run([sys.executable, "-c", program, str(tmp_path / "cache")], check=True)
    with SuffixCache(tmp_path / "cache") as cache:
        assert outputs(cache) == [[2, 3]]


# ------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize("what", ["open_session", "step", "append_context"])
def test_a_backend_that_fails_is_an_empty_draft_logged_once(what: str, watched: WatchedNamespace) -> None:
    with SessionTracker(watched) as tracker, structlog.testing.capture_logs() as logs:
        tracker.draft([9, 9, 9])
        watched.failing.add(what)
        for n in range(4):
            view = [5, 6, n] if what == "open_session" else [9, 9, 9, *range(20 * (n + 1))]
            assert len(tracker.draft(view)) == 0
        watched.failing.clear()
        assert tracker.stats.failures >= 1
        assert len(tracker.draft([5, 5, 5, 5], written=1)) > 0  # others go on
    assert [log["log_level"] for log in logs] == ["warning"]


def test_a_session_that_failed_is_opened_again_after_a_pause(watched: WatchedNamespace) -> None:
    with SessionTracker(watched) as tracker:
        view = [1, 2, 3]
        watched.failing.add("open_session")
        tracker.draft(view)
        watched.failing.clear()
        for n in range(64):
            view.append(n)
            tracker.draft(view, written=1)
        assert watched.opened == []  # so that a refusal costs next to nothing
        view.append(7)
        tracker.draft(view, written=1)
        assert [s.text for s in watched.opened] == [view]
        assert watched.opened[0].written == [7]
    assert tracker.stats.failures == 1


@pytest.mark.parametrize(
    "bad", [[-1], [2**31], ["a"], [[1, 2]], 7, None, [1.5], np.ones((2, 2), np.int32), "text"]
)
def test_tokens_that_are_none_are_counted(bad: object, watched: WatchedNamespace) -> None:
    with SessionTracker(watched) as tracker:
        assert len(tracker.draft(bad)) == 0  # type: ignore[arg-type]  # that is the test
        assert len(tracker.draft([1], start=-1)) == 0
        assert tracker.stats.failures == 2
        assert len(tracker.draft([])) == 0
        assert watched.opened == []


class Hostile:
    """Answers whatever it was given."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def open_session(self, prompt_token_ids: object, **_: object) -> Hostile:
        return self

    def step(self, new_token_ids: object, **_: object) -> object:
        return self.answer

    def append_context(self, token_ids: object) -> None: ...

    def close(self, commit: bool = True) -> None: ...


def draft_of(tokens: list[int], parents: list[int], probs: list[float] | None = None) -> Draft:
    n = len(tokens)
    return Draft(
        np.array(tokens, np.int32),
        np.array(parents, np.int32),
        np.array([0.9] * n if probs is None else probs, np.float32),
        np.full(n, 2, np.uint8),
        np.full(n, 3, np.int32),
    )


def test_what_makes_no_sense_never_reaches_an_engine() -> None:
    long = draft_of([1] * 10_000, list(range(-1, 9_999)))
    cases: list[tuple[object, bool, list[int], list[int]]] = [
        (draft_of([1, 2, 99, 3], [-1, 0, 1, 2]), False, [1, 2], [-1, 0]),
        (draft_of([1, -2, 3], [-1, 0, 1]), False, [1], [-1]),
        (draft_of([1, 2, 3], [-1, 0, 1], [0.5, float("nan"), 0.5]), False, [1], [-1]),
        (long, False, [1] * 4, [-1, 0, 1, 2]),
        (draft_of([1, 2, 3], [-1, 2, 1]), False, [1], [-1]),  # a cycle
        (draft_of([1, 2, 3, 4], [-1, -1, 0, 1], [0.2, 0.8, 0.5, 0.5]), False, [2, 4], [-1, 0]),
        (draft_of([1, 99, 3, 4, 5], [-1, 0, 1, 0, -1]), True, [1, 4, 5], [-1, 0, -1]),
        (draft_of([1, 1, 3, 4], [-1, -1, 1, 0]), True, [1, 4], [-1, 0]),  # twins
        (draft_of([1, 2, 3], [1, 2, 0]), True, [], []),
        (draft_of([1, 2, 3, 4, 5, 6], [-1, -1, 0, 1, -1, 4]), True, [1, 2, 3, 4], [-1, -1, 0, 1]),
        (None, False, [], []),
        ("draft", True, [], []),
    ]
    for answer, tree, tokens, parents in cases:
        config = TrackerConfig(vocab_size=50, max_draft_tokens=4, tree=tree)
        with SessionTracker(Hostile(answer), config) as tracker:  # type: ignore[arg-type]  # hostile
            draft = tracker.draft([1, 2, 3])
            assert (draft.token_ids.tolist(), draft.parents.tolist()) == (tokens, parents), answer


def test_a_draft_ends_before_the_end_of_the_text(watched: WatchedNamespace) -> None:
    """And the feedback is of what was handed out, not of what had been drafted."""
    with SessionTracker(watched) as tracker:
        tracker.draft([1, *TEXT], written=len(TEXT))
        draft = tracker.draft([2, *TEXT[:3]], written=3, stop_before=frozenset({TEXT[6], 99}))
        assert draft.token_ids.tolist() == TEXT[3:6]
        assert len(tracker.draft([3, *TEXT[:3]], written=3, vocab_size=TEXT[3])) == 0
        tracker.draft([2, *TEXT[:6], 77], written=4)
    assert watched.opened[1].steps[-1] == ([*TEXT[3:6], 77], (4, 3))
    tree = draft_of([5, 6, 7, 8], [-1, 0, -1, 2])
    with SessionTracker(Hostile(tree), TrackerConfig(tree=True)) as tracker:  # type: ignore[arg-type]
        assert tracker.draft([1], stop_before=frozenset({7})).token_ids.tolist() == [5, 6]


@pytest.mark.parametrize(
    ("tree", "draft", "tokens", "parents"),
    [
        (False, draft_of([5, 6, 7, 8], [-1, 0, 1, 2]), [5, 6, 7], [-1, 0, 1]),
        (False, draft_of([7, 6], [-1, 0]), [7], [-1]),
        (False, draft_of([5, 6, 7], [-1, 0, 1]), [5, 6, 7], [-1, 0, 1]),
        (True, draft_of([5, 7, 6, 8, 9], [-1, 0, 0, 1, 3]), [5, 7, 6], [-1, 0, 0]),
    ],
)
def test_a_draft_may_end_with_the_end_of_the_text_but_not_go_on(
    tree: bool, draft: Draft, tokens: list[int], parents: list[int]
) -> None:
    """An end-of-sequence token that is drafted saves a step; tokens after it are verified in vain."""
    with SessionTracker(Hostile(draft), TrackerConfig(tree=tree)) as tracker:  # type: ignore[arg-type]
        (cut,) = tracker.draft_many([Asked([1, 2], stop_after=frozenset({7, 99}))])
    assert (cut.token_ids.tolist(), cut.parents.tolist()) == (tokens, parents)


def test_a_message_of_many_steps_that_fails_empties_all_and_raises_nothing(watched: WatchedNamespace) -> None:
    asked = [Asked([1, 2, 1], hint=0), Asked([3, 4, 3], hint=1)]

    def refuses(steps: object) -> list[Draft]:
        raise RuntimeError("no")

    for step_many in (refuses, lambda steps: [Draft.empty()]):
        with SessionTracker(watched, step_many=step_many) as tracker:
            assert [len(d) for d in tracker.draft_many(asked)] == [0, 0]
            assert tracker.stats.failures == 2
            assert len(tracker.draft([8, 8, 8, 8], written=1)) > 0


def test_settings_that_make_no_sense_are_refused() -> None:
    bad = (
        {"max_draft_tokens": 0},
        {"max_sequences": True},
        {"idle_seconds": float("nan")},
        {"vocab_size": -1},
    )
    for settings in bad:
        with pytest.raises(InvalidConfigError, match="makes no sense"):
            TrackerConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(InvalidCostError):
        TrackerConfig(verify_cost=-1.0)


def test_a_hint_that_cannot_be_hashed_is_refused(watched: WatchedNamespace) -> None:
    """end() raised the TypeError of a dict. A draft for such a hint stays empty and is counted."""
    hint: Any = ["request", 1]
    with SessionTracker(watched) as tracker:
        with pytest.raises(InvalidInputError, match="hint must be hashable; got list"):
            tracker.end(hint)
        assert len(tracker.draft(TEXT, hint=hint)) == 0
        assert tracker.stats.failures == 1
