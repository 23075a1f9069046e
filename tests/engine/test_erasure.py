"""The second stage of a deletion: no file of the data folder holds the text, whatever interrupts it."""

from __future__ import annotations

import os
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from erasure_testing import (
    NS,
    fill,
    ids_in,
    is_ann,
    output_of,
    reopened,
    seeds_in,
    stored_seeds,
    text_of,
)
from sealing_testing import files

from suffixsvc import Selection, SuffixCache
from suffixsvc.engine.sealing import eraser
from suffixsvc.errors import StoreError
from support.engine_parts import parts_of
from support.forking import ForkServer
from support.long_form import sample

SEEDS = list(range(1, 61))
ANN = {seed for seed in SEEDS if is_ann(seed)}
BOB = set(SEEDS) - ANN


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed folder with all outputs, most of them sealed. To be copied."""
    folder = tmp_path_factory.mktemp("filled") / "data"
    with reopened(folder) as cache:
        fill(cache, SEEDS)
        session = cache.namespace(NS).open_session([1], principal="ann")
        for token in text_of(3)[:30]:
            session.step([token], max_draft_tokens=4)  # learns
        session.close(commit=False)
    assert seeds_in(folder, SEEDS) == set(SEEDS)
    assert len(files(folder)) > 2
    return folder


@pytest.fixture
def folder(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "data"))


def assert_erased(folder: Path) -> None:
    """No file holds a part of ann's texts, and everything of bob's is there."""
    assert seeds_in(folder, ANN) == set()
    assert ids_in(folder, ANN) == set()
    assert seeds_in(folder, BOB) == BOB


def test_the_first_stage_leaves_the_bytes_and_the_second_one_none(folder: Path) -> None:
    with reopened(folder) as cache:
        deletion = cache.delete(Selection(principal="ann"))
        assert deletion.outputs == len(ANN)
        assert not deletion.from_disk
        assert stored_seeds(cache) == BOB
        assert seeds_in(folder, ANN) == ANN
        cache.erase()
        assert_erased(folder)
        cache.check()
        assert not parts_of(cache).eraser.due()
    assert_erased(folder)
    with reopened(folder) as cache:
        assert stored_seeds(cache) == BOB
        cache.check()
        fill(cache, range(200, 260))  # reuses the pages that were overwritten
        assert stored_seeds(cache) == BOB | set(range(200, 260))
        cache.check()
    assert_erased(folder)


def test_from_disk_waits_for_the_second_stage(folder: Path) -> None:
    with reopened(folder) as cache:
        for seed in (7, 8):
            assert cache.delete(Selection(labels={"seed": str(seed)}), from_disk=True).from_disk
            assert seeds_in(folder, [seed]) == ids_in(folder, [seed]) == set()
        assert seeds_in(folder, SEEDS) == set(SEEDS) - {7, 8}
        assert stored_seeds(cache) == set(SEEDS) - {7, 8}
        cache.check()


def test_pages_in_memory_do_not_bring_a_text_back(folder: Path) -> None:
    """LMDB keeps copies of pages in memory and writes what was in them into the gaps of others."""
    with reopened(folder) as cache:
        cache.delete(Selection(principal="ann"), from_disk=True)
        for seed in range(300, 400):
            fill(cache, [seed])
            cache.delete(Selection(labels={"seed": str(seed)}))
            if seed % 25 == 0:
                assert seeds_in(folder, ANN) == set()
        cache.erase()
        assert seeds_in(folder, [*ANN, *range(300, 400)]) == set()
        assert stored_seeds(cache) == BOB
        cache.check()


def test_an_evicted_or_superseded_output_is_erased_with_the_next_erasure(folder: Path) -> None:
    with reopened(folder) as cache:
        by_seed = {int(s.output.labels["seed"]): s.output_id for s in parts_of(cache).store.scan(NS)}
        cache.namespace(NS).delete(output_ids=[by_seed[9]], superseded=True)
        assert not parts_of(cache).store.erasure_due()
        assert seeds_in(folder, [9]) == {9}
        cache.erase()
        assert seeds_in(folder, [9]) == set()
        cache.check()


def test_a_deleted_namespace_is_erased(folder: Path) -> None:
    with reopened(folder) as cache:
        outputs = cache.delete_namespace(NS)
        gone = {seed for seed in SEEDS if output_of(seed).namespace == NS}
        assert outputs == len(gone)
        assert parts_of(cache).store.erasure_due()
    with reopened(folder) as cache:  # due after a restart as well
        parts_of(cache).eraser.run()
        assert seeds_in(folder, SEEDS) == set(SEEDS) - gone
        cache.check()


def test_the_background_thread_erases(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = threading.Event()
    run = eraser.Eraser.run

    def and_tell(self: eraser.Eraser) -> None:
        run(self)
        done.set()

    monkeypatch.setattr(eraser.Eraser, "run", and_tell)
    with reopened(folder, background=True) as cache:
        cache.delete(Selection(principal="ann"))
        assert done.wait(120)
        assert_erased(folder)
        assert not parts_of(cache).eraser.due()
        cache.delete(Selection(labels={"seed": "2"}))
        assert parts_of(cache).store.erasure_due()
        assert not parts_of(cache).eraser.due()  # not again at once
        cache.check()


def test_a_segment_file_of_another_version_is_erased_too(folder: Path) -> None:
    """Its text is in the log, so that nothing is lost."""
    with reopened(folder) as cache:
        cache.seal()
        old = folder / "segments" / "0123456789abcdef-1-9-0.seg"
        head = (folder / "segments" / files(folder)[0]).read_bytes()
        old.write_bytes(head[:8] + b"\x63\0\0\0" + head[12:] + np.asarray(text_of(11), "<i4").tobytes())
        foreign = folder / "segments" / "notes.txt"
        foreign.write_bytes(b"mine")
        cache.delete(Selection(principal="ann"), from_disk=True)
        assert not old.exists()
        assert foreign.exists()
        assert_erased(folder)
        cache.check()


def test_drafts_and_reads_go_on_during_an_erasure(folder: Path) -> None:
    with reopened(folder) as cache:
        ended = threading.Event()
        failures: list[BaseException] = []

        def use() -> None:
            try:
                text = next(text_of(seed) for seed in (6, 8, 12, 14, 16) if len(text_of(seed)) > 30)
                while not ended.is_set():
                    session = cache.namespace(NS).open_session([1])
                    found = session.step(text[9:20], max_draft_tokens=1).token_ids.tolist()
                    assert found == text[20:21]
                    session.close(commit=False)
                    assert stored_seeds(cache) >= BOB
            except BaseException as error:  # of the thread
                failures.append(error)

        threads = [threading.Thread(target=use) for _ in range(2)]
        for thread in threads:
            thread.start()
        for seed in sorted(ANN)[:8]:
            cache.delete(Selection(labels={"seed": str(seed)}), from_disk=True)
        ended.set()
        for thread in threads:
            thread.join()
        assert not failures
        assert seeds_in(folder, sorted(ANN)[:8]) == set()
        cache.check()


def test_a_failing_disk_leaves_the_request(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with reopened(folder) as cache:
        cache.delete(Selection(principal="ann"))
        due = parts_of(cache).store.erasure_due()
        with monkeypatch.context() as patch:
            patch.setattr("suffixsvc.store.files.scrub.os.pwrite", _fail)
            with pytest.raises(StoreError, match="overwriting"):
                cache.erase()
        assert parts_of(cache).store.erasure_due() == due > 0
        assert stored_seeds(cache) == BOB
        cache.namespace(NS).add_output([1, 2, 3], labels={"seed": "0"})
        cache.erase()
        assert seeds_in(folder, ANN) == set()
        cache.check()


def test_a_failure_in_the_background_is_reported_and_retried(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with reopened(folder) as cache:
        maintenance = parts_of(cache).maintenance
        assert maintenance is not None
        cache.delete(Selection(principal="ann"))
        with monkeypatch.context() as patch:
            patch.setattr("suffixsvc.store.files.scrub.os.pwrite", _fail)
            maintenance.run_once()
        assert maintenance.stats().failures_in_a_row == 1
        assert "overwriting" in maintenance.stats().last_error
        monkeypatch.setattr(eraser, "_PAUSE_SECONDS", 0.0)
        maintenance.run_once()  # not yet
        assert maintenance.stats().failures_in_a_row == 1
        parts_of(cache).eraser._not_before = 0.0
        maintenance.run_once()
        assert maintenance.stats().failures_in_a_row == 0
        assert_erased(folder)
        cache.check()


def _fail(*_: Any) -> int:
    raise OSError(5, "Input/output error")


def test_a_cache_in_memory_has_nothing_to_erase() -> None:
    with SuffixCache() as cache:
        cache.namespace(NS).add_output([1, 2, 3], principal="ann")
        assert cache.delete(Selection(principal="ann"), from_disk=True).from_disk
        assert not parts_of(cache).store.erasure_due()
        cache.check()


# --- kills -------------------------------------------------------------------------------------------

POINTS = ["begun", "written", "committed", "acknowledged"]
POINTS += ["erase-begun", "merge-built", "merge-entered", "merge-published", "merge-removed"]
POINTS += ["erase-segments", "erase-swept", "scrub-renewed", "scrub-freed", "scrub-end", "scrub-gaps"]
POINTS += ["erase-scrubbed", "erase-done"]


@pytest.fixture(scope="module")
def fork_server() -> Iterator[ForkServer]:
    server = ForkServer(Path(__file__).with_name("erasure_child.py"))
    yield server
    server.close()


@pytest.mark.crash
@pytest.mark.parametrize("point", POINTS)
def test_a_kill_at_every_step(fork_server: ForkServer, filled: Path, tmp_path: Path, point: str) -> None:
    """After a kill nothing of bob's is lost, nothing deleted comes back, and the next erasure completes."""
    seed = int(os.environ.get("ERASURE_CRASH_SEED", Random().randrange(10_000)))
    print(f"ERASURE_CRASH_SEED={seed}")
    # the last ones are beyond the number of times that it is reached
    for hits in (1, *sample([2, 4, 9, 20], 1, Random(seed)), 50):
        folder = Path(shutil.copytree(filled, tmp_path / str(hits)))
        said: list[str] = []
        status = fork_server.run({"folder": str(folder), "point": point, "hits": hits}, said.append, None)
        with reopened(folder) as cache:
            cache.check()
            left = stored_seeds(cache)
            assert left >= BOB
            if any(line.startswith("deleted") for line in said):
                assert left == BOB
                if parts_of(cache).eraser.due():  # as the background thread does
                    parts_of(cache).eraser.run()
            else:
                cache.delete(Selection(principal="ann"), from_disk=True)
            assert_erased(folder)
            cache.check()
        with reopened(folder) as cache:
            assert stored_seeds(cache) == BOB
            assert cache.stats().outputs == len(BOB)
            cache.check()
        shutil.rmtree(folder)
        if status != -signal.SIGKILL:
            assert said[-1] == "erased"
            break
    assert status != -signal.SIGKILL
    assert hits > 1, f"{point} was never reached"
