"""Watch over a real socket: contents and changes are what the log holds, whatever happens meanwhile."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import Limits, NewOutput, Policies, Policy, SuffixCache
from suffixsvc.errors import (
    InvalidNamespaceError,
    LimitExceededError,
    TokenizerMismatchError,
)
from suffixsvc.log_types import LogPosition
from suffixsvc.log_wire import pack_ids
from suffixsvc.service.followers import stream as stream_module
from suffixsvc.service.followers import watch as watch_module
from suffixsvc.store.transactions import changes as changes_module
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_client import SuffixClient
from support.long_form import rounds
from support.serving import eventually
from support.watching import Held, WatchCall, WatchReader, hello, watched

PATH = "acme/sql"


def logged(cache: SuffixCache, path: str) -> dict[int, tuple[int, ...]]:
    """The outputs of a namespace in the log."""
    if not cache.feed.generation(path):
        return {}
    return {each.output_id: tuple(each.output.token_ids.tolist()) for each in cache._parts.store.scan(path)}


def agrees(reader: WatchReader, cache: SuffixCache, path: str) -> bool:
    held = reader.held.get(path, Held())
    expected = logged(cache, path)
    try:
        ids = held.ids(cache.feed.segment_folder)
    except FileNotFoundError:
        return False
    return (
        ids == set(expected)
        and held.generation == cache.feed.generation(path)
        and all(held.hot[each] == expected[each] for each in ids & set(held.hot))
    )


@pytest.mark.parametrize("seed", range(rounds(3, full=6)))
def test_contents_and_changes_are_what_the_log_holds(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    print("seed", seed)
    limits = Limits(seal_tokens=64)
    paths = [PATH, "acme/json", "b"]
    with SuffixCache(tmp_path / "d", limits=limits, background=False) as cache:

        def change() -> None:
            path = rng.choice(paths)
            ids = list(logged(cache, path))
            match rng.randrange(9):
                case 0 | 1 | 2:
                    cache.namespace(path).add_output([rng.randrange(9) for _ in range(rng.randrange(1, 30))])
                case 3 if ids:
                    cache.namespace(path).delete(output_ids=[rng.choice(ids)])
                case 4:
                    if ids:
                        cache.seal(path)
                case 5:
                    if ids:
                        cache.compact(path)
                case 6 if cache.has_namespace(path) and rng.random() < 0.3:
                    cache.delete_namespace(path)
                case _:
                    with cache.namespace(path).open_session([1]) as session:
                        session.step([rng.randrange(9) for _ in range(5)])

        for _ in range(30):
            change()
        with watched(cache, limits) as address, WatchReader(address) as reader:
            for path in paths:
                reader.follow(path)
            for _ in range(8):
                for _ in range(rng.randrange(12)):
                    change()
                for path in paths:
                    reader.until(lambda p=path: agrees(reader, cache, p), f"{path} is what the log holds")
                if rng.random() < 0.3:
                    path = rng.choice(paths)
                    reader.unfollow(path)
                    change()
                    reader.follow(path)


def test_a_position_resumes_and_only_changes_are_sent(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d", background=False) as cache, watched(cache) as address:
        namespace = cache.namespace(PATH)
        first = [namespace.add_output([n, n]) for n in range(1, 5)]
        cache.namespace("b").add_output([7])
        position, generation = cache.feed.position(), cache.feed.generation(PATH)
        namespace.delete(output_ids=[first[0]])
        later = namespace.add_output([9, 9])
        cache.seal(PATH)
        with WatchReader(address, hello(position=position)) as reader:
            held = Held(generation, hot=dict.fromkeys(first, (0,)), complete=True)
            held.hot = {each: (n, n) for n, each in enumerate(first, 1)}
            reader.held[PATH] = held
            reader.follow(PATH, generation)
            reader.until(lambda: later in held.hot and held.segments, "the changes and the manifest arrive")
            assert held.ids(cache.feed.segment_folder) == set(first[1:]) | {later}
            assert "contents" not in [kind for kind, _ in reader.kinds]
            # a namespace that the follower says it holds, followed when the stream is further on
            reader.held["b"] = Held(cache.feed.generation("b"), complete=True)
            other = cache.namespace("b").add_output([8])
            reader.until(lambda: reader.position == cache.feed.position(), "the position goes on")
            reader.follow("b", cache.feed.generation("b"))
            reader.until(lambda: other in reader.held["b"].hot, "what was missed arrives")
            assert "contents" not in [kind for kind, _ in reader.kinds]


@pytest.mark.parametrize("case", ["another node", "another run", "the future", "another generation"])
def test_a_position_that_the_log_does_not_lead_on_from(tmp_path: Path, case: str) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address:
        output = cache.namespace(PATH).add_output([1, 2])
        at, generation = cache.feed.position(), cache.feed.generation(PATH)
        match case:
            case "another node":
                at = LogPosition(at.node_id ^ 1, at.lsn, at.run)
            case "another run":
                at = LogPosition(at.node_id, at.lsn, at.run ^ 1)
            case "the future":
                at = LogPosition(at.node_id, at.lsn + 100, at.run)
            case _:
                generation += 1
        with WatchReader(address, hello(position=at)) as reader:
            reader.follow(PATH, generation)
            reader.until(lambda: agrees(reader, cache, PATH), "contents are sent")
            assert reader.held[PATH].contents == 1
            assert reader.held[PATH].hot == {output: (1, 2)}


def test_a_stream_that_is_too_far_behind_gets_contents_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, WatchReader(address) as reader:
        cache.namespace(PATH).add_output([1, 2])
        reader.follow(PATH)
        reader.follow("never")
        reader.until(lambda: agrees(reader, cache, PATH) and "never" in reader.held, "contents are sent")
        leads_on = changes_module.leads_on_from
        refused = cache.feed.position()
        monkeypatch.setattr(
            changes_module, "leads_on_from", lambda view, at: at != refused and leads_on(view, at)
        )
        cache.namespace(PATH).add_output([3])
        reader.until(lambda: reader.held[PATH].contents == 2, "contents are sent again")
        reader.until(lambda: reader.held["never"].contents == 2, "also of other namespaces")
        cache.namespace(PATH).add_output([4])
        reader.until(lambda: agrees(reader, cache, PATH), "and changes follow")
        assert reader.held[PATH].contents == 2


def test_a_namespace_that_is_created_deleted_and_created_again(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, WatchReader(address) as reader:
        reader.follow(PATH)
        reader.until(lambda: PATH in reader.held and reader.held[PATH].complete, "empty contents")
        assert reader.held[PATH].generation == 0
        generations = []
        for n in range(3):
            output = cache.namespace(PATH, f"tokenizer {n}").add_output([n, n])
            reader.until(
                lambda new=output: agrees(reader, cache, PATH) and new in reader.held[PATH].hot, "it is there"
            )
            assert reader.held[PATH].tokenizer == f"tokenizer {n}"
            generations.append(reader.held[PATH].generation)
            cache.delete_namespace(PATH)
            reader.until(lambda: agrees(reader, cache, PATH), "nothing is left")
            assert reader.held[PATH].generation == 0
        assert len(set(generations)) == 3


def test_refusals_concern_one_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "MAX_FOLLOWED", 3)
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, WatchReader(address) as reader:
        cache.namespace(PATH, "mine").add_output([1])
        reader.follow("a//b")
        reader.follow(PATH, tokenizer="other")
        reader.follow("b", tokenizer="other")
        reader.until(lambda: len(reader.refused) == 2 and "b" in reader.held, "two are refused")
        assert isinstance(reader.refused["a//b"], InvalidNamespaceError)
        assert isinstance(reader.refused[PATH], TokenizerMismatchError)
        cache.namespace("b", "mine").add_output([1])
        reader.until(lambda: "b" in reader.refused, "one that is bound to another tokenizer later")
        reader.unfollow("never followed")
        for path in ("1", "2", "3", "4"):
            reader.follow(path)
        reader.until(lambda: "4" in reader.refused and "3" in reader.held, "one too many")
        assert isinstance(reader.refused["4"], LimitExceededError)
        reader.follow(PATH, tokenizer="mine")
        reader.unfollow("3")
        reader.follow(PATH, tokenizer="mine")
        reader.until(lambda: agrees(reader, cache, PATH), "there is room again")


def test_messages_have_a_bounded_size(tmp_path: Path) -> None:
    limits = Limits(max_message_bytes=1 << 20)
    with SuffixCache(tmp_path / "d") as cache, watched(cache, limits) as address:
        cache.namespace("large").add_output(np.zeros(1 << 19, np.int32))
        cache.namespace(PATH).add_outputs(
            [NewOutput(PATH, np.arange(20_000, dtype=np.int32), (20_000,), np.zeros(0, np.int32))] * 40
        )
        with WatchReader(address) as reader:
            for path in ("large", PATH, "b"):
                reader.follow(path)
            reader.until(lambda: agrees(reader, cache, PATH), "contents are sent in parts")
            reader.until(lambda: "large" in reader.refused, "an output that fits into no message")
            assert isinstance(reader.refused["large"], LimitExceededError)
            assert "--max-message-mib" in str(reader.refused["large"])
            cache.namespace("b").add_output(np.zeros(1 << 19, np.int32))
            cache.namespace(PATH).add_outputs(
                [NewOutput(PATH, np.arange(20_000, dtype=np.int32), (20_000,), np.zeros(0, np.int32))] * 40
            )
            reader.until(lambda: "b" in reader.refused, "nor among the changes")
            reader.until(lambda: agrees(reader, cache, PATH), "the others are not affected")


def test_the_position_is_sent_when_nothing_happens(cache: SuffixCache) -> None:
    with watched(cache) as address, WatchReader(address) as reader:
        beats = lambda: sum(kind == "changes" for kind, _ in reader.kinds)  # noqa: E731
        reader.until(lambda: beats() >= 3, "heartbeats without a namespace")
        reader.follow(PATH)
        before = beats()
        reader.until(lambda: beats() >= before + 3, "and with one")


def test_nothing_is_read_while_nothing_is_committed(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.namespace(PATH).add_output([1])
    with watched(cache) as address, WatchReader(address) as reader:
        reader.follow(PATH)
        reader.until(lambda: agrees(reader, cache, PATH) and reader.kinds[-1][0] == "changes", "contents")
        reads = 0
        changes = cache.feed.changes

        def counted(*arguments: object) -> object:
            nonlocal reads
            reads += 1
            return changes(*arguments)  # type: ignore[arg-type]

        monkeypatch.setattr(cache.feed, "changes", counted)
        before = len(reader.kinds)
        reader.until(lambda: len(reader.kinds) >= before + 3, "heartbeats")
        assert reads == 0


def test_uses_and_counters_reach_eviction_and_statistics(tmp_path: Path) -> None:
    policies = Policies({"acme": Policy(max_bytes=1 << 30)})
    with (
        SuffixCache(tmp_path / "d", policies=policies) as cache,
        watched(cache) as address,
        WatchReader(address) as reader,
        SuffixClient(address) as client,
    ):
        namespace = cache.namespace(PATH)
        first, second = namespace.add_output([1]), namespace.add_output([2])
        cache.namespace("acme/other").add_output([2])
        reader.follow(PATH)
        reader.until(lambda: agrees(reader, cache, PATH) and reader.position, "contents")
        assert reader.position is not None
        use = {"num_steps": 7, "num_drafts": 5, "num_draft_tokens": 40, "num_accepted_tokens": 30}
        reader.report(
            reader.position,
            pb.NamespaceUse(namespace=PATH, output_ids=pack_ids([second, 1 << 63, 12345, first]), **use),
            pb.NamespaceUse(namespace="acme/other", **use),
            pb.NamespaceUse(namespace="nowhere", **use),
        )
        eventually(lambda: client.namespace(PATH).stats().num_steps == 7, "the counters arrive")
        stats = client.namespace(PATH).stats()
        assert (stats.num_drafts, stats.num_draft_tokens, stats.num_accepted_tokens) == (5, 40, 30)
        assert client.namespace("acme/other").stats().num_steps == 0, "it is not followed"
        index = cache._parts.catalog.index_of(PATH)
        assert index.lru is not None
        rows = index.lru._rows
        used = dict(zip(rows["id"][:2].tolist(), rows["last_used"][:2].tolist(), strict=True))
        assert used[first] > used[second]
        [follower] = client.stats().followers
        assert (follower.namespaces, follower.held_bytes, follower.mapped_bytes) == ((PATH,), 11, 22)


def test_too_many_requests_that_are_not_answered_end_the_stream(
    cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream_module, "_MAX_PENDING", 5)
    with watched(cache) as address, WatchCall(address, hello()) as call:
        call.next()
        large = cache.namespace("large")
        large.add_outputs(
            [NewOutput("large", np.zeros(1 << 18, np.int32), (1 << 18,), np.zeros(0, np.int32))] * 40
        )
        call.follow("large")  # is not read, so that nothing after it is answered
        for n in range(100):
            call.follow(f"n/{n}")
        error = call.error()
        assert isinstance(error, LimitExceededError)


def test_a_store_of_an_older_backup(tmp_path: Path) -> None:
    """The follower is further on than the log that the service has now."""
    with SuffixCache(tmp_path / "d") as cache:
        cache.namespace(PATH).add_output([1])
    shutil.copytree(tmp_path / "d", tmp_path / "backup")
    with SuffixCache(tmp_path / "d") as cache:
        cache.namespace(PATH).add_output([2])
        at, generation = cache.feed.position(), cache.feed.generation(PATH)
    with SuffixCache(tmp_path / "backup") as cache, watched(cache) as address:
        cache.namespace(PATH).add_output([3])
        with WatchReader(address, hello(position=at)) as reader:
            reader.follow(PATH, generation)
            reader.until(lambda: agrees(reader, cache, PATH), "contents of the log that there is")
            assert set(reader.held[PATH].hot.values()) == {(1,), (3,)}


def test_a_segment_that_is_lost_is_replaced_by_contents(tmp_path: Path) -> None:
    """Its outputs are hot again, which no change of the log says."""
    with (
        SuffixCache(tmp_path / "d", background=False) as cache,
        watched(cache) as address,
        WatchReader(address) as reader,
    ):
        cache.namespace(PATH).add_output([1, 2])
        cache.seal(PATH)
        cache.namespace(PATH).add_output([3, 4])
        reader.follow(PATH)
        reader.until(lambda: agrees(reader, cache, PATH), "contents")
        cache.seal(PATH)
        reader.until(lambda: len(reader.held[PATH].segments) == 2, "a segment more")
        cache.compact(PATH)
        reader.until(lambda: len(reader.held[PATH].segments) == 1, "merged")
        assert reader.held[PATH].contents == 1, "only manifests were sent"
        store = cache._parts.store
        store.drop_segments(PATH, [record.name for record in store.segments(PATH)])
        reader.until(lambda: reader.held[PATH].contents == 2, "contents are sent again")
        reader.until(lambda: agrees(reader, cache, PATH), "with the outputs of the segment")
        assert sorted(reader.held[PATH].hot.values()) == [(1, 2), (3, 4)]


def test_live_text_that_waits_is_older_than_contents(tmp_path: Path) -> None:
    """A namespace is followed again while its live text waits: no token is sent twice (the reader checks)."""
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, SuffixClient(address) as client:
        cache.namespace(PATH).add_output([1])
        session = client.namespace(PATH).open_session([1])
        with WatchReader(address) as reader:
            text: list[int] = []
            for n in range(30):
                session.step([n])
                text.append(n)
                reader.follow(PATH)
            session_id = session.verbs.state.session_id
            reader.until(
                lambda: PATH in reader.held and reader.held[PATH].live_texts().get(session_id) == text,
                "the text is complete",
            )
        session.close(commit=False)
