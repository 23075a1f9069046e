"""Failures of a backend, hostile drafts and invalid arguments in the session tracker."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import structlog

from suffixsvc.errors import InvalidConfigError, InvalidCostError, InvalidInputError
from suffixsvc.types import Draft
from suffixsvc_adapters import DraftRequest, SessionTracker, TrackerConfig
from support.tracker_oracle import TEXT, RecordingNamespace


@pytest.mark.parametrize("what", ["open_session", "step", "append_context"])
def test_a_backend_that_fails_is_an_empty_draft_logged_once(what: str, recording: RecordingNamespace) -> None:
    with SessionTracker(recording) as tracker, structlog.testing.capture_logs() as logs:
        tracker.draft([9, 9, 9])
        recording.failing.add(what)
        for n in range(4):
            view = [5, 6, n] if what == "open_session" else [9, 9, 9, *range(20 * (n + 1))]
            assert len(tracker.draft(view)) == 0
        recording.failing.clear()
        assert tracker.stats.failures >= 1
        assert len(tracker.draft([5, 5, 5, 5], written=1)) > 0  # others go on
    assert [log["log_level"] for log in logs] == ["warning"]


def test_a_session_that_failed_is_opened_again_after_a_pause(recording: RecordingNamespace) -> None:
    with SessionTracker(recording) as tracker:
        view = [1, 2, 3]
        recording.failing.add("open_session")
        tracker.draft(view)
        recording.failing.clear()
        for n in range(64):
            view.append(n)
            tracker.draft(view, written=1)
        assert recording.opened == []  # so that a refusal costs next to nothing
        view.append(7)
        tracker.draft(view, written=1)
        assert [s.text for s in recording.opened] == [view]
        assert recording.opened[0].written == [7]
    assert tracker.stats.failures == 1


@pytest.mark.parametrize(
    "bad", [[-1], [2**31], ["a"], [[1, 2]], 7, None, [1.5], np.ones((2, 2), np.int32), "text"]
)
def test_tokens_that_are_none_are_counted(bad: object, recording: RecordingNamespace) -> None:
    with SessionTracker(recording) as tracker:
        assert len(tracker.draft(bad)) == 0  # type: ignore[arg-type]  # that is the test
        assert len(tracker.draft([1], start=-1)) == 0
        assert tracker.stats.failures == 2
        assert len(tracker.draft([])) == 0
        assert recording.opened == []


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


def without_lengths(tokens: list[int]) -> Draft:
    return replace(draft_of(tokens, list(range(-1, len(tokens) - 1))), match_lens=np.empty(0, np.int32))


def test_invalid_drafts_never_reach_an_engine() -> None:
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
        (without_lengths([1, 2]), True, [1, 2], [-1, 0]),
        (without_lengths([99, 1]), False, [], []),
        (None, False, [], []),
        ("draft", True, [], []),
    ]
    for answer, tree, tokens, parents in cases:
        config = TrackerConfig(vocab_size=50, max_draft_tokens=4, tree=tree)
        with SessionTracker(Hostile(answer), config) as tracker:  # type: ignore[arg-type]  # hostile
            draft = tracker.draft([1, 2, 3])
            assert (draft.token_ids.tolist(), draft.parents.tolist()) == (tokens, parents), answer
            assert isinstance(answer, Draft) == (tracker.stats.failures == 0), answer


def test_a_draft_ends_before_the_end_of_the_text(recording: RecordingNamespace) -> None:
    """And the feedback is of what was handed out, not of what had been drafted."""
    with SessionTracker(recording) as tracker:
        tracker.draft([1, *TEXT], written=len(TEXT))
        draft = tracker.draft([2, *TEXT[:3]], written=3, stop_before=frozenset({TEXT[6], 99}))
        assert draft.token_ids.tolist() == TEXT[3:6]
        assert len(tracker.draft([3, *TEXT[:3]], written=3, vocab_size=TEXT[3])) == 0
        tracker.draft([2, *TEXT[:6], 77], written=4)
    assert recording.opened[1].steps[-1] == ([*TEXT[3:6], 77], (4, 3))
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
        (cut,) = tracker.draft_many([DraftRequest([1, 2], stop_after=frozenset({7, 99}))])
    assert (cut.token_ids.tolist(), cut.parents.tolist()) == (tokens, parents)


def test_a_message_of_many_steps_that_fails_empties_all_and_raises_nothing(
    recording: RecordingNamespace,
) -> None:
    asked = [DraftRequest([1, 2, 1], hint=0), DraftRequest([3, 4, 3], hint=1)]

    def refuses(steps: object) -> list[Draft]:
        raise RuntimeError("no")

    for step_many in (refuses, lambda steps: [Draft.empty()]):
        with SessionTracker(recording, step_many=step_many) as tracker:
            assert [len(d) for d in tracker.draft_many(asked)] == [0, 0]
            assert tracker.stats.failures == 2
            assert len(tracker.draft([8, 8, 8, 8], written=1)) > 0


def test_invalid_settings_are_refused() -> None:
    bad = (
        {"max_draft_tokens": 0},
        {"max_sequences": True},
        {"idle_seconds": float("nan")},
        {"vocab_size": -1},
    )
    for settings in bad:
        with pytest.raises(InvalidConfigError, match="must be"):
            TrackerConfig(**settings)  # type: ignore[arg-type]
    with pytest.raises(InvalidCostError):
        TrackerConfig(verify_cost=-1.0)


def test_a_hint_that_cannot_be_hashed_is_refused(recording: RecordingNamespace) -> None:
    """end() raised the TypeError of a dict. A draft for such a hint stays empty and is counted."""
    hint: Any = ["request", 1]
    with SessionTracker(recording) as tracker:
        with pytest.raises(InvalidInputError, match="hint must be hashable; got list"):
            tracker.end(hint)
        assert len(tracker.draft(TEXT, hint=hint)) == 0
        assert tracker.stats.failures == 1
