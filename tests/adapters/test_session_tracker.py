"""The session tracker against brute force, on the real engine: sequences, feedback, turns."""

from __future__ import annotations

import random
import threading

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc_adapters import DraftRequest, SessionTracker, TrackerConfig
from support.tracker_oracle import NAMESPACE, TEXT, RecordingNamespace, TrackerOracle, stored_tokens

# ------------------------------------------------------------------------------------------- property tests


def next_view(
    rng: random.Random, alphabet: int, drafts: dict[int, list[int]], views: list[list[int]]
) -> list[int]:
    """The next view of an engine: a sequence after a step, rewound or after another turn, or a new one."""
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
    seed: int, cache: SuffixCache, recording: RecordingNamespace
) -> None:
    print("seed", seed)
    rng = random.Random(seed)
    alphabet, most = rng.choice([(2, 3), (3, 8), (50, 2), (5, 1)])
    oracle = TrackerOracle(most)
    views: list[list[int]] = []
    drafts: dict[int, list[int]] = {}
    handed_out: dict[int, list[int]] = {}  # by session
    with SessionTracker(recording, TrackerConfig(max_sequences=most, max_draft_tokens=6)) as tracker:
        for _ in range(300):
            view = next_view(rng, alphabet, drafts, views)
            expected, closed = oracle.query(view)
            known = len(recording.opened[expected].text) if expected < len(recording.opened) else None
            steps_before = len(recording.opened[expected].steps) if known is not None else 0
            draft = tracker.draft(np.array(view, np.int32), written=rng.randrange(2))
            session = recording.opened[expected]
            assert session.text == view
            assert session.session.token_ids().tolist() == view  # type: ignore[attr-defined]  # the engine's own
            assert len(recording.opened) == oracle.opened
            new = [] if known is None else view[known:]
            if known is not None and new:
                sent = handed_out[expected]
                true = next((i for i, (a, b) in enumerate(zip(sent, new, strict=False)) if a != b), None)
                accepted = min(len(sent), len(new)) if true is None else true
                feedback = [verified for tokens, verified in session.steps[steps_before:] if tokens]
                if len(new) <= len(sent) + 1:
                    assert feedback == [(len(sent) + 1, accepted)]
                else:
                    assert feedback[:1] in ([], [(len(sent) + 1, accepted)], [(1, 0)])
            handed_out[expected] = draft.token_ids.tolist()
            drafts[next(i for i, v in enumerate(views) if v is view)] = draft.token_ids.tolist()
            tracker.flush()
            assert all(recording.opened[i].closed == [True] for i in closed)
            assert tracker.stats.live == len(oracle.live)
    assert tracker.stats.failures == 0
    assert all(session.closed == [True] for session in recording.opened)
    kept = sorted(s.written for s in recording.opened if s.written)
    assert sorted(stored_tokens(cache)) == kept


def test_concurrent_threads_have_separate_sequences(cache: SuffixCache) -> None:
    """Eight generations through one tracker: each output is exactly what its thread wrote, once."""
    namespace = cache.namespace(NAMESPACE)
    wrote: list[list[int]] = []

    def generate(number: int) -> None:
        rng = random.Random(number)
        view = [1, 2, 3, 100 + number]  # a common prefix, as of a system prompt
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
    assert sorted(stored_tokens(cache)) == sorted(wrote)


# ------------------------------------------------------------------------------------------------ one by one


def test_what_one_sequence_wrote_is_drafted_for_the_next(cache: SuffixCache) -> None:
    with SessionTracker(cache.namespace(NAMESPACE)) as tracker:
        for n in range(1, len(TEXT) + 1):
            tracker.draft([1, 2, *TEXT[:n]], written=1)
        draft = tracker.draft([3, 4, *TEXT[:3]], written=1)
    assert draft.token_ids.tolist() == TEXT[3:]
    assert tracker.stats.opened == 2


