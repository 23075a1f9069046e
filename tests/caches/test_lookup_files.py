"""File format of lookup caches: bytes, and faults with their offsets."""

from __future__ import annotations

import random
import resource
import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError, StoreCorruptError, StoreError, StoreFullError
from suffixsvc_caches.lookup.faults import FaultEffect, find_faults
from suffixsvc_caches.lookup.files import read_lookup, read_words, record_starts, write_lookup
from suffixsvc_caches.lookup.table import merge_tables
from support.lookup_tables import records_of_table, table_of

#: the 2-grams of 10 11 12 10 11 13, records by n-gram; llama.cpp b11434 wrote 92 bytes, the first record so
WRITTEN = bytes.fromhex(
    "0a000000 0b000000 ffffffff ffffffff 02000000 0d000000 01000000 0c000000 01000000"
    "0b000000 0c000000 ffffffff ffffffff 01000000 0a000000 01000000"
    "0c000000 0a000000 ffffffff ffffffff 01000000 0b000000 01000000"
)
COUNTED = {(10, 11): {13: 1, 12: 1}, (11, 12): {10: 1}, (12, 10): {11: 1}}

tokens_ = st.integers(0, 2**31 - 1)
tables_ = st.dictionaries(
    st.lists(tokens_, min_size=1, max_size=4).map(tuple),
    st.dictionaries(tokens_, st.integers(1, 2**31 - 1), min_size=1, max_size=5),
    max_size=12,
)


def record(ngram: list[int], *pairs: tuple[int, int]) -> bytes:
    """A record packed by the struct module."""
    head = struct.pack("<5i", *ngram, *[-1] * (4 - len(ngram)), len(pairs))
    return head + b"".join(struct.pack("<2i", *pair) for pair in pairs)


def faults(raw: bytes, path: Path) -> list[tuple[int, FaultEffect]]:
    path.write_bytes(raw)
    words, rest = read_words(path)
    return [(fault.offset, fault.effect) for fault in find_faults(words, *record_starts(words), rest)]


def test_bytes_are_those_of_llama_cpp(tmp_path: Path) -> None:
    path = tmp_path / "static.bin"
    assert write_lookup(path, table_of(COUNTED)) == len(WRITTEN) == 92
    assert path.read_bytes() == WRITTEN
    assert records_of_table(read_lookup(path)) == COUNTED


@given(table=tables_)
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, table: dict) -> None:
    path = tmp_path_factory.mktemp("lookup") / "cache.bin"
    write_lookup(path, table_of(table))
    assert path.read_bytes() == b"".join(record(list(n), *f.items()) for n, f in table.items())
    read = read_lookup(path)
    assert records_of_table(read) == table
    assert read.orders().tolist() == [len(ngram) for ngram in table]
    assert read.largest_token == max((token for n, f in table.items() for token in (*n, *f)), default=-1)
    assert faults(path.read_bytes(), path) == []


def test_tables_larger_than_a_block(tmp_path: Path) -> None:
    table = {(i, i + 1): {j: j + 1 for j in range(i % 3 + 1)} for i in range(70_000)}
    write_lookup(tmp_path / "cache.bin", table_of(table))
    assert records_of_table(read_lookup(tmp_path / "cache.bin")) == table


@given(tables=st.lists(tables_, max_size=4), seed=st.integers(0, 2**32))
def test_merging_adds_and_forgets_the_order(tables: list[dict], seed: int) -> None:
    sums: dict[tuple[int, ...], Counter[int]] = {}
    for table in tables:
        for ngram, followers in table.items():
            sums.setdefault(ngram, Counter()).update(followers)
    capped = {n: {t: min(c, 2**31 - 1) for t, c in f.items()} for n, f in sums.items()}
    merged = merge_tables(map(table_of, tables))
    assert records_of_table(merged) == capped
    shuffled = [*tables]
    random.Random(seed).shuffle(shuffled)
    again = merge_tables(
        table_of(dict(sorted(table.items(), key=lambda item: hash((seed, item[0]))))) for table in shuffled
    )
    for name in ("ngrams", "starts", "tokens", "counts"):
        assert np.array_equal(getattr(merged, name), getattr(again, name))
    assert merged.orders().tolist() == sorted(merged.orders().tolist())


