"""Journal of a work folder: recovery, refusals, durability and removal."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from suffixsvc.core.ngram_count import NgramCounter
from suffixsvc.errors import (
    InvalidInputError,
    StoreCorruptError,
    StoreError,
    StoreFullError,
    StoreLockedError,
)
from suffixsvc_caches.counting.batches import Batch
from suffixsvc_caches.counting.journal import Journal
from suffixsvc_caches.counting.local import count_logs
from suffixsvc_caches.counting.spool import TokenSpool
from suffixsvc_caches.logs import LogCall
from support.build_logs import plan_of, records_of, synthetic_calls, write_log
from support.durable_names import DurableNames
from support.small_disk import files_up_to

NAME = "journal.jsonl"


def a_run(journal: Journal) -> Path:
    run = journal.new_run()
    NgramCounter(1, 1, memory_bytes=1 << 20).spill(run)
    return run


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Work folder of a build that counted batches 0, 1 and 3 of log 0, and loaded 5 outputs."""
    journal = Journal(tmp_path / "work", "key")
    journal.add_runs([a_run(journal)], [(0, 1), (0, 0)], 10, 2)
    journal.add_runs([a_run(journal)], [(0, 3)], 5, 1)
    journal.add_end(0, 4, {}, "xxh3:1")
    journal.begin_write([tmp_path / "s.bin"])
    journal.begin_load(3)
    journal.add_loaded(5)
    journal.close()
    return tmp_path / "work"


def test_a_journal_restores_the_progress(folder: Path) -> None:
    journal = Journal(folder, "key")
    assert [run.name for run in journal.runs()] == ["000001.run", "000002.run"]
    assert journal.batches_of(0) == {0, 1, 3}
    assert journal.report_of(0) is None
    assert (journal.tokens, journal.calls, journal.fingerprint) == (15, 3, "xxh3:1")
    assert (journal.base, journal.loaded) == (3, 5)
    assert journal.is_own_output(folder.parent / "s.bin")
    assert not journal.is_own_output(folder.parent / "d.bin")
    merged = a_run(journal)
    assert merged.name == "000003.run"
    journal.replace_runs(merged, journal.runs())
    journal.add_runs([], [(0, 2)], 0, 0)
    assert journal.report_of(0) is not None
    journal.close()
    journal = Journal(folder, "key")
    assert journal.runs() == [merged]
    assert sorted(path.name for path in folder.iterdir()) == ["000003.run", NAME]
    journal.close()


def test_a_truncated_journal_is_one_of_fewer_lines(folder: Path) -> None:
    """Runs of a lost line are counted again."""
    raw = (folder / NAME).read_bytes()
    runs = {path.name: path.read_bytes() for path in folder.glob("*.run")}
    for size in range(len(raw) + 1):
        for name, content in runs.items():
            (folder / name).write_bytes(content)
        (folder / NAME).write_bytes(raw[:size])
        journal = Journal(folder, "key")
        assert (
            len(journal.runs())
            == len(list(folder.glob("*.run")))
            == min(2, max(0, raw[:size].count(b"\n") - 1))
        )
        journal.close()
        whole = raw[: raw[:size].rfind(b"\n") + 1]
        assert (folder / NAME).read_bytes() == whole or not whole


@pytest.mark.parametrize(
    "line",
    [b"{}", b"5", b"[]", b"null", b"{", b"\xff", b'{"what": 1}', b'{"run": "a", "of": 5}', b'{"made": 5}',
     b'{"runs": 5, "batches": 5, "tokens": 1, "calls": 1}', b"[" * 100_000],
)  # fmt: skip
@pytest.mark.parametrize("first", [True, False])
def test_a_malformed_journal(line: bytes, first: bool, folder: Path) -> None:
    raw = (folder / NAME).read_bytes()
    (folder / NAME).write_bytes(line + b"\n" + raw if first else raw + line + b"\n")
    with pytest.raises((StoreCorruptError, InvalidInputError)) as caught:
        Journal(folder, "key")
    assert caught.value.remedy
    assert len(list(folder.glob("*.run"))) == 2


def test_other_folders_are_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine")
    for name in ("file", "full"):
        with pytest.raises(InvalidInputError, match="must be a work folder"):
            Journal(tmp_path / name, "key")
    assert (tmp_path / "full" / "thesis.txt").read_text() == "mine"
    with pytest.raises(StoreError, match="cannot use"):
        Journal(tmp_path / "file" / "below", "key")