def test_a_turn_keeps_the_accepted_tokens_and_records_the_rest_as_context(
    recording: RecordingNamespace,
) -> None:
    """Between two calls the model finished, a user spoke and the model wrote one token: only what had been
    drafted and that token are known to be the model's."""
    with SessionTracker(recording) as tracker:
        for n in range(1, len(TEXT) + 1):
            tracker.draft([1, *TEXT[:n]], written=1)
        draft = tracker.draft([2, *TEXT[:4]], written=1)
        assert draft.token_ids.tolist() == TEXT[4:]
        user = [50, 51, 52, 53, 54, 55, 56]
        tracker.draft([2, *TEXT[:6], *user, 60], written=1)
    session = recording.opened[1]
    assert session.text == [2, *TEXT[:6], *user, 60]
    assert session.written == [TEXT[3], TEXT[4], TEXT[5], 60]
    assert session.steps[1] == (TEXT[4:6], (len(TEXT) - 4 + 1, 2))
    assert tracker.stats.turns == 1


def test_an_engine_that_vouches_for_many_tokens_has_them_learned(recording: RecordingNamespace) -> None:
    """An engine that did not ask for some steps, but says that the model wrote all of it."""
    with SessionTracker(recording) as tracker:
        tracker.draft([1, 2, 3])
        tracker.draft([1, 2, 3, 4, 5, 6, 7, 8, 9], written=6)
    assert recording.opened[0].written == [4, 5, 6, 7, 8, 9]
    assert tracker.stats.turns == 0


def test_a_repeated_query_appends_no_token_twice(recording: RecordingNamespace) -> None:
    with SessionTracker(recording) as tracker:
        first = tracker.draft([1, 2, 1, 2, 1], written=1)
        again = tracker.draft([1, 2, 1, 2, 1], written=1)
    assert len(recording.opened) == 1
    assert recording.opened[0].text == [1, 2, 1, 2, 1]
    assert again.token_ids.tolist() == first.token_ids.tolist()


def test_two_rows_of_one_prompt_stay_two(recording: RecordingNamespace) -> None:
    """Parallel samples show the same tokens; in one batch, and by their hints, they are not mixed up."""
    with SessionTracker(recording) as tracker:
        tracker.draft_many([DraftRequest([1, 2, 3], hint=0), DraftRequest([1, 2, 3], hint=1)])
        assert len(recording.opened) == 2
        tracker.draft_many([DraftRequest([1, 2, 3, 4], hint=0), DraftRequest([1, 2, 3, 5], hint=1)])
        tracker.draft_many(
            [DraftRequest([1, 2, 3, 4, 6], hint=1), DraftRequest([1, 2, 3, 5, 7], hint=0)]
        )  # rows swapped
    assert [s.text for s in recording.opened] == [[1, 2, 3, 4, 6], [1, 2, 3, 5, 7]]


def test_tails_are_placed_by_their_position(recording: RecordingNamespace) -> None:
    """SGLang shows the last tokens and how many there are: what is missing in between begins anew."""
    text = list(range(100, 140))
    with SessionTracker(recording) as tracker:
        tracker.draft(text[10:20], start=10, hint="a")
        tracker.draft(text[14:23], start=14, hint="a", written=3)
        assert recording.opened[0].text == text[10:23]
        assert recording.opened[0].written == text[20:23]
        tracker.draft(text[30:40], start=30, hint="a")
        assert len(recording.opened) == 2
        tracker.draft(text[30:40], start=31, hint="a")  # the same tokens elsewhere
        assert len(recording.opened) == 3
        tracker.draft(text[10:23], start=10)  # a tail without a hint
        assert len(recording.opened) == 4


def test_the_engine_may_write_into_its_buffer_again(recording: RecordingNamespace) -> None:
    buffer = np.arange(1, 9, dtype=np.int32)
    with SessionTracker(recording) as tracker:
        tracker.draft(buffer[:4])
        tracker.draft(buffer[:6], written=2)
        buffer[:] = 77
    assert [array.tolist() for array in recording.opened[0].arguments] == [[1, 2, 3, 4], [], [5, 6]]
    assert recording.opened[0].session.token_ids().tolist() == [1, 2, 3, 4, 5, 6]  # type: ignore[attr-defined]
