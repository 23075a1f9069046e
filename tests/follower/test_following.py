"""Followers of a real service: what they hold, what they write, and what others see of it."""

from __future__ import annotations

import gc
import itertools
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from suffixsvc import Selection, SuffixCache
from suffixsvc.errors import (
    InvalidConfigError,
    ServiceUnavailableError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.service.followers.stream import FollowerStream
from suffixsvc.types import Backend, DraftSource
from suffixsvc_client import SuffixClient
from suffixsvc_follower import Follower, FollowState, connect
from suffixsvc_follower.stream import use_report
from support.following import CONFIG, Connect, followed, held, logged
from support.learned_tables import Tables
from support.serving import eventually

PATH = "acme/sql"
#: a text that others write, and its beginning
TEXT = [7, 8, 9, 10, 11, 12, 13, 14, 15, 16]


def test_a_follower_drafts_what_the_service_holds(cache: SuffixCache, follow: Connect) -> None:
    cache.namespace(PATH).add_output(TEXT)
    follower = follow(PATH)
    assert isinstance(follower, Backend)
    namespace = follower.namespace(PATH)
    assert namespace.wait(60)
    with namespace.open_session([1, 2]) as session:
        draft = session.step(TEXT[:4], max_draft_tokens=3)
        assert draft.token_ids.tolist() == TEXT[4:7]
        assert set(draft.sources.tolist()) == {DraftSource.NAMESPACE}


def test_sealed_outputs_are_mapped_from_the_service(cache: SuffixCache, follow: Connect) -> None:
    for shift in range(20):
        cache.namespace(PATH).add_output([token + 100 * shift for token in TEXT])
    cache.seal(PATH)
    follower = follow(PATH)
    assert follower.wait(PATH, 60)
    entry = followed(follower, PATH)
    assert entry.copy.mapped_bytes > 0
    assert held(follower, PATH) == logged(cache, PATH)
    # a merge and more outputs, while it is followed
    cache.namespace(PATH).add_output([1, 2, 3])
    cache.compact(PATH)
    eventually(
        lambda: len(entry.copy.sealed()) == 1 and held(follower, PATH) == logged(cache, PATH),
        "the merge is followed",
    )


def test_outputs_of_others_arrive_and_forgotten_ones_leave(cache: SuffixCache, follow: Connect) -> None:
    follower = follow(PATH)
    assert follower.wait(PATH, 60)
    first = cache.namespace(PATH).add_output(TEXT)
    eventually(lambda: held(follower, PATH) == {first}, "the output is followed")
    cache.namespace(PATH).delete(output_ids=[first])
    eventually(lambda: not held(follower, PATH), "the deletion is followed")
    with follower.namespace(PATH).open_session([1]) as session:
        assert len(session.step(TEXT[:4])) == 0


def test_what_a_follower_writes_is_stored_and_drafted_by_others(cache: SuffixCache, follow: Connect) -> None:
    one, two = follow(PATH), follow(PATH)
    session = one.namespace(PATH).open_session([1, 2, 3], labels={"agent": "a"})
    session.step(TEXT[:5])
    session.append_context([500, 501])
    session.step(TEXT[5:], verified=(1, 0, 0))
    output_id = session.close()
    assert output_id is not None
    stored = next(cache._parts.store.scan(PATH))
    assert stored.output_id == output_id
    assert stored.output.token_ids.tolist() == TEXT
    assert stored.output.segment_lens == (5, 5)
    assert stored.output.prompt_tail.tolist() == [1, 2, 3]
    assert dict(stored.output.labels) == {"agent": "a"}
    assert session.close() == output_id
    eventually(lambda: held(one, PATH) == held(two, PATH) == {output_id}, "both hold it")
    for follower in (one, two):
        with follower.namespace(PATH).open_session([3]) as reader:
            assert reader.step(TEXT[5:8], max_draft_tokens=2).token_ids.tolist() == TEXT[8:]


def test_live_text_of_a_sibling_is_drafted_and_retracted(cache: SuffixCache, follow: Connect) -> None:
    writer, reader = follow(PATH), follow(PATH)
    session = writer.namespace(PATH).open_session([1, 2])
    session.step(TEXT)

    def drafted() -> list[int]:
        with reader.namespace(PATH).open_session([5]) as other:
            draft: list[int] = other.step(TEXT[:4], max_draft_tokens=3).token_ids.tolist()
            other.close(commit=False)
            return draft

    namespace = reader.namespace(PATH)
    eventually(lambda: drafted() == TEXT[4:7], "live text is drafted")
    eventually(
        lambda: list(namespace.live_text().values()) == [2 + len(TEXT)], "the text of the writer alone"
    )
    assert writer.namespace(PATH).live_text() == {}, "its own text is not that of others"
    session.close(commit=False)
    eventually(lambda: drafted() == [], "discarded text is drafted no more")
    eventually(lambda: namespace.live_text() == {}, "and it is not listed")
    entry = followed(reader, PATH)
    eventually(lambda: len(entry.copy.mirrors) == 0, "its mirror is gone")
    eventually(lambda: cache.stats().sessions == 0, "the service's sessions are closed")
    assert not logged(cache, PATH)


def test_a_private_session_leaves_nothing_at_the_service(cache: SuffixCache, follow: Connect) -> None:
    cache.namespace(PATH).add_output(TEXT)
    follower = follow(PATH)
    assert follower.wait(PATH, 60)
    sent = follower.counts
    session = follower.namespace(PATH).open_session([1], private=True)
    assert session.step(TEXT[:4], max_draft_tokens=3).token_ids.tolist() == TEXT[4:7]
    session.step([90, 91, 92, 93])
    with follower.namespace(PATH).open_session([2]) as other:
        assert len(other.step([90, 91, 92])) == 0
        other.close(commit=False)
    assert session.close() is None
    assert len(logged(cache, PATH)) == 1
    assert follower.counts.steps - sent.steps <= 1  # of the other session
    assert not followed(follower, PATH).copy.learner.changed, "nothing is learned that could be reported"


def test_an_abandoned_session_is_discarded(cache: SuffixCache, follow: Connect) -> None:
    follower = follow(PATH)
    session = follower.namespace(PATH).open_session([1])
    session.step(TEXT)
    eventually(lambda: cache.stats().sessions == 1, "it is live at the service")
    del session
    gc.collect()
    eventually(lambda: cache.stats().sessions == 0, "it is ended at the service")
    entry = followed(follower, PATH)
    eventually(lambda: entry.copy.live_sessions == 0, "its text is gone here")
    assert not logged(cache, PATH)


def test_reads_and_their_errors(cache: SuffixCache, follow: Connect) -> None:
    cache.namespace("lib/other", "fingerprint").add_output(TEXT)
    follower = follow()
    namespace = follower.namespace(PATH, "fingerprint")
    with pytest.raises(UnknownNamespaceError):
        namespace.open_session([1], reads=["lib/none"])
    with namespace.open_session([1], reads=["lib/other"]) as session:
        assert follower.wait("lib/other", 60)
        assert session.step(TEXT[:4], max_draft_tokens=3).token_ids.tolist() == TEXT[4:7]
    with pytest.raises(TokenizerMismatchError):
        follower.namespace(PATH, "another").open_session([1])


def test_default_reads_of_the_service(cache: SuffixCache, follow: Connect) -> None:
    cache.namespace("lib/corpus", "fingerprint").add_output(TEXT)
    cache.read_by_default(["lib/corpus"])
    follower = follow()
    assert follower.wait_for_answer(60) is FollowState.FOLLOWING
    with follower.namespace(PATH, "fingerprint").open_session([1]) as session:
        assert follower.wait("lib/corpus", 60)
        assert session.step(TEXT[:4], max_draft_tokens=3).token_ids.tolist() == TEXT[4:7]


def test_a_deleted_namespace_and_its_successor(cache: SuffixCache, follow: Connect) -> None:
    cache.namespace(PATH).add_output(TEXT)
    follower = follow(PATH)
    assert follower.wait(PATH, 60)
    session = follower.namespace(PATH).open_session([1])
    session.step([70, 71, 72])
    follower.delete_namespace(PATH, force=True)
    eventually(lambda: not held(follower, PATH), "the deletion is followed")
    assert session.close() is None, "its text was deleted with the namespace"
    new = cache.namespace(PATH).add_output([3, 4, 5])
    eventually(lambda: held(follower, PATH) == {new}, "the later namespace is followed")


def test_a_namespace_that_is_created_later(cache: SuffixCache, follow: Connect) -> None:
    follower = follow(PATH)
    assert follower.wait(PATH, 60)
    assert not cache.has_namespace(PATH)
    new = cache.namespace(PATH).add_output(TEXT)
    eventually(lambda: held(follower, PATH) == {new}, "it is followed")


def test_use_reaches_the_service(cache: SuffixCache, follow: Connect) -> None:
    namespace = cache.namespace(PATH)
    namespace.add_output(TEXT)
    follower = follow(PATH)
    assert follower.wait(PATH, 60)
    with follower.namespace(PATH).open_session([1]) as session:
        session.step(TEXT[:4], max_draft_tokens=3)
        session.step(TEXT[4:8], max_draft_tokens=3)
    eventually(lambda: namespace.stats().num_steps == 2, "steps are counted")
    stats = namespace.stats()
    assert stats.num_drafts == stats.num_namespace_drafts == 2
    assert stats.num_accepted_tokens == stats.num_namespace_accepted_tokens == 3
    assert stats.verify_steps == pytest.approx(0.02 * 3, abs=1e-5)
    assert 0 < stats.expected_tokens <= stats.num_draft_tokens
    with follower.namespace(PATH).open_session([1]) as session:
        session.step([1_000_000])
    eventually(lambda: namespace.stats().num_no_context == 1, "the reason of an empty draft is reported")


def test_idle_namespaces_are_dropped(cache: SuffixCache, address: str) -> None:
    cache.namespace(PATH).add_output(TEXT)
    with Follower(address, replace(CONFIG, idle_seconds=0.5), [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        session = follower.namespace("acme/used").open_session([1])
        eventually(lambda: follower._parts.table.get(PATH) is None, "it is followed no more")
        assert follower._parts.table.get("acme/used") is not None
        session.close()
        with follower.namespace(PATH).open_session([1]) as again:
            assert follower.wait(PATH, 60)
            assert len(again.step(TEXT[:4], max_draft_tokens=3)) == 3


def holds_the_log(cache: SuffixCache, follower: Follower) -> bool:
    return held(follower, PATH) == logged(cache, PATH)


def without_mirrors(follower: Follower) -> bool:
    return len(followed(follower, PATH).copy.mirrors) == 0


@pytest.mark.parametrize("seed", range(3))
def test_followers_hold_what_the_log_holds(cache: SuffixCache, follow: Connect, seed: int) -> None:
    """Random writes by followers and the service, deletions, seals, merges; at rest all are equal."""
    rng = random.Random(seed)
    followers = [follow(PATH) for _ in range(3)]
    sessions = []
    for _ in range(120):
        match rng.randrange(9):
            case 0 | 1:
                sessions.append(rng.choice(followers).namespace(PATH).open_session([rng.randrange(9)]))
            case 2 | 3 | 4 if sessions:
                rng.choice(sessions).step([rng.randrange(9) for _ in range(rng.randrange(1, 9))])
            case 5 if sessions:
                sessions.pop(rng.randrange(len(sessions))).close(rng.random() < 0.7, wait=rng.random() < 0.7)
            case 6:
                cache.namespace(PATH).add_output([rng.randrange(9) for _ in range(rng.randrange(1, 40))])
            case 7:
                ids = list(logged(cache, PATH))
                if ids:
                    cache.namespace(PATH).delete(output_ids=[rng.choice(ids)])
            case _:
                rng.choice((cache.seal, cache.compact))(PATH) if cache.has_namespace(PATH) else None
    for session in sessions:
        session.close()
    eventually(lambda: cache.stats().sessions == 0, "all sessions are closed")
    for follower in followers:
        copy = followed(follower, PATH).copy
        eventually(partial(holds_the_log, cache, follower), "a follower holds what the log holds")
        eventually(partial(without_mirrors, follower), "no live text is left")
        copy.check()
        assert copy.consistency_snapshot() is not None


def test_connecting(address: str) -> None:
    with connect(address, mode="remote") as remote:
        assert isinstance(remote, SuffixClient)
    with connect(address, [PATH], mode="follow") as follower:
        assert isinstance(follower, Follower)
        assert follower.state is FollowState.FOLLOWING
    with pytest.raises(InvalidConfigError, match=r"namespaces must be a list .* Pass \['acme/sql'\]"):
        connect(address, "acme/sql")
    with pytest.raises(InvalidConfigError, match="mode must be one of"):
        connect(address, mode="best")  # type: ignore[arg-type]
    with pytest.raises(InvalidConfigError):
        connect("nowhere")
    with pytest.raises(ServiceUnavailableError, match=r"/nonexistent/s.sock must let this process follow"):
        connect("unix:/nonexistent/s.sock", mode="follow")
    with Follower("unix:/nonexistent/s.sock") as follower:
        eventually(lambda: "No such file" in str(follower.outage), "the cause is known")


def test_what_followers_learn_reaches_the_service(
    cache: SuffixCache, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(use_report, "LEARNED_SECONDS", 0.0)
    namespace = cache.namespace(PATH)
    namespace.add_output(TEXT * 8)
    index = cache._parts.catalog.get(PATH)
    assert index is not None
    assert not index.learner.changed
    with Follower(address, CONFIG, [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        entry = followed(follower, PATH)
        session = follower.namespace(PATH).open_session([1])
        for token in TEXT * 4:
            session.step([token])
        eventually(lambda: index.learner.changed, "it is merged while the follower works")
        session.close(commit=False)
        learned = Tables.of(entry.copy.learner).features
    # counts are exact, unlike weights (learned_difference.h)
    eventually(
        lambda: np.array_equal(Tables.of(index.learner).features, learned),
        "all of it is merged when the follower is closed",
    )
    with Follower(address, CONFIG, [(PATH, "")]) as later:
        assert later.wait(PATH, 60)
        assert followed(later, PATH).copy.learner.save() == index.learner.save()


def test_what_was_learned_from_deleted_text_is_not_merged(
    cache: SuffixCache, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A report is of what was learned since the one before; the first one after a deletion is left out."""
    monkeypatch.setattr(use_report, "LEARNED_SECONDS", 0.0)
    namespace = cache.namespace(PATH)
    namespace.add_output(TEXT * 8)
    index = cache._parts.catalog.get(PATH)
    assert index is not None
    with Follower(address, CONFIG, [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        session = follower.namespace(PATH).open_session([1])
        session.step(TEXT * 4)
        kept: list[bool] = []
        decide = FollowerStream._is_of_present_text

        def recorded(self: FollowerStream, path: str, learned: bytes) -> bool:
            is_kept = decide(self, path, learned)
            if learned:
                kept.append(is_kept)
            return is_kept

        monkeypatch.setattr(FollowerStream, "_is_of_present_text", recorded)
        tokens = itertools.cycle(TEXT)

        def learns_until(holds: Callable[[], object]) -> bool:
            session.step([next(tokens)])
            return bool(holds())

        eventually(lambda: learns_until(lambda: len(kept) > 1), "it reports what it learned")
        assert all(kept)
        assert cache.delete(Selection(PATH)).outputs == 1
        kept.clear()
        eventually(lambda: learns_until(lambda: len(kept) > 2), "it reports on")
        assert kept[0] is False or kept[1] is False  # a report may have been under way
        assert kept.count(False) == 1
        assert index.learner.changed
        session.close(commit=False)
