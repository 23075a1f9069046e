"""What a copy holds: contents, segments, limits, use."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from follower_testing import (
    PATH,
    Feeder,
    array,
    draft_of,
    never_commits,
    open_local,
    require_equal,
    rows,
)

from suffixsvc import Limits, SuffixCache
from suffixsvc.core.segments import Segment
from suffixsvc.errors import SegmentCorruptError
from suffixsvc.index import Sealed
from suffixsvc.log_types import Deletion, LogPosition, NamespaceContents, SealedContents
from suffixsvc.types import NewOutput, StoredOutput
from suffixsvc_follower.contents.mirrors import LivePiece
from suffixsvc_follower.contents.namespace_copy import NamespaceCopy


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[SuffixCache]:
    with SuffixCache(tmp_path / "d", limits=Limits(seal_tokens=100), background=False) as cache:
        yield cache


@pytest.fixture
def one_batch(tmp_path: Path) -> Iterator[SuffixCache]:
    """A cache that seals everything into one segment."""
    with SuffixCache(tmp_path / "d", background=False) as cache:
        yield cache


def fill(cache: SuffixCache, count: int, length: int = 20) -> list[int]:
    rng = random.Random(count)
    outputs = [
        NewOutput(PATH, array(rng.randrange(500) for _ in range(length)), (length,), array([1, 2]))
        for _ in range(count)
    ]
    return cache.namespace(PATH).add_outputs(outputs)


def test_contents_are_replaced_without_inserting_what_is_held(cache: SuffixCache) -> None:
    fill(cache, 10)
    copy = NamespaceCopy(PATH)
    feeder = Feeder(cache, copy)
    feeder.load()
    cache.namespace(PATH).delete(output_ids=[3])
    before = copy.index.stats().appended
    feeder.load()
    assert copy.index.stats().appended == before
    require_equal(copy, rows(cache))


def test_contents_replace_segments(cache: SuffixCache) -> None:
    fill(cache, 20)
    cache.seal(PATH)
    copy = NamespaceCopy(PATH)
    feeder = Feeder(cache, copy)
    feeder.load()
    assert len(copy.sealed()) > 1
    cache.compact(PATH)
    feeder.load()
    assert len(copy.sealed()) == 1
    require_equal(copy, rows(cache))


def test_what_is_held_can_be_drafted_from_until_the_contents_end(cache: SuffixCache) -> None:
    namespace = cache.namespace(PATH)
    namespace.add_output(range(100, 130))
    copy = NamespaceCopy(PATH)
    feeder = Feeder(cache, copy)
    feeder.load()
    namespace.delete(output_ids=[1])
    namespace.add_output([5, 6])
    contents = cache.feed.contents(PATH)
    copy.begin_contents(contents, [])
    assert draft_of(copy, [100, 101, 102], 2) == [103, 104]
    copy.add_hot(list(cache.feed.hot_outputs(contents)))
    assert draft_of(copy, [100, 101, 102], 2) == [103, 104]
    copy.finish_contents(contents)
    assert draft_of(copy, [100, 101, 102], 2) == []
    require_equal(copy, rows(cache))


def test_an_id_of_another_log_is_another_output() -> None:
    """A service was restored from an older backup: the ids come again."""

    def stored(uuid: bytes, tokens: list[int]) -> StoredOutput:
        output = NewOutput(PATH, array(tokens), (len(tokens),), array([]), uuid=uuid)
        return StoredOutput(7, 0.0, output)

    contents = NamespaceContents(PATH, "", 1, LogPosition(1, 7, 1), SealedContents(), b"")
    copy = NamespaceCopy(PATH)
    for one in (stored(b"a" * 16, [1, 2, 3]), stored(b"b" * 16, [4, 5])):
        copy.begin_contents(contents, [])
        copy.add_hot([one])
        copy.finish_contents(contents)
        require_equal(copy, [one])


def test_contents_of_a_shorter_log_do_not_keep_what_came_after_it() -> None:
    def contents(lsn: int) -> NamespaceContents:
        return NamespaceContents(PATH, "", 1, LogPosition(1, lsn, 1), SealedContents(), b"")

    def stored(output_id: int, uuid: bytes) -> StoredOutput:
        return StoredOutput(output_id, 0.0, NewOutput(PATH, array([1, 2]), (2,), array([]), uuid=uuid))

    copy = NamespaceCopy(PATH)
    copy.begin_contents(contents(9), [])
    copy.add_hot([stored(4, b"a" * 16), stored(9, b"b" * 16)])
    copy.finish_contents(contents(9))
    copy.begin_contents(contents(4), [])
    copy.add_hot([stored(4, b"a" * 16)])
    copy.finish_contents(contents(4))
    assert copy.outputs() == {4}
    copy.apply_changes([stored(9, b"c" * 16)], [])
    assert copy.outputs() == {4, 9}


def test_only_the_first_contents_seed_the_learner(cache: SuffixCache) -> None:
    namespace = cache.namespace(PATH)
    namespace.add_output([1, 2, 3, 4] * 20)

    def step(session) -> None:  # type: ignore[no-untyped-def]
        for token in (3, 4, 1, 2) * 10:
            session.step([token])
        session.close(commit=False)

    step(namespace.open_session([1, 2]))
    copy = NamespaceCopy(PATH)
    untouched = copy.learner.save()
    feeder = Feeder(cache, copy)
    feeder.load()
    assert copy.learner.save() == cache.feed.contents(PATH).learned != untouched
    step(open_local(copy, [1, 2], never_commits))  # type: ignore[arg-type]
    learned = copy.learner.save()
    step(namespace.open_session([1, 2]))
    feeder.load()
    assert copy.learner.save() == learned != cache.feed.contents(PATH).learned


def test_deletions_of_unknown_outputs_are_ignored(cache: SuffixCache) -> None:
    fill(cache, 3)
    copy = NamespaceCopy(PATH)
    Feeder(cache, copy).load()
    copy.apply_changes([], [Deletion(1, 99, b"x" * 16)])
    require_equal(copy, rows(cache))


def test_a_row_that_comes_again_after_its_deletion_stays_deleted(cache: SuffixCache) -> None:
    fill(cache, 3)
    copy = NamespaceCopy(PATH)
    feeder = Feeder(cache, copy)
    feeder.load()
    fill(cache, 2)
    feeder.catch_up()
    cache.namespace(PATH).delete(output_ids=[5])
    feeder.catch_up()
    [outputs, _], _ = feeder.batches
    copy.apply_changes(outputs, [])
    require_equal(copy, rows(cache))


def test_sealed_outputs_leave_the_hot_index(cache: SuffixCache) -> None:
    fill(cache, 20)
    copy = NamespaceCopy(PATH)
    feeder = Feeder(cache, copy)
    feeder.load()
    cache.seal(PATH)
    feeder.send_sealed()
    assert copy.index.stats().tokens == copy.stats().hot_tokens == 0
    assert copy.mapped_bytes == sum(each.record.file_bytes for each in copy.sealed()) > 0
    cache.compact(PATH)
    cache.namespace(PATH).delete(output_ids=[4])
    feeder.catch_up()
    assert len(copy.sealed()) == 1
    require_equal(copy, rows(cache))


def test_a_segment_that_opens_late_knows_the_deletions(cache: SuffixCache) -> None:
    """Its outputs stay hot until then; one of them is deleted meanwhile."""
    fill(cache, 10)
    opens = False
    copy = NamespaceCopy(PATH)
    feeder = Feeder(cache, copy, opens=lambda: opens)
    feeder.load()
    cache.seal(PATH)
    feeder.catch_up()
    assert copy.missing_segments() == list(cache.feed.sealed(PATH).segments)
    require_equal(copy, rows(cache))
    record, *_ = copy.missing_segments()
    folder = cache._parts.store.segment_folder
    assert folder is not None
    segment = Segment(folder / record.name)  # opened before the deletion, attached after it
    cache.namespace(PATH).delete(output_ids=[record.first_lsn])
    outputs = cache.feed.changes(feeder.position, {feeder.generation})
    assert outputs is not None
    copy.apply_changes([], outputs.deletions)
    copy.attach_opened([Sealed(record, segment, record.outputs, record.tokens)])
    assert record not in copy.missing_segments()
    feeder.open_missing()
    assert copy.missing_segments() == []
    require_equal(copy, rows(cache))


def test_a_damaged_segment_is_missing_and_is_replaced(one_batch: SuffixCache, tmp_path: Path) -> None:
    fill(one_batch, 2000)
    one_batch.seal(PATH)
    copy = NamespaceCopy(PATH)
    feeder = Feeder(one_batch, copy)
    feeder.load()
    [each] = copy.sealed()
    damaged = tmp_path / "damaged.seg"
    data = bytearray(each.segment.path.read_bytes())
    data[len(data) * 3 // 4] ^= 1  # in a block that opening does not read
    damaged.write_bytes(data)
    copy.attach_opened([replace(each, segment=Segment(damaged))])
    with pytest.raises(SegmentCorruptError):
        copy.check()
    assert copy.missing_segments() == [each.record]
    feeder.open_missing()
    assert copy.missing_segments() == []
    require_equal(copy, rows(one_batch))


def test_a_cleared_copy_drafts_from_local_sessions_only(cache: SuffixCache) -> None:
    namespace = cache.namespace(PATH)
    namespace.add_output(range(100, 130))
    cache.seal(PATH)
    namespace.add_output(range(200, 230))
    copy = NamespaceCopy(PATH)
    feeder = Feeder(cache, copy)
    feeder.load()
    copy.mirrors.apply([LivePiece("remote", 0, array([]), array(range(300, 330)))])
    session = open_local(copy, [1], never_commits)  # type: ignore[arg-type]
    session.step(list(range(400, 430)))
    for start in (100, 200, 300, 400):
        assert draft_of(copy, range(start, start + 5), 2) == [start + 5, start + 6]
    copy.clear()
    for start in (100, 200, 300):
        assert draft_of(copy, range(start, start + 5), 2) == []
    assert draft_of(copy, range(400, 405), 2) == [405, 406]
    assert (copy.outputs(), copy.mapped_bytes, len(copy.mirrors)) == (set(), 0, 0)
    feeder.catch_up()
    namespace.add_output(range(500, 520))
    for outputs, deletions in [([], []), *feeder.batches]:
        copy.apply_changes(outputs, deletions)
    assert copy.outputs() == set(), "until there are contents"
    session.close(commit=False)
    assert copy.index.stats().tokens == 0
    feeder.load()
    require_equal(copy, rows(cache))


def test_a_deleted_namespace_is_cleared(cache: SuffixCache) -> None:
    fill(cache, 10)
    cache.compact(PATH)
    fill(cache, 2)
    copy = NamespaceCopy(PATH)
    Feeder(cache, copy).load()
    copy.apply_changes([], [Deletion(1, 0, b"")])
    require_equal(copy, [])


def test_outputs_that_drafts_were_taken_from(cache: SuffixCache) -> None:
    namespace = cache.namespace(PATH)
    ids = [namespace.add_output(range(start, start + 30)) for start in (100, 200, 300, 400)]
    copy = NamespaceCopy(PATH)
    feeder = Feeder(cache, copy)
    feeder.load()
    assert copy.take_used() == []
    for start in (300, 100, 300, 200):
        assert draft_of(copy, range(start, start + 5), 2)
    assert copy.take_used() == [ids[0], ids[2], ids[1]]
    assert copy.take_used() == []
    assert draft_of(copy, range(400, 405), 2)
    cache.seal(PATH)
    feeder.catch_up()
    assert draft_of(copy, range(300, 305), 2)
    assert copy.take_used() == [ids[3], ids[2]], "hot when it was used, and in a segment"
    assert draft_of(copy, range(100, 105), 2)
    cache.compact(PATH)
    feeder.catch_up()
    assert copy.take_used() == [ids[0]], "of a segment that is gone"


def test_the_newest_hot_outputs_are_held_within_a_limit(one_batch: SuffixCache) -> None:
    cache = one_batch
    ids = fill(cache, 200, length=50)
    limit = 300_000
    copy = NamespaceCopy(PATH, hot_limit_bytes=limit)
    feeder = Feeder(cache, copy)
    feeder.load()
    held = sorted(copy.outputs())
    assert held == ids[-len(held) :]
    assert 20 < len(held) < 190
    assert copy.dropped_outputs == 200 - len(held)
    assert copy._hot_bytes() <= limit
    more = fill(cache, 30, length=51)
    feeder.catch_up()
    now = sorted(copy.outputs())
    assert now == [*ids, *more][-len(now) :]
    cache.namespace(PATH).delete(output_ids=[ids[0]])
    feeder.catch_up()
    assert sorted(copy.outputs()) == now, "one that is not held"
    require_equal(copy, [stored for stored in rows(cache) if stored.output_id in now])
    cache.seal(PATH)
    feeder.catch_up()
    require_equal(copy, rows(cache))


def test_the_order_of_hot_outputs_is_bounded(cache: SuffixCache) -> None:
    """Outputs that leave otherwise than by the limit leave the order, too."""
    copy = NamespaceCopy(PATH, hot_limit_bytes=1 << 30)
    feeder = Feeder(cache, copy)
    for _ in range(5):
        fill(cache, 60)
        feeder.catch_up()
        cache.seal(PATH)
        feeder.catch_up()
    assert len(copy._oldest) < 200


def test_contents_are_replaced_within_the_limit(cache: SuffixCache) -> None:
    fill(cache, 200, length=50)
    copy = NamespaceCopy(PATH, hot_limit_bytes=300_000)
    feeder = Feeder(cache, copy)
    feeder.load()
    before = copy.outputs()
    feeder.load()
    assert len(copy.outputs()) >= len(before) - 2
    assert max(copy.outputs()) == max(before)
    require_equal(copy, [stored for stored in rows(cache) if stored.output_id in copy.outputs()])


def test_held_bytes_rise_and_fall(cache: SuffixCache) -> None:
    fill(cache, 100, length=50)
    copy = NamespaceCopy(PATH)
    empty = copy.held_bytes
    Feeder(cache, copy).load()
    full = copy.held_bytes
    assert full - empty > 100 * 50 * 40
    copy.clear()
    assert copy.held_bytes < empty + (full - empty) / 2