GOOD = record([1, 2], (3, 4))


@pytest.mark.parametrize(
    ("raw", "found"),
    [
        (b"", []),
        (GOOD, []),
        (GOOD + bytes(15), [(28, FaultEffect.CUT)]),
        (GOOD + bytes(3), [(28, FaultEffect.CUT)]),
        (GOOD + record([5], (6, 7))[:18], [(28, FaultEffect.ABORTS)]),
        (GOOD + record([5], (6, 7))[:-1], [(28, FaultEffect.ABORTS)]),
        (GOOD + record([5]), [(28 + 16, FaultEffect.ABORTS)]),
        (GOOD + struct.pack("<5i", 5, -1, -1, -1, -(2**31)), [(28 + 16, FaultEffect.ABORTS)]),
        (GOOD + struct.pack("<5i", 5, -1, -1, -1, 2**31 - 1), [(28, FaultEffect.ABORTS)]),
        (GOOD + record([5], (6, 0)), [(28 + 24, FaultEffect.ABORTS)]),
        (GOOD + record([5], (6, -7)), [(28 + 24, FaultEffect.ABORTS)]),
        (GOOD + record([5], (-6, 7)), [(28 + 20, FaultEffect.ABORTS_LATER)]),
        (GOOD + record([5], (-1, 7)), [(28 + 20, FaultEffect.ODD)]),
        (GOOD + record([-1, 5], (6, 7)), [(28, FaultEffect.ODD)]),
        (GOOD + record([5, -1, 6], (6, 7)), [(28, FaultEffect.ODD)]),
        (GOOD + record([5, -2], (6, 7)), [(28, FaultEffect.ODD)]),
        (GOOD + GOOD, [(28, FaultEffect.ODD)]),
        (GOOD + record([5], (6, 7), (6, 8)), [(28 + 28, FaultEffect.ODD)]),
        (b"GGUF" + bytes(40), [(16, FaultEffect.ABORTS)]),
    ],
)
def test_faults_are_named_by_their_byte(
    tmp_path: Path, raw: bytes, found: list[tuple[int, FaultEffect]]
) -> None:
    path = tmp_path / "cache.bin"
    assert faults(raw, path) == found
    if any(harm is not FaultEffect.ODD for _, harm in found):
        with pytest.raises(StoreCorruptError, match=f"byte {found[0][0]}:"):
            read_lookup(path)
    else:
        read_lookup(path)


def test_the_first_of_equal_records_counts(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    path.write_bytes(GOOD + record([1, 2], (3, 9)) + record([5], (6, 7), (6, 8)))
    assert records_of_table(read_lookup(path)) == {(1, 2): {3: 4}, (5,): {6: 7}}


@given(raw=st.binary(max_size=200))
def test_no_file_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.mktemp("lookup") / "cache.bin"
    try:
        found = faults(raw, path)
        table = read_lookup(path)
    except StoreCorruptError:
        assert any(harm is not FaultEffect.ODD for _, harm in found)
    else:
        size = write_lookup(path.with_suffix(".again"), table)
        assert path.with_suffix(".again").read_bytes() == raw[:size] == raw


def test_a_file_that_exists_is_kept_unless_forced(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    path.write_bytes(b"mine")
    with pytest.raises(InvalidInputError, match="exists"):
        write_lookup(path, table_of(COUNTED))
    assert path.read_bytes() == b"mine"
    write_lookup(path, table_of(COUNTED), force=True)
    assert path.read_bytes() == WRITTEN


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    table = table_of({(i,): {1: 1} for i in range(1000)})
    resource.setrlimit(resource.RLIMIT_FSIZE, (8192, hard))
    try:
        with pytest.raises(StoreFullError):
            write_lookup(tmp_path / "cache.bin", table)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(InvalidInputError, match="no folder"):
        write_lookup(tmp_path / "no" / "cache.bin", table)
    with pytest.raises(StoreError):
        read_lookup(tmp_path / "cache.bin")
