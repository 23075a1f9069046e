"""A range of the log that was loaded in part, after a damaged segment was taken out of use."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from sealing_testing import NS, damage, ngram_oracle, ngrams, open_cache, output

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import SegmentCorruptError, StoreError
from suffixsvc.types import StoredOutput
from support.engine_parts import parts_of

OUTPUTS = 30
LENGTH = 2_000
#: a whole range is loaded hot; three files of ten outputs each
HOT, IN_FILES = 100_000, 20_000


@pytest.fixture(params=[HOT, IN_FILES], ids=["hot", "in files"])
def damaged(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SuffixCache]:
    """A cache in use whose only segment is known to be damaged."""
    random = Random(1)
    with open_cache(tmp_path / "d", Limits(seal_tokens=HOT)) as cache:
        cache.namespace(NS).add_outputs(
            [output([random.randrange(50) for _ in range(LENGTH)], tail=[1, 2]) for _ in range(OUTPUTS)]
        )
        cache.compact()
    with open_cache(tmp_path / "d", Limits(seal_tokens=request.param)) as cache:
        (sealed,) = parts_of(cache).catalog.index_of(NS).sealed()
        damage(Path(sealed.segment.path))
        with pytest.raises(SegmentCorruptError):
            cache.check()
        yield cache


def breaking_after(cache: SuffixCache, rows: int) -> Callable[..., Iterator[StoredOutput]]:
    """The store's scan, which fails after a number of rows."""
    scan = parts_of(cache).store.scan

    def breaks(*args: Any, **more: Any) -> Iterator[StoredOutput]:
        for number, stored in enumerate(scan(*args, **more)):
            if number == rows:
                raise StoreError("injected")
            yield stored

    return breaks


def look(cache: SuffixCache) -> None:
    assert parts_of(cache).maintenance is not None
    parts_of(cache).maintenance.run_once()


def all_there(cache: SuffixCache, count: int) -> None:
    cache.check()
    kept = [stored.output for stored in parts_of(cache).store.scan(NS)]
    assert len(kept) == cache.stats().outputs == count
    assert ngrams(cache, 2) == ngram_oracle(kept, 2)


@pytest.mark.parametrize("rows", [0, 7, 10, 25])
def test_a_range_that_was_read_in_part_is_read_to_its_end_before_it_is_sealed(
    damaged: SuffixCache, monkeypatch: pytest.MonkeyPatch, rows: int
) -> None:
    """Regression: the store failed while a repair read its rows: the index held some of them and counted the
    rest as hot. The next seal removed texts from the hot index that were not in it: the namespace had -60,000
    hot tokens, no error was reported, and a check raised IndexCorruptError."""
    cache = damaged
    with monkeypatch.context() as broken:
        broken.setattr(parts_of(cache).store, "scan", breaking_after(cache, rows))
        look(cache)
        assert cache.background_tasks()["maintenance"].failures == 1
        with pytest.raises(StoreError, match="injected"):
            cache.seal()
    cache.seal()
    assert cache.stats().hot_tokens == 0
    all_there(cache, OUTPUTS)
    assert cache.compact() == 1
    assert cache.stats().index_nodes == 1
    all_there(cache, OUTPUTS)


def test_forgetting_in_a_range_that_was_read_in_part_holds(
    damaged: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: forgetting an output that was not loaded yet raised IndexCorruptError, although the log had
    deleted it."""
    cache = damaged
    namespace = cache.namespace(NS)
    with monkeypatch.context() as broken:
        broken.setattr(parts_of(cache).store, "scan", breaking_after(cache, 15))
        look(cache)
    for output_id in (3, 12, 20):  # in the first file or hot, in the second or hot, in none
        namespace.delete(output_ids=[output_id])
    written = namespace.add_output([7] * 50)
    assert written == OUTPUTS + 3 + 1, "the deletions have ids, too"
    cache.check()
    all_there(cache, OUTPUTS - 2)
    cache.seal()
    all_there(cache, OUTPUTS - 2)


def test_maintenance_reads_the_rest_by_itself(damaged: SuffixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: no later run loaded the rest, because the damaged segment was no longer in use."""
    cache = damaged
    with monkeypatch.context() as broken:
        broken.setattr(parts_of(cache).store, "scan", breaking_after(cache, 7))
        look(cache)
    end = time.monotonic() + 60
    while cache.stats().outputs < OUTPUTS:  # after a failure it pauses
        assert time.monotonic() < end
        look(cache)
        time.sleep(0.01)
    all_there(cache, OUTPUTS)


def test_a_namespace_with_a_range_that_was_read_in_part_is_deleted(
    damaged: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = damaged
    with monkeypatch.context() as broken:
        broken.setattr(parts_of(cache).store, "scan", breaking_after(cache, 15))
        look(cache)
    assert cache.delete_namespace(NS) == OUTPUTS
    cache.namespace(NS).add_output([1, 2, 3])
    all_there(cache, 1)
