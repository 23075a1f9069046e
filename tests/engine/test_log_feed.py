"""The feed of the log: contents of a namespace and its changes, read while others write."""

from __future__ import annotations

import gc
import random
import threading
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from suffixsvc import Limits, SuffixCache
from suffixsvc.core.segments import Segment
from suffixsvc.engine.log_feed import LogFeed
from suffixsvc.errors import SessionClosedError, StoreClosedError, UnknownNamespaceError
from suffixsvc.log_types import LogPosition
from support.long_form import rounds

PATH = "acme/sql"
#: outputs, as each one that is read may be followed by another write
MOST = 40


class SegmentGoneError(Exception):
    """A segment was merged before the reader opened it: the reader begins again."""


class Reader:
    """What a reader holds of one namespace: output ids, and their tokens where it has read them."""

    def __init__(self, feed: LogFeed, folder: Path | None, between: Callable[[], object]) -> None:
        self.feed = feed
        self.contents = feed.contents(PATH)
        self.position = self.contents.position
        self.generations = {self.contents.generation}
        between()
        self.ids: set[int] = set()
        for record in self.contents.sealed.segments:
            assert folder is not None
            if not (folder / record.name).exists():
                raise SegmentGoneError
            segment = Segment(folder / record.name, self.contents.sealed.deleted)
            self.ids |= set(segment.outputs())
        between()
        for stored in feed.hot_outputs(self.contents):
            self.ids.add(stored.output_id)
            between()

    def catch_up(self) -> None:
        """Apply the changes up to the end of the log."""
        while self.position != self.feed.position():
            self.generations.add(self.feed.generation(PATH))
            found = self.feed.changes(self.position, self.generations)
            assert found is not None
            self.ids |= {stored.output_id for _, stored in found.outputs}
            for deletion in found.deletions:
                self.ids = self.ids - {deletion.output_id} if deletion.output_id else set()
            self.position = found.position


@pytest.mark.parametrize("seed", range(rounds(4, full=8)))
def test_contents_and_changes_are_what_the_log_holds(place: Path | None, seed: int) -> None:
    """Outputs are written, forgotten, sealed and merged at every point of the reading."""
    rng = random.Random(seed)
    with SuffixCache(place, limits=Limits(seal_tokens=64), background=False) as cache:
        namespace = cache.namespace(PATH)
        namespace.add_output([1, 2, 3])

        def change() -> None:
            if rng.random() < 0.5:
                return
            ids = [each.output_id for each in cache._parts.store.scan(PATH)]
            match rng.randrange(6) if len(ids) < MOST else 2:
                case 0 | 1:
                    namespace.add_output([rng.randrange(9) for _ in range(rng.randrange(1, 30))])
                case 2 if len(ids) > 1:
                    namespace.delete(output_ids=[rng.choice(ids)])
                case 3:
                    cache.seal(PATH)
                case 4:
                    cache.compact(PATH)
                case _:
                    with namespace.open_session([1]) as session:
                        session.step([rng.randrange(9) for _ in range(5)])

        for _ in range(30):
            change()
        folder = cache._parts.store.segment_folder
        reader = Reader(cache.feed, folder, lambda: None)
        assert reader.ids == {each.output_id for each in cache._parts.store.scan(PATH)}
        for _ in range(20):
            try:
                reader = Reader(cache.feed, folder, change)
            except SegmentGoneError:
                continue
            reader.catch_up()
            assert reader.ids == {each.output_id for each in cache._parts.store.scan(PATH)}
            change()
            reader.catch_up()
            assert reader.ids == {each.output_id for each in cache._parts.store.scan(PATH)}


def test_contents_of_a_namespace(cache: SuffixCache) -> None:
    with pytest.raises(UnknownNamespaceError):
        cache.feed.contents(PATH)
    namespace = cache.namespace(PATH, "fingerprint")
    empty = cache.feed.contents(PATH)
    assert (empty.tokenizer, empty.generation, empty.position.lsn) == ("fingerprint", 0, 0)
    assert list(cache.feed.hot_outputs(empty)) == []
    first = namespace.add_output([1, 2])
    contents = cache.feed.contents(PATH)
    assert contents.generation > 0
    assert contents.position.lsn == first
    assert [stored.output_id for stored in cache.feed.hot_outputs(contents)] == [first]
    namespace.add_output([3])
    assert [stored.output_id for stored in cache.feed.hot_outputs(contents)] == [first], (
        "later ones are changes"
    )


def test_what_drafting_learned_is_part_of_the_contents(cache: SuffixCache) -> None:
    namespace = cache.namespace(PATH)
    namespace.add_output([1, 2, 3, 4] * 20)
    before = cache.feed.contents(PATH).learned
    with namespace.open_session([1, 2]) as session:
        for token in (3, 4, 1, 2) * 10:
            session.step([token])
    assert cache.feed.contents(PATH).learned != before


def test_a_deleted_namespace_and_its_successor(cache: SuffixCache) -> None:
    cache.namespace(PATH).add_output([1, 2])
    reader = Reader(cache.feed, cache._parts.store.segment_folder, lambda: None)
    cache.delete_namespace(PATH)
    assert cache.feed.generation(PATH) == 0
    reader.catch_up()
    assert reader.ids == set()
    new = cache.namespace(PATH).add_output([3])
    reader.catch_up()
    assert reader.ids == {new}


def test_a_wait_ends_with_a_commit_and_not_without(cache: SuffixCache) -> None:
    namespace = cache.namespace(PATH)
    events = cache.feed.events
    assert not cache.feed.wait(events, 0.01)
    ended = threading.Event()

    def wait() -> None:
        assert cache.feed.wait(events, 60)
        ended.set()

    waiter = threading.Thread(target=wait)
    waiter.start()
    namespace.add_output([1])
    assert ended.wait(60)
    waiter.join()
    assert cache.feed.wait(events, 60), "a commit before the wait counts"


def test_a_closed_cache_has_no_feed(place: Path | None) -> None:
    with SuffixCache(place) as cache:
        cache.namespace(PATH).add_output([1])
        contents = cache.feed.contents(PATH)
    for call in (
        cache.feed.position,
        lambda: cache.feed.contents(PATH),
        lambda: cache.feed.changes(LogPosition(0, 0, 0), ()),
        lambda: list(cache.feed.hot_outputs(contents)),
    ):
        with pytest.raises((SessionClosedError, StoreClosedError)):
            call()


def test_a_cache_that_is_not_closed_is_collected(tmp_path: Path) -> None:
    """The store's thread refers to the feed, and does not keep it alive."""
    cache = SuffixCache(tmp_path / "d")
    cache.namespace(PATH).add_output([1])
    feed = weakref.ref(cache.feed)
    del cache
    gc.collect()
    assert feed() is None
