"""Feedback of one principal, true or false, changes nothing of what drafting has learned for another one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.index import hot_index
from suffixsvc.index.namespace_stats import StepCounts
from support.engine_parts import index_of, parts_of

PATH = "shared"
STEPS = 2000
#: what M writes: an agent's text, of which parts occur in the namespace
RNG = np.random.default_rng(7)
PHRASES = [RNG.integers(0, 400, 12).tolist() for _ in range(30)]


def log(seed: int, phrases: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [token for _ in range(phrases) for token in PHRASES[int(rng.integers(len(PHRASES)))]]


def filled() -> SuffixCache:
    cache = SuffixCache()
    for seed in range(6):
        cache.namespace(PATH).add_output(log(seed, 20), principal="writer")
    return cache


def replay(cache: SuffixCache, principal: str) -> Iterator[tuple[list[int], list[float]]]:
    """The drafts that a fixed log is offered, private so that two replays do not meet."""
    text = log(100, 40)
    session = cache.namespace(PATH).open_session(text[:4], principal=principal, private=True)
    learning = cache.namespace(PATH).open_session(text[:4], principal=principal)  # learns, as most sessions
    for token in text[4:]:
        for each in (session, learning):
            draft = each.step([token], 8, 0.05)
            yield draft.token_ids.tolist(), draft.probs.tolist()
    learning.close(commit=False)
    session.close(commit=False)


def write(cache: SuffixCache, principal: str, report: str) -> None:
    """Thousands of steps of four tokens, which are retracted in the end.

    Args:
        report: "true": nothing is reported, the service compares; "everything", "nothing": of a draft that is
            said to have been sent, all tokens are said to be accepted, or none.
    """
    width = 9
    verified = {"true": None, "everything": (width, width - 1, 2), "nothing": (width, 0, 2)}[report]
    done = 0
    while done < STEPS:
        text = log(50 + done, 40)
        session = cache.namespace(PATH).open_session(text[:4], principal=principal)
        session.step([], 8, 0.05)
        for at in range(4, len(text), 4):
            session.step(text[at : at + 4], 8, 0.05, verified=verified)
            done += 1
        session.close(commit=False)


def learned(cache: SuffixCache, principal: str) -> bytes:
    index = index_of(cache.namespace(PATH))
    return index.learner_of(principal).save()


@pytest.mark.parametrize("report", ["everything", "nothing"])
def test_false_reports_change_no_draft_of_another_principal(report: str) -> None:
    """The drafts are bit for bit those of a namespace in which M wrote the same and reported the truth."""
    with filled() as calm, filled() as poisoned:
        write(calm, "m", "true")
        write(poisoned, "m", report)
        assert learned(poisoned, "m") != learned(calm, "m"), "it does learn from that"
        assert learned(poisoned, "a") == learned(calm, "a")
        assert learned(poisoned, "") == learned(calm, "")
        assert list(replay(poisoned, "a")) == list(replay(calm, "a"))


def test_the_same_reports_by_the_same_principal_do_change_its_drafts() -> None:
    """Shows that the test above can fail."""
    with filled() as calm, filled() as poisoned:
        write(calm, "a", "true")
        write(poisoned, "a", "nothing")
        assert list(replay(poisoned, "a")) != list(replay(calm, "a"))


def test_what_followers_report_changes_the_tables_of_their_principal_only() -> None:
    with filled() as cache, filled() as other:
        write(other, "", "everything")
        base = learned(cache, "")
        difference = index_of(other.namespace(PATH)).learner.difference(base)
        assert difference
        before = {name: learned(cache, name) for name in ("", "a", "m")}
        assert cache.feed.record_use(PATH, [], StepCounts(), difference, "m")
        assert learned(cache, "m") != before["m"]
        assert (learned(cache, ""), learned(cache, "a")) == (before[""], before["a"])
        assert cache.feed.contents(PATH, "m").learned == learned(cache, "m")
        assert cache.feed.contents(PATH, "a").learned == b""


def test_a_principal_begins_with_what_was_learned_for_the_operator() -> None:
    with filled() as cache:
        write(cache, "", "everything")
        assert learned(cache, "a") == learned(cache, "")
        write(cache, "a", "nothing")
        assert learned(cache, "a") != learned(cache, "") == learned(cache, "b")


def test_tables_of_principals_survive_a_restart_and_end_with_a_deletion(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache:
        output_id = cache.namespace(PATH).add_output(log(0, 20))
        for name in ("", "a", "m"):
            write(cache, name, "everything" if name == "a" else "nothing")
        before = {name: learned(cache, name) for name in ("", "a", "m")}
        assert len(set(before.values())) == 3
    with SuffixCache(tmp_path / "d") as cache:
        catalog, store = parts_of(cache).catalog, parts_of(cache).store
        index = index_of(cache.namespace(PATH))
        assert {name: catalog.learner_of(index, name).save() for name in before} == before
        assert store.state_names(PATH, "learner") == ["learner", "learner:a", "learner:m"]
        fresh = catalog.learner_of(index, "new").save()
        assert fresh == before[""]
        cache.namespace(PATH).delete(output_ids=[output_id])
        assert store.state_names(PATH, "learner") == []
        empty = index_of(SuffixCache().namespace("x")).learner.save()
        assert {learned(cache, name) for name in before} == {empty}
    with SuffixCache(tmp_path / "d") as cache:
        assert {learned(cache, name) for name in before} == {empty}


def test_tables_of_idle_principals_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hot_index, "MAX_LEARNERS", 3)
    with SuffixCache() as cache:
        namespace = cache.namespace(PATH)
        index = index_of(namespace)
        live = namespace.open_session([1], principal="live")
        for number in range(8):
            namespace.open_session([1], principal=f"p{number}").close(commit=False)
            assert len(index.learners()) <= 3
        assert set(index.learners()) == {"live", "p6", "p7"}
        many = [namespace.open_session([1], principal=f"l{number}") for number in range(5)]
        assert len(index.learners()) >= 6, "those of live sessions stay"
        for session in [live, *many]:
            session.close(commit=False)
