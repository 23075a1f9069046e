"""Damaged, truncated, foreign and hostile runs, and full disks."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from suffixsvc.core import _ext
from suffixsvc.core.ngram_count import (
    NgramCounter,
    TallyOutput,
    check_run,
    combine_runs,
    run_tokens,
    split_runs,
    tally_runs,
)
from suffixsvc.errors import (
    InvalidInputError,
    StoreError,
    StoreFullError,
)
from support.ngram_oracle import MOST, add, count
from support.small_disk import files_up_to

HEADER = struct.Struct("<8s6I2Q")
CRC_AT = 28


@pytest.fixture
def run(tmp_path: Path) -> Path:
    count([([1, 2, 3, 2, 1, 2, 3, 9], 0), ([1, 2, 2], 1)], tmp_path / "a.run", 1, 3)
    return tmp_path / "a.run"


def uses(run: Path) -> list[Callable[[], object]]:
    """All operations that read a run; their outputs are written beside it."""
    return [
        lambda: check_run(run),
        lambda: run_tokens(run),
        lambda: split_runs([run], 3),
        lambda: combine_runs([run, run], run.with_name("b.run")),
        lambda: tally_runs([run], [TallyOutput(str(run.with_name("o")), 2)], first_token=1, end_token=3),
    ]


def outcome(use: Callable[[], object]) -> str:
    """The name of the store error that an operation raises, or ""; any other exception fails the test."""
    try:
        use()
    except StoreError as error:
        return type(error).__name__
    return ""


def with_sum(raw: bytes) -> bytes:
    """The run with a correct checksum."""
    header = bytearray(raw[: HEADER.size])
    header[CRC_AT : CRC_AT + 4] = bytes(4)
    crc = _ext.crc32c(bytes(HEADER.size) + raw[HEADER.size :] + bytes(header))
    header[CRC_AT : CRC_AT + 4] = struct.pack("<I", crc)
    return bytes(header) + raw[HEADER.size :]


def test_the_bytes_of_a_run(run: Path) -> None:
    raw = run.read_bytes()
    magic, version, words, lowest, highest, bits, _, entries, tokens = HEADER.unpack(raw[: HEADER.size])
    assert (magic, version, words, lowest, highest, bits) == (b"SFXNGRM1", 1, 3, 1, 3, 32)
    assert (entries, tokens, len(raw)) == ((len(raw) - 48) // 28, 11, 48 + 28 * entries)
    assert with_sum(raw) == raw


def test_no_bit_of_a_run_changes_unseen(run: Path) -> None:
    raw = run.read_bytes()
    for at in range(len(raw)):
        run.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        assert outcome(uses(run)[0]) == "StoreCorruptError", at
        for use in uses(run)[1:]:
            outcome(use)


def test_a_run_that_was_cut_off_is_refused_by_everything(run: Path) -> None:
    raw = run.read_bytes()
    for size in range(len(raw)):
        run.write_bytes(raw[:size])
        assert {outcome(use) for use in uses(run)} == {"StoreCorruptError"}, size
    run.write_bytes(raw + b"\0")
    assert {outcome(use) for use in uses(run)} == {"StoreCorruptError"}


def test_files_that_are_not_runs_are_refused(run: Path, tmp_path: Path) -> None:
    run.write_bytes(b"{}\n" * 99)
    assert {outcome(use) for use in uses(run)} == {"StoreCorruptError"}
    for missing in (tmp_path / "missing.run", tmp_path):
        assert {outcome(use) for use in uses(missing)} == {"StoreError"}
    with pytest.raises(InvalidInputError, match="zero byte"):
        check_run("a\0b")


def test_runs_of_different_shape_do_not_mix(run: Path, tmp_path: Path) -> None:
    for lowest, highest, largest in ((1, 4, MOST), (2, 3, MOST), (1, 3, 100)):
        other = NgramCounter(lowest, highest, largest_token=largest, memory_bytes=1 << 20)
        other.spill(tmp_path / "other.run")
        with pytest.raises(InvalidInputError, match="must have the shape"):
            combine_runs([run, tmp_path / "other.run"], tmp_path / "both.run")
    assert not (tmp_path / "both.run").exists()


@pytest.mark.parametrize("words", [0, 1, 2, 4, 5, 9, 10])
def test_a_header_of_other_words_is_refused(words: int, run: Path) -> None:
    """A run whose header had another key width was read with the width of the first run."""
    fields = list(HEADER.unpack(run.read_bytes()[: HEADER.size]))
    fields[2], fields[7] = words, 3
    run.write_bytes(with_sum(HEADER.pack(*fields) + bytes(3 * (8 * words + 4))))
    assert {outcome(use) for use in uses(run)} == {"StoreCorruptError"}


def test_an_unsorted_run_is_read_to_its_end(run: Path) -> None:
    """In an unsorted run the end was found before the start, and memory beyond the buffer was read."""
    raw = run.read_bytes()
    entries = [raw[at : at + 28] for at in range(48, len(raw), 28)]
    for order in (entries[::-1], entries[2:] + entries[:2], sorted(entries, key=lambda each: each[::-1])):
        run.write_bytes(with_sum(raw[:48] + b"".join(order)))
        for use in uses(run):
            outcome(use)
        for first in range(4):
            for end in range(first, 12):
                tally_runs(
                    [run], [TallyOutput(str(run.with_name("o")), 2)], first_token=first, end_token=end,
                    memory_bytes=0,
                )  # fmt: skip


def test_a_disk_without_room_costs_nothing_that_was_counted(tmp_path: Path) -> None:
    counter = NgramCounter(1, 2, memory_bytes=1 << 20)
    texts = [([i, i + 1, i % 7], 0) for i in range(2000)]

    add(counter, texts[:1000])
    held = counter.tokens, counter.room
    with files_up_to(1 << 14), pytest.raises(StoreFullError) as caught:
        counter.spill(tmp_path / "a.run")
    assert caught.value.remedy
    assert not list(tmp_path.iterdir())
    assert counter.tokens == held[0]
    add(counter, texts[1000:])
    counter.spill(tmp_path / "a.run")
    count(texts, tmp_path / "b.run", 1, 2)
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()


def test_no_room_for_one_of_two_files_leaves_none(tmp_path: Path) -> None:
    """The first file, which had been written, was left."""
    count([([i, i + 1, i % 7], 0) for i in range(2000)], tmp_path / "a.run", 1, 2)
    few = TallyOutput(str(tmp_path / "few"), 1, min_count=100)
    many = TallyOutput(str(tmp_path / "many"), 2)
    other = TallyOutput(str(tmp_path / "other"), 2, min_count=100)
    for wanted in ([few, many], [many, few], [other, many], [many, other]):
        with files_up_to(1 << 12), pytest.raises(StoreFullError):
            tally_runs([tmp_path / "a.run"], wanted)
        assert [path.name for path in tmp_path.iterdir()] == ["a.run"]
    with files_up_to(1 << 12), pytest.raises(StoreFullError):
        combine_runs([tmp_path / "a.run"], tmp_path / "b.run")
    assert [path.name for path in tmp_path.iterdir()] == ["a.run"]


def test_a_file_that_cannot_be_written_is_an_error(run: Path, tmp_path: Path) -> None:
    missing = tmp_path / "missing" / "x"
    with pytest.raises(StoreError, match="cannot create"):
        tally_runs([run], [TallyOutput(str(tmp_path / "o"), 1), TallyOutput(str(missing), 2)])
    with pytest.raises(StoreError, match="cannot create"):
        combine_runs([run], tmp_path)
    counter = NgramCounter(1, 1, memory_bytes=1 << 20)
    with pytest.raises(StoreError, match="cannot create"):
        counter.spill(missing)
    assert [path.name for path in tmp_path.iterdir()] == ["a.run"]
