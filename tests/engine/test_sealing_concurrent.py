"""Deletions, stops and steps while segments are built, merged and loaded."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sealing_testing import (
    BATCH,
    NS,
    all_there,
    files,
    fill_random,
    ngrams,
    open_cache,
    output,
)

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import (
    SegmentCancelledError,
)
from suffixsvc.index.segment_map import SegmentMap
from support.engine_parts import parts_of, unindexer_of


def at(point: str, action: Callable[[], None]) -> Callable[[str], None]:
    """A sync point function that calls ``action`` once at a named point."""
    left = [action]

    def hook(name: str) -> None:
        if name == point and left:
            left.pop()()

    return hook


@pytest.mark.parametrize(
    "point",
    ["seal-read", "seal-built", "seal-entered", "merge-built", "merge-entered", "merge-published"],
)
@pytest.mark.parametrize("many", [False, True])
def test_forgetting_while_a_file_is_made_holds(tmp_path: Path, point: str, many: bool) -> None:
    """An output that is deleted at that moment is in the file that is being written."""
    folder = tmp_path / "d"
    cache: SuffixCache

    def forget() -> None:
        if many:
            assert parts_of(cache).outputs.forget_many(NS, [2, 3, 11]) == 3
        else:
            for output_id in (2, 3, 11):
                cache.namespace(NS).delete(output_ids=[output_id])

    with open_cache(folder, BATCH, sync_point=at(point, forget)) as cache:
        fill_random(cache)
        cache.compact()
        all_there(cache, 9)
        assert parts_of(cache).catalog.index_of(NS).sealed()[0].segment.outputs() == [
            1,
            4,
            5,
            6,
            7,
            8,
            9,
            10,
            12,
        ]
    with open_cache(folder, BATCH) as cache:
        all_there(cache, 9)
        cache.compact()
        all_there(cache, 9)
        assert parts_of(cache).store.tombstones(NS) == {}


def test_forgetting_all_of_what_is_about_to_be_merged_leaves_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: an eviction deleted the last outputs of two segments between the plan of their merge and
    the merge: a segment without outputs was added to the manifest, and every query of the namespace's size
    (each write, its statistics) raised ZeroDivisionError until the next restart."""
    folder = tmp_path / "d"
    with open_cache(folder, BATCH) as cache:
        fill_random(cache)
        cache.seal()
        begin = SegmentMap.begin

        def all_goes(segments: SegmentMap) -> None:
            begin(segments)
            parts_of(cache).outputs.forget_many(NS, range(1, 13))

        with monkeypatch.context() as patch:
            patch.setattr(SegmentMap, "begin", all_goes)
            parts_of(cache).maintenance.sealer.merge_all(parts_of(cache).catalog.index_of(NS))  # type: ignore[union-attr]  # has a folder
        assert cache.namespace(NS).stats().held_bytes == 0
        assert (parts_of(cache).store.segments(NS), files(folder)) == ([], [])
        all_there(cache, 0)
        fill_random(cache)
        cache.compact()
        all_there(cache, 12)
    with open_cache(folder, BATCH) as cache:
        all_there(cache, 12)


@pytest.mark.parametrize("point", ["seal-entered", "merge-entered"])
def test_forgetting_that_is_half_done_waits_for_the_exchange(tmp_path: Path, point: str) -> None:
    """Regression: an output moved between its deletion from the log and from the index, and was removed from
    neither location. The store adds no file before the index has the earlier deletions."""
    folder = tmp_path / "d"
    with open_cache(folder, BATCH) as cache:
        fill_random(cache)
        if point == "merge-entered":
            cache.seal()
        entered, told, go_on = threading.Event(), threading.Event(), threading.Event()
        parts_of(cache).maintenance.sealer.builder.sync_point = at(point, entered.set)  # type: ignore[union-attr]  # has a folder
        forgotten = unindexer_of(cache).forgotten

        def late(gone: Any) -> None:
            told.set()
            assert go_on.wait(60)
            forgotten(gone)

        parts_of(cache).store.set_deletion_listener(late)
        failures: list[BaseException] = []

        def work(call: Callable[[], object]) -> None:
            try:
                call()
            except BaseException as error:
                failures.append(error)

        forget = threading.Thread(target=work, args=[lambda: parts_of(cache).outputs.forget_many(NS, [3, 4])])
        forget.start()
        assert told.wait(60)
        assert len(parts_of(cache).store.output_ids(NS, 1, 12)) == 10, "the log has let go"
        compact = threading.Thread(target=work, args=[cache.compact])
        compact.start()
        assert not entered.wait(0.2), "outputs changed places while they were being forgotten"
        go_on.set()
        forget.join()
        compact.join()
        assert entered.is_set()
        assert not failures
        all_there(cache, 10)


def test_a_stop_ends_a_build_and_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "d"
    with open_cache(folder, BATCH) as cache:
        fill_random(cache)
        parts_of(cache).maintenance.sealer.builder.cancel()  # type: ignore[union-attr]  # a cache with a folder has it
        with pytest.raises(SegmentCancelledError):
            cache.seal()
        assert files(folder) == []
        all_there(cache, 12)


def test_everything_at_once(tmp_path: Path) -> None:
    """Concurrent writers, readers and deletions besides the background thread, with batches of a few
    outputs."""
    folder = tmp_path / "d"
    failures: list[BaseException] = []
    with open_cache(folder, Limits(seal_tokens=150), background=True) as cache:
        namespace = cache.namespace(NS)

        def work(number: int) -> None:
            random = Random(number)
            mine: list[int] = []
            try:
                for round_ in range(40):
                    session = namespace.open_session([random.randrange(20) for _ in range(10)])
                    for _ in range(4):
                        session.step([random.randrange(6) for _ in range(5)], max_draft_tokens=4)
                        if round_ % 3 == 0:
                            session.append_context([7, 7])
                    kept = session.close(commit=round_ % 5 > 0)
                    mine += [] if kept is None else [kept]
                    mine += namespace.add_outputs([output([random.randrange(6)] * 9) for _ in range(3)])
                    if round_ % 4 == 3:
                        for _ in range(6):
                            namespace.delete(output_ids=[mine.pop(random.randrange(len(mine)))])
                    elif round_ % 4 == 1:
                        chosen = [mine.pop(random.randrange(len(mine))) for _ in range(4)]
                        assert parts_of(cache).outputs.forget_many(NS, chosen) == 4
                    left.update({number: len(mine)})
            except BaseException as error:
                failures.append(error)

        left: dict[int, int] = {}
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        cache.compact()
        ngrams(cache, 2)
        for thread in threads:
            thread.join()
        assert not failures
        cache.seal()
        all_there(cache, sum(left.values()))
        assert cache.stats().hot_tokens == 0
        assert cache.stats().index_nodes == 1
    with open_cache(folder) as cache:
        all_there(cache, sum(left.values()))
