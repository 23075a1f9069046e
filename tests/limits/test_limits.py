"""Limits of namespaces: eviction by use, writes in flight, failures of the store."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from limits_testing import KIB, OUTPUT, add, draft_from, ids, index_is_log, output, text

from suffixsvc import Policies, Policy, SuffixCache
from suffixsvc.engine.limits.eviction import BATCH_OUTPUTS, LOW_WATERMARK
from suffixsvc.engine.limits.size_estimates import predicted_bytes
from suffixsvc.errors import InvalidConfigError, LimitExceededError, StoreError, StoreFullError
from suffixsvc.runtime.sync_points import with_sync_points
from suffixsvc.types import NewOutput
from support.engine_parts import index_of, parts_of


def test_a_namespace_stays_within_its_bytes_and_its_neighbours_keep_theirs(small: SuffixCache) -> None:
    before = add(small, "free", range(1000, 1050))
    sibling = add(small, "small/other", [2000])
    written: list[int] = []
    for seed in range(60):
        written += add(small, "small/ns", [seed])
        stats = small.namespace("small/ns").stats()
        assert 0 < stats.held_bytes <= stats.limit_bytes == 100 * KIB
    assert ids(small, "small/ns") == written[-stats.outputs :], "the oldest go first"
    assert stats.evicted_outputs == 60 - stats.outputs
    assert stats.held_bytes > 80 * KIB, "no more goes than has to"
    assert ids(small, "free") == before
    assert ids(small, "small/other") == sibling
    assert small.stats().evicted_outputs == stats.evicted_outputs
    assert small.namespace("free").stats().limit_bytes == 0


def test_what_was_evicted_is_not_drafted_and_its_memory_is_back(small: SuffixCache) -> None:
    for seed in range(60):
        add(small, "small/ns", [seed])
    assert draft_from(small, "small/ns", 59) > 0
    assert draft_from(small, "small/ns", 0) == 0
    held = index_of(small.namespace("small/ns")).index.stats()
    assert held.used < 100 * KIB


def test_bulk_that_fits_is_kept_whole_and_bulk_that_cannot_is_refused(small: SuffixCache) -> None:
    """A call never evicts its own outputs."""
    namespace = small.namespace("small/ns")
    fits = 100 * KIB // OUTPUT
    old = add(small, "small/ns", range(100, 100 + fits))
    new = add(small, "small/ns", range(fits))
    assert ids(small, "small/ns")[-fits:] == new
    with pytest.raises(LimitExceededError, match="outputs together must be smaller") as caught:
        add(small, "small/ns", range(200, 201 + fits))
    assert str(100 * KIB) in str(caught.value.expected)
    assert "max_bytes" in str(caught.value.remedy)
    assert set(ids(small, "small/ns")) <= {*old, *new}
    assert namespace.stats().refused_outputs == 0, "it counts sessions only: here the caller got an error"


def test_an_output_larger_than_its_namespace_is_refused_by_name(small: SuffixCache) -> None:
    kept = add(small, "small/ns", [1])
    with pytest.raises(
        LimitExceededError, match="an output must be smaller than the limit of namespace small/ns"
    ):
        small.namespace("small/ns").add_output(text(2, 5000))
    assert ids(small, "small/ns") == kept


def test_a_session_that_wrote_too_much_closes_all_the_same(small: SuffixCache) -> None:
    namespace = small.namespace("small/ns")
    kept = add(small, "small/ns", [1])
    session = namespace.open_session([1, 2, 3])
    for start in range(0, 5000, 100):
        session.step(text(2, 5000)[start : start + 100])
    assert session.close() is None
    assert session.close() is None
    assert session.closed
    assert namespace.stats().refused_outputs == small.stats().refused_outputs == 1
    assert namespace.stats().sessions == 0
    assert ids(small, "small/ns") == kept
    assert draft_from(small, "small/ns", 2, 5000) == 0, "what is not kept is not drafted"


def test_sessions_evict_when_they_close(small: SuffixCache) -> None:
    namespace = small.namespace("small/ns")
    for seed in range(30):
        session = namespace.open_session([7, 8])
        session.step(text(seed)[:120], 0)
        session.append_context([5] * 20)
        session.step(text(seed)[120:], 0)
        output_id = session.close()
        assert output_id == ids(small, "small/ns")[-1]
        assert namespace.stats().held_bytes <= 100 * KIB
    assert namespace.stats().evicted_outputs > 0


def test_a_close_that_waits_for_nothing_leaves_eviction_to_the_next(small: SuffixCache) -> None:
    namespace = small.namespace("small/ns")
    for seed in range(30):
        session = namespace.open_session([7, 8])
        session.step(text(seed), 0)
        assert session.close(wait=False) is None
    parts_of(small).store.put_state("small/ns", "barrier", b"")  # after the commits above
    assert namespace.stats().refused_outputs == 0
    assert namespace.stats().held_bytes > 100 * KIB
    assert small.evict() > 0
    assert namespace.stats().held_bytes <= 100 * KIB


def test_what_a_slow_disk_has_not_written_yet_pins_nothing(tmp_path: Path) -> None:
    """Regression: at a namespace's limit, outputs on their way into the log counted as pinned: of 30 closes
    without wait, 25 lost their output on a slow disk. Here nothing is written before all are closed."""
    shut, opened = threading.Event(), threading.Event()

    def slow(point: str) -> None:
        if point == "written" and shut.is_set():
            assert opened.wait(60)

    policies = Policies({"small": Policy(max_bytes=100 * KIB)})
    with with_sync_points(SuffixCache, slow)(tmp_path / "data", policies=policies) as cache:
        namespace = cache.namespace("small/ns")
        add(cache, "small/ns", [100])
        shut.set()
        for seed in range(30):
            session = namespace.open_session([7, 8])
            session.step(text(seed), 0)
            session.close(wait=False)
        opened.set()
        parts_of(cache).store.barrier()
        assert namespace.stats().refused_outputs == 0
        assert namespace.stats().outputs == 31
        assert cache.evict() > 0
        assert namespace.stats().held_bytes <= 100 * KIB
        index_is_log(cache)


def test_what_is_on_its_way_and_will_stay_does_count(tmp_path: Path) -> None:
    """A pinned namespace does not admit more than fits while the disk is slow."""
    shut, opened = threading.Event(), threading.Event()

    def slow(point: str) -> None:
        if point == "written" and shut.is_set():
            assert opened.wait(60)

    pinned = Policies({"docs": Policy(max_bytes=100 * KIB, pinned=True)})
    with with_sync_points(SuffixCache, slow)(tmp_path / "data", policies=pinned) as cache:
        namespace = cache.namespace("docs")
        shut.set()
        for seed in range(30):
            session = namespace.open_session([7, 8])
            session.step(text(seed), 0)
            session.close(wait=False)
        opened.set()
        parts_of(cache).store.barrier()
        fit = 100 * KIB // OUTPUT
        assert namespace.stats().outputs == fit
        assert namespace.stats().refused_outputs == 30 - fit
        assert namespace.stats().held_bytes <= 100 * KIB
        index_is_log(cache)


def test_what_was_drafted_from_stays(small: SuffixCache) -> None:
    first = add(small, "small/ns", [0])
    for seed in range(1, 60):
        add(small, "small/ns", [seed])
        assert draft_from(small, "small/ns", 0) > 0
    kept = ids(small, "small/ns")
    assert first[0] in kept
    assert kept[1] > 20, "the others went in the order they came"


def test_another_namespace_that_reads_it_keeps_it_in_use(small: SuffixCache) -> None:
    first = add(small, "small/ns", [0])
    for seed in range(1, 60):
        add(small, "small/ns", [seed])
        session = small.namespace("reader").open_session([1], reads=["small/ns"])
        assert len(session.step(text(0)[:16], 16, 0.01))
        session.close(commit=False)
    assert first[0] in ids(small, "small/ns")


def test_what_was_drafted_from_stays_after_a_restart(tmp_path: Path) -> None:
    policies = Policies({"ns": Policy(max_bytes=100 * KIB)})
    with SuffixCache(tmp_path / "data", policies=policies) as cache:
        old = [add(cache, "ns", [seed])[0] for seed in range(6)]
        assert draft_from(cache, "ns", 0) > 0
    with SuffixCache(tmp_path / "data", policies=policies) as cache:
        assert draft_from(cache, "ns", 2) > 0
        seed = 100
        while not cache.namespace("ns").stats().evicted_outputs:
            add(cache, "ns", [seed := seed + 1])
        kept = ids(cache, "ns")
        gone = [i for i in old if i not in kept]
        assert gone
        assert gone == [i for i in (old[1], old[3], old[4], old[5]) if i in gone], "the used ones outlived"
        index_is_log(cache)


@pytest.mark.parametrize("error", [StoreFullError, StoreError])
def test_an_order_that_could_not_be_saved_is_saved_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[StoreError]
) -> None:
    """Regression: it counted as saved, and the uses until then were lost unless another one followed."""

    def fails(*_: object) -> None:
        raise error("injected")

    policies = Policies({"ns": Policy(max_bytes=100 * KIB)})
    with SuffixCache(tmp_path / "d", policies=policies, background=False) as cache:
        add(cache, "ns", range(3))
        assert draft_from(cache, "ns", 0) > 0
        store, indexes = parts_of(cache).store, parts_of(cache).catalog.stored()
        save = parts_of(cache).quotas.evictor.save
        with monkeypatch.context() as broken:
            broken.setattr(store, "put_state", fails)
            with nullcontext() if error is StoreFullError else pytest.raises(error):
                save(indexes)
        assert store.get_state("ns", "drafted") is None
        save(indexes)
        assert store.get_state("ns", "drafted") is not None


def test_a_lower_limit_holds_from_the_next_start_on(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "data") as cache:
        all_of_them = add(cache, "ns", range(40))
        assert cache.evict() == 0
    with SuffixCache(tmp_path / "data", policies=Policies({"ns": Policy(max_bytes=50 * KIB)})) as cache:
        assert ids(cache, "ns") == all_of_them
        assert cache.evict() > 0
        stats = cache.namespace("ns").stats()
        assert stats.held_bytes <= 50 * KIB
        assert ids(cache, "ns") == all_of_them[-stats.outputs :]
        while cache.evict():  # the rest of the batches, down to the low watermark
            assert cache.namespace("ns").stats().held_bytes > 40 * KIB
        assert cache.namespace("ns").stats().held_bytes <= 50 * KIB * LOW_WATERMARK
        index_is_log(cache)


def test_one_write_evicts_no_more_than_it_must_and_one_batch(tmp_path: Path) -> None:
    """Eviction down to the low watermark is done in batches, one per write, and stops there."""
    limit = 1 << 20
    with SuffixCache(policies=Policies({"ns": Policy(max_bytes=limit)})) as cache:
        namespace = cache.namespace("ns")
        seed = 0
        while namespace.stats().evicted_outputs == 0:
            namespace.add_outputs([output("ns", seed + n, 2) for n in range(BATCH_OUTPUTS // 4)])
            seed += BATCH_OUTPUTS // 4
        assert 0 < namespace.stats().evicted_outputs <= BATCH_OUTPUTS
        assert limit * 0.9 < namespace.stats().held_bytes <= limit


# ---------------------------------------------------------------------------------------------- special cases


def test_outputs_forgotten_by_hand_and_by_eviction_never_collide(small: SuffixCache) -> None:
    namespace = small.namespace("small/ns")
    for seed in range(60):
        [output_id] = add(small, "small/ns", [seed])
        if seed % 3 == 0:
            namespace.delete(output_ids=[output_id])
    assert namespace.stats().outputs == len(ids(small, "small/ns"))


def test_identical_outputs_can_be_evicted_one_by_one(small: SuffixCache) -> None:
    namespace = small.namespace("small/ns")
    for _ in range(200):
        namespace.add_output(text(1))
        assert namespace.stats().held_bytes <= 100 * KIB
    assert draft_from(small, "small/ns", 1) > 0
    assert namespace.stats().evicted_outputs > 0, "each is charged for its own text in the log"


@pytest.mark.parametrize("alphabet", [1, 2, 3, 8, 300, 150_000])
def test_the_prediction_is_not_short(alphabet: int) -> None:
    """Admitted outputs must fit: text with few repetitions, of every length."""
    rng = np.random.default_rng(alphabet)
    for tokens in (1, 2, 3, 10, 64, 65, 200, 5000):
        for tail in (0, 64):
            with SuffixCache() as cache:
                ids = rng.integers(0, alphabet, tokens + tail).astype(np.int32)
                new = NewOutput("x", ids[tail:], (tokens,), ids[:tail])
                cache.namespace("x").add_outputs([new])
                assert cache.namespace("x").stats().held_bytes <= predicted_bytes(new)


def test_threads_that_write_at_once_leave_no_trace_of_it(small: SuffixCache) -> None:
    failed: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for n in range(40):
                seed = thread * 1000 + n
                add(small, f"small/{thread % 2}", [seed])
                draft_from(small, f"small/{thread % 2}", seed)
                if n % 10 == 0:
                    small.evict()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    small.evict()  # texts that were retracted after the last write leave some slack
    for path in ("small/0", "small/1"):
        stats = small.namespace(path).stats()
        assert stats.held_bytes <= 100 * KIB
        assert stats.outputs + stats.evicted_outputs == 80
    assert not parts_of(small).quotas.usage.reserved, "every reservation was released"


def test_a_store_that_cannot_forget_fails_no_write(
    small: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_args: Any, **_more: Any) -> Any:
        raise StoreFullError("the disk is full")

    monkeypatch.setattr(parts_of(small).store, "forget_many", full)
    written = [add(small, "small/ns", [seed]) for seed in range(30)]
    assert len(written) == 30
    assert small.namespace("small/ns").stats().held_bytes > 100 * KIB
    monkeypatch.undo()
    add(small, "small/ns", [31])
    assert small.namespace("small/ns").stats().held_bytes <= 100 * KIB


def test_a_refused_write_leaves_no_reservation(small: SuffixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LimitExceededError):
        small.namespace("small/ns").add_output(text(2, 5000))
    monkeypatch.setattr(parts_of(small).store, "append", lambda *arguments: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        add(small, "small/ns", [1])
    session = small.namespace("small/ns").open_session([1])
    session.step([5, 6, 7])
    with pytest.raises(ZeroDivisionError):
        session.close()
    monkeypatch.undo()
    assert not parts_of(small).quotas.usage.reserved
    session.close(commit=False)


def test_what_holds_for_a_namespace_can_be_asked() -> None:
    with SuffixCache(policies=Policies({"a": Policy(max_bytes=5)}, Policy(ttl_seconds=9))) as cache:
        assert cache.namespace("a/b").policy == Policy(max_bytes=5, ttl_seconds=9)


def test_policies_must_be_policies() -> None:
    with pytest.raises(InvalidConfigError, match="policies"):
        SuffixCache(policies={"a": Policy()})  # type: ignore[arg-type] # wrong on purpose