@pytest.mark.parametrize("mark", ["finished", NAME])
def test_a_folder_with_other_files_is_refused(mark: str, tmp_path: Path) -> None:
    """A folder with a file of that name was emptied, with its subfolders, at the end of the build."""
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "1.txt").write_text("mine")
    (tmp_path / mark).write_text("")
    with pytest.raises(InvalidInputError, match=r"must be a work folder.*thesis"):
        Journal(tmp_path, "key")
    assert (tmp_path / "thesis" / "1.txt").read_text() == "mine"


def test_a_file_called_finished_is_not_a_finished_build(tmp_path: Path) -> None:
    (tmp_path / "finished").write_text("the third chapter")
    with pytest.raises(InvalidInputError, match="must be a work folder"):
        Journal(tmp_path, "key")
    assert (tmp_path / "finished").exists()


def test_other_files_in_a_work_folder_are_kept(folder: Path) -> None:
    journal = Journal(folder, "key")
    (folder / "notes.txt").write_text("mine")
    journal.remove()
    assert [path.name for path in folder.iterdir()] == ["notes.txt"]


def test_another_build_is_not_resumed(folder: Path) -> None:
    with pytest.raises(InvalidInputError, match="another build") as caught:
        Journal(folder, "another")
    assert "--work" in str(caught.value.remedy)
    assert len(list(folder.glob("*.run"))) == 2


def test_a_plan_is_its_logs_and_options(tmp_path: Path) -> None:
    """The key depends on all that the counts depend on, and on nothing else."""
    log = write_log(tmp_path / "a.jsonl", synthetic_calls(1, 3))
    key = plan_of([log]).key()
    assert plan_of([log], workers=5, memory_bytes=1 << 30, checkpoint_seconds=1.0).key() == key
    others = [plan_of([log], dedupe=True), plan_of([log], highest=3), plan_of([log], context_tokens=1)]
    others.append(plan_of([log], keep_tokens=True))
    write_log(log, synthetic_calls(1, 4))
    others.append(plan_of([log]))
    assert len({key, *(other.key() for other in others)}) == 6


def test_one_process_at_a_time(folder: Path) -> None:
    journal = Journal(folder, "key")
    code = (
        "import sys, pathlib, suffixsvc_caches.counting.journal as c\n"
        "c.Journal(pathlib.Path(sys.argv[1]), 'key')"
    )
    command = [sys.executable, "-c", code, str(folder)]
    other = subprocess.run(command, capture_output=True, text=True, check=False)
    assert "StoreLockedError" in other.stderr
    with pytest.raises(StoreLockedError):
        Journal(folder, "key")
    journal.close()
    Journal(folder, "key").close()


def test_runs_that_are_damaged_or_missing(folder: Path) -> None:
    run = folder / "000001.run"
    raw = run.read_bytes()
    run.write_bytes(raw[:-1])
    with pytest.raises(StoreCorruptError):
        Journal(folder, "key")
    run.write_bytes(raw)
    Journal(folder, "key").close()
    run.unlink()
    with pytest.raises(StoreCorruptError, match="missing") as caught:
        Journal(folder, "key")
    assert caught.value.expected == "000001.run"


def test_a_line_that_did_not_fit_is_not_written_later(tmp_path: Path) -> None:
    """It stayed in a buffer: the next line, or closing the file, wrote it, too, and its batches were counted
    twice."""
    journal = Journal(tmp_path / "work", "key")
    run = a_run(journal)
    size = (tmp_path / "work" / NAME).stat().st_size
    for room in (size, size + 5):
        with files_up_to(room), pytest.raises(StoreFullError):
            journal.add_runs([run], [(0, 0)], 7, 1)
        assert (tmp_path / "work" / NAME).stat().st_size == size
    journal.add_runs([run], [(0, 0)], 7, 1)
    with files_up_to(10), pytest.raises(StoreFullError):
        journal.add_loaded(3)
    journal.close()
    journal = Journal(tmp_path / "work", "key")
    assert (journal.runs(), journal.tokens, journal.calls, journal.loaded) == ([run], 7, 1, 0)
    journal.close()


