"""Sealing and merging: contents, drafts, deletions and restarts."""

from __future__ import annotations

from pathlib import Path

import pytest
from sealing_testing import LIMITS, NS, SQL, files, fill, ngram_oracle, ngrams, open_cache, output

from suffixsvc import Limits, SuffixCache
from suffixsvc.engine.sealing.tiering import MAX_SEGMENTS
from suffixsvc.errors import UnknownNamespaceError
from suffixsvc.store import LmdbStore
from support.engine_parts import parts_of


def test_sealed_outputs_leave_the_hot_index_and_count_as_before(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        fill(cache, 10)
        cache.namespace(NS).add_output([1, 2, 3])
        before = cache.namespace(NS).stats()
        counted = ngrams(cache, 3)
        assert cache.seal() == 11
        after = cache.namespace(NS).stats()
        assert (after.outputs, after.tokens) == (before.outputs, before.tokens) == (11, 203)
        assert (after.hot_tokens, after.index_nodes) == (0, 1)
        assert after.segments == 4, "60 tokens a batch"
        assert after.segment_bytes == sum(p.stat().st_size for p in (tmp_path / "d/segments").iterdir())
        assert ngrams(cache, 3) == counted
        assert cache.seal() == 0
        cache.check()


def test_what_is_sealed_is_drafted(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        fill(cache, 6)
        cache.compact()
    with open_cache(tmp_path / "d") as cache:
        assert cache.stats().hot_tokens == 0
        draft = cache.namespace(NS).open_session([5]).step(SQL[:9], verify_cost=0.01)
        assert draft.token_ids.tolist()[:4] == SQL[9:13]


def test_a_restart_maps_segments_and_indexes_only_the_rest(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    with open_cache(tmp_path / "d") as cache:
        ids = fill(cache, 6)
        cache.seal()
        cache.namespace(NS).delete(output_ids=[ids[1]])
        later = cache.namespace(NS).add_output(SQL)
        names = files(tmp_path / "d")
    with open_cache(tmp_path / "d", progress=lambda *at: told.append(at)) as cache:
        assert told[-1] == (6, 6)
        stats = cache.namespace(NS).stats()
        assert (stats.outputs, stats.tokens, stats.hot_tokens, stats.segments) == (6, 130, 30, 2)
        assert files(tmp_path / "d") == names
        for output_id in (*ids[2:], ids[0], later):
            cache.namespace(NS).delete(output_ids=[output_id])
            cache.check()
        assert cache.stats().outputs == cache.stats().tokens == 0
        assert ngrams(cache, 2) == {}
        assert cache.namespace(NS).delete(output_ids=[ids[1]]).outputs == 0


def test_forgotten_outputs_stay_forgotten_through_merges_and_restarts(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        ids = fill(cache, 12)
        cache.seal()
        for output_id in ids[::3]:
            cache.namespace(NS).delete(output_ids=[output_id])
        assert cache.compact() == 1
        assert parts_of(cache).store.tombstones(NS) == {}
        cache.check()
        cache.namespace(NS).delete(output_ids=[ids[1]])
    for _ in range(2):
        with open_cache(tmp_path / "d") as cache:
            left = [stored.output for stored in parts_of(cache).store.scan(NS)]
            assert len(left) == 7
            for n in (1, 2, 4):
                assert ngrams(cache, n) == ngram_oracle(left, n)
            cache.check()


def test_merging_is_tiered_and_keeps_few_segments(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d", Limits(seal_tokens=20)) as cache:
        with parts_of(cache).exclusive() as sealer:
            assert sealer is not None
            fill(cache, 1)
            index = parts_of(cache).catalog.index_of(NS)
            most = 0
            for _ in range(40):
                fill(cache, 1)
                while sealer.seal(index):
                    pass
                while sealer.merge(index):
                    pass
                most = max(most, len(index.sealed()))
        assert most <= MAX_SEGMENTS
        assert sum(each.outputs for each in index.sealed()) == 41
        assert index.sealed()[0].outputs >= 15
        cache.check()
    assert len(files(tmp_path / "d")) <= MAX_SEGMENTS


def test_segments_of_which_all_is_forgotten_go(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        ids = fill(cache, 9)
        cache.seal()
        assert len(files(tmp_path / "d")) == 3
        for output_id in ids[3:6]:
            cache.namespace(NS).delete(output_ids=[output_id])
        with parts_of(cache).exclusive() as sealer:
            assert sealer is not None
            assert sealer.merge(parts_of(cache).catalog.index_of(NS))
            assert not sealer.merge(parts_of(cache).catalog.index_of(NS))
        assert len(files(tmp_path / "d")) == 2
        cache.check()
        for output_id in (*ids[:3], *ids[6:]):
            cache.namespace(NS).delete(output_ids=[output_id])
        assert cache.compact() == 0
        assert files(tmp_path / "d") == []
        cache.check()


def test_a_segment_with_much_forgotten_is_written_anew_without_it(tmp_path: Path) -> None:
    """The only way in which deleted bytes leave a segment without adjacent segments."""
    with open_cache(tmp_path / "d", Limits(seal_tokens=1000)) as cache:
        secret = 1234567
        kept = fill(cache, 2)
        ids = cache.namespace(NS).add_outputs([output([secret] * 30)])
        cache.seal()
        (name,) = files(tmp_path / "d")
        raw = secret.to_bytes(4, "little")
        assert raw in (tmp_path / "d/segments" / name).read_bytes()
        cache.namespace(NS).delete(output_ids=[ids[0]])
        with parts_of(cache).exclusive() as sealer:
            assert sealer is not None
            assert sealer.merge(parts_of(cache).catalog.index_of(NS))
        (name,) = files(tmp_path / "d")
        assert raw not in (tmp_path / "d/segments" / name).read_bytes()
        assert parts_of(cache).catalog.index_of(NS).sealed()[0].segment.outputs() == kept
        cache.check()


def test_expiry_reaches_into_segments(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        cache.namespace(NS).add_outputs([output(SQL, ttl_seconds=5 * (i % 2)) for i in range(8)])
        cache.seal()
        assert cache.expire(4e9) == 4
        assert cache.stats().outputs == 4
        cache.check()
        assert cache.compact() == 1
        cache.check()


def test_forgetting_many_at_once_reaches_hot_and_sealed(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        ids = fill(cache, 6)
        cache.seal()
        ids += fill(cache, 3)
        assert parts_of(cache).outputs.forget_many(NS, [*ids[1:8], 999]) == 7
        assert [stored.output_id for stored in parts_of(cache).store.scan()] == [ids[0], ids[8]]
        cache.check()


def test_outputs_of_several_turns_are_sealed_as_they_were_logged(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        session = cache.namespace(NS).open_session([1, 2, 3])
        session.step(SQL[:10], max_draft_tokens=0)
        session.append_context([55, 56])
        session.step(SQL[10:], max_draft_tokens=0)
        session.close()
        (stored,) = parts_of(cache).store.scan()
        assert stored.output.segment_lens == (10, 20)
        assert cache.seal() == 1
        assert cache.namespace(NS).stats().index_nodes == 1
        for n in (1, 2, 3):
            assert ngrams(cache, n) == ngram_oracle([stored.output], n)


def test_namespaces_are_sealed_apart(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        for i in range(8):
            path = ("a", "b/c")[i % 2]
            cache.namespace(path).add_outputs([output([i] * 20, namespace=path)])
        assert cache.seal("a") == 4
        assert cache.namespace("b/c").stats().segments == 0
        assert cache.compact("b/c") == 1
        with pytest.raises(UnknownNamespaceError):
            cache.seal("nowhere")
        cache.check()
    with open_cache(tmp_path / "d") as cache:
        assert (cache.stats().hot_tokens, cache.stats().outputs) == (0, 8)
        assert ngrams(cache, 1, "a") == {(i,): 20 for i in (0, 2, 4, 6)}


def test_a_cache_in_memory_never_seals() -> None:
    with SuffixCache(limits=LIMITS) as cache:
        fill(cache, 9)
        assert cache.seal() == cache.compact() == 0
        assert cache.stats().hot_tokens == 180
        cache.check()


def test_compacting_reports_progress(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with open_cache(tmp_path / "d") as cache:
        for path in ("a", "b"):
            cache.namespace(path).add_outputs([output(SQL, namespace=path)])
        assert cache.compact(progress=lambda *at: seen.append(at)) == 2
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_a_folder_from_before_segments_is_served_and_can_be_sealed(tmp_path: Path) -> None:
    with open_cache(tmp_path / "d") as cache:
        fill(cache, 5)
    assert files(tmp_path / "d") == []
    store = LmdbStore(tmp_path / "d")
    assert store.segments(NS) == []
    store.close()
    with open_cache(tmp_path / "d") as cache:
        assert cache.stats().outputs == 5
        cache.compact()
        cache.check()


def test_a_long_log_without_segments_is_sealed_while_it_is_opened(tmp_path: Path) -> None:
    """The hot index would take several times the memory."""
    with open_cache(tmp_path / "d") as cache:
        fill(cache, 10)
        counted = ngrams(cache, 2)
    with open_cache(tmp_path / "d") as cache:
        stats = cache.stats()
        assert (stats.outputs, stats.segments, stats.hot_tokens) == (10, 3, 20)
        assert ngrams(cache, 2) == counted
        cache.check()