def test_counting_resumes_from_any_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("suffixsvc_caches.counting.batches.BATCH_CALLS", 20)
    log = write_log(tmp_path / "a.jsonl", synthetic_calls(2, 100))
    plan = plan_of([log], highest=2, checkpoint_seconds=0.0, dedupe=True)
    work = tmp_path / "work"
    journal = Journal(work, plan.key())
    counted = count_logs(plan, journal)
    kept = {path.name: path.read_bytes() for path in work.glob("*.run")}
    expected = records_of(plan, journal)
    journal.close()
    lines = (work / NAME).read_bytes().splitlines(keepends=True)
    assert len(lines) > 6
    for number in range(1, len(lines) + 1):
        (work / NAME).write_bytes(b"".join(lines[:number]))
        for name, content in kept.items():
            (work / name).write_bytes(content)
        journal = Journal(work, plan.key())
        again = count_logs(plan, journal)
        assert (again.tokens, again.calls, again.duplicates) == (
            counted.tokens,
            counted.calls,
            counted.duplicates,
        )
        assert again.report.as_dict() == counted.report.as_dict()
        done = sum(json.loads(line).get("tokens", 0) for line in lines[:number])
        assert again.resumed_tokens == done
        assert records_of(plan, journal) == expected
        journal.close()


def test_the_journal_is_consistent_after_a_power_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs were synced, their names were not: a journal could name runs that did not exist."""
    monkeypatch.setattr("suffixsvc_caches.counting.batches.BATCH_CALLS", 20)
    monkeypatch.setattr("suffixsvc_caches.counting.merging.FAN_IN", 3)
    durable = DurableNames(monkeypatch)
    work = tmp_path / "new" / "work"
    named: list[str] = []
    write = Journal.append

    def look_and_write(journal: Journal, line: bytes) -> None:
        entry = json.loads(line)
        runs = [*entry.get("runs", []), *filter(None, [entry.get("run")])]
        for path in (work.parent, work, work / NAME, *(work / run for run in runs)):
            assert durable.have(path), path
        for batches in entry["batches"].values() if "runs" in entry else ():
            for first, end in batches:
                assert all(durable.have(work / "tokens" / f"0-{i}.npz") for i in range(first, end))
        named.extend(runs)
        write(journal, line)

    monkeypatch.setattr(Journal, "append", look_and_write)
    plan = plan_of([write_log(tmp_path / "a.jsonl", synthetic_calls(2, 100))], checkpoint_seconds=0.0)
    journal = Journal(work, plan.key())
    count_logs(replace(plan, keep_tokens=True), journal)
    runs = journal.runs()
    assert len(runs) > 3
    records_of(plan, journal)
    merged = journal.runs()
    assert len(merged) <= 3
    assert {run.name for run in (*runs, *merged)} == set(named)
    removed = []
    monkeypatch.setattr(
        "suffixsvc_caches.counting.journal._remove",
        lambda folder: removed.append(durable.have(folder / "finished")),
    )
    journal.remove()
    assert removed == [True]


def test_a_folder_without_counts_is_not_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "work", "key")
    journal.add_end(0, 0, {}, "")
    journal.close_or_remove()
    assert not (tmp_path / "work").exists()


def test_a_build_killed_during_the_removal_is_finished(folder: Path) -> None:
    """A folder without its journal was refused as not a work folder."""
    (folder / NAME).rename(folder / "finished")
    (folder / "000001.run").unlink()
    (folder / "tokens").mkdir()
    (folder / "tokens" / "0-0.npz").write_bytes(b"")
    journal = Journal(folder, "another")
    assert journal.runs() == []
    assert [path.name for path in folder.iterdir()] == [NAME]
    journal.remove()
    assert not folder.exists()


def test_encoded_calls_that_cannot_be_read(tmp_path: Path) -> None:
    spool = TokenSpool(tmp_path, 4)
    ids = [np.array([1, 2], np.int32), np.empty(0, np.int32), np.array([3], np.int32)]
    calls = [LogCall("", agent="a" * 999), LogCall(""), LogCall("", session="caf\udce9.txt")]
    spool.write(Batch(0, 0, 0, calls, 0, 0), ids, ids)
    assert [(call.token_ids.tolist(), call.labels) for call in spool.read(0, 0)] == [
        ([1, 2], {"agent": "a" * 256}),
        ([3], {"session": "caf?.txt"}),
    ]
    spool.write(Batch(0, 1, 0, [], 0, 0), [], [])
    assert list(spool.read(0, 1)) == []
    path = tmp_path / "0-0.npz"
    raw = path.read_bytes()
    for damaged in (b"", raw[:100], raw[:-30], raw[:300] + b"?" + raw[301:], b"\x80\x04N.", b"PK\x03\x04"):
        path.write_bytes(damaged)
        with pytest.raises(StoreCorruptError, match="build again"):
            list(spool.read(0, 0))
