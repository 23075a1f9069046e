"""Inspection and comparison of lookup caches: hand-computed figures, dictionaries, hostile files."""

from __future__ import annotations

import struct
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc.errors import InvalidInputError, StoreCorruptError
from suffixsvc_caches.lookup.algorithm import NgramCounts
from suffixsvc_caches.lookup.difference import compare_tables
from suffixsvc_caches.lookup.files import read_lookup, write_lookup
from suffixsvc_caches.lookup.inspect import Record, inspect_table
from suffixsvc_caches.lookup.pruning import prune_table
from suffixsvc_caches.lookup.replay import LookupReplayer, Program, TokenCall
from suffixsvc_caches.lookup.table import merge_tables, repeated_rows, unique_rows
from support.long_form import rounds
from support.lookup_tables import table_of

tokens_ = st.integers(0, 4)
tables_ = st.dictionaries(
    st.lists(tokens_, min_size=1, max_size=4).map(tuple),
    st.dictionaries(tokens_, st.integers(1, 3), min_size=1, max_size=4),
    max_size=10,
)
MIXED = {
    (1,): {2: 9},
    (1, 2): {3: 5, 4: 5},
    (2, 1): {3: 6, 4: 2, 5: 1},
    (3, 3): {1: 1},
    (4, 4): {1: 2},
    (1, 2, 3): {4: 3, 5: 1},
}


def warned(table: dict, *, static: bool) -> str:
    return "\n".join(inspect_table(table_of(table), static=static).warnings())


def test_figures_of_a_static_cache() -> None:
    found = inspect_table(table_of(MIXED), static=True, top=2)
    assert found.bytes == 6 * 20 + 10 * 8
    assert found.ngrams == {1: 1, 2: 4, 3: 1}
    assert (found.pairs, found.count, found.largest_token) == (10, 35, 5)
    # (1 2) half and half, (2 1) two thirds, (4 4) twice; (3 3) only once, the others are no 2-grams
    assert (found.firing, found.tied, found.dead) == (3, 1, 2)
    assert (found.repeated, found.widest, found.crowd, found.overflowing) == (0, 3, 2, 0)
    assert found.top == (
        Record((1, 2), ((3, 5), (4, 5)), 10),
        Record((1,), ((2, 9),), 9),
    )


def test_figures_of_a_dynamic_cache() -> None:
    found = inspect_table(table_of(MIXED), static=False)
    # strict: 1-grams 4 times, 2-grams 3 times and 66 %, 3-grams twice and 66 %
    assert (found.firing, found.tied, found.dead) == (3, 0, 0)
    assert found.top == ()


def test_an_empty_cache() -> None:
    found = inspect_table(table_of({}), static=True, top=3)
    assert (found.bytes, found.ngrams, found.pairs, found.largest_token, found.top) == (0, {}, 0, -1, ())
    assert list(found.warnings()) == []


def test_warnings() -> None:
    assert warned({(1, 2): {3: 4}}, static=True) == ""
    assert "1 records are not 2-grams" in warned({(1, 2): {3: 4}, (1,): {3: 4}}, static=True)
    assert "no 2-grams" not in warned({(1,): {3: 4}}, static=False)
    assert "20 n-grams have the same hash" in warned({(i, i): {1: 1} for i in range(20)}, static=True)
    assert "1,000 followers" in warned({(1, 2): dict.fromkeys(range(1000), 1)}, static=True)
    assert "overflow int32 when" in warned({(1, 2): {3: 21_474_837}}, static=True)
    assert "overflow int32 when" in warned({(1,): dict.fromkeys((5, 6), 15000000)}, static=False)
    assert "counted more than 2,147 of" in warned({(1, 2): {3: 10_000}}, static=True)
    assert "two best followers" in warned({(1, 2): {3: 1, 4: 1}}, static=True)


def test_repeated_ngrams_are_counted(tmp_path: Path) -> None:
    raw = struct.pack("<7i", 1, 2, -1, -1, 1, 3, 4)
    (tmp_path / "twice.bin").write_bytes(raw + raw)
    found = inspect_table(read_lookup(tmp_path / "twice.bin"), static=True)
    assert (found.repeated, found.firing) == (1, 1)
    assert any("1 records repeat" in warning for warning in found.warnings())


@given(st.lists(st.lists(st.integers(-1, 2), min_size=2, max_size=2), max_size=20))
def test_rows(rows: list[list[int]]) -> None:
    array = np.array(rows, np.int32).reshape(-1, 2)
    assert repeated_rows(array).tolist() == [row in rows[:i] for i, row in enumerate(rows)]
    unique, numbers = unique_rows(array)
    assert unique.tolist() == sorted(map(list, set(map(tuple, rows))))
    assert [unique[i].tolist() for i in numbers] == rows


@given(first=tables_, second=tables_)
def test_comparing_counts(first: dict, second: dict) -> None:
    found = compare_tables(table_of(first), table_of(second), top=1000)
    assert found.ngrams == (
        len(first.keys() - second.keys()),
        len(first.keys() & second.keys()),
        len(second.keys() - first.keys()),
    )
    a, b = ({(n, t): c for n, f in table.items() for t, c in f.items()} for table in (first, second))
    assert found.pairs == (len(a.keys() - b.keys()), len(a.keys() & b.keys()), len(b.keys() - a.keys()))
    assert found.changed == sum(a[key] != b[key] for key in a.keys() & b.keys())
    assert found.equal == (first == second)
    changes = {(c.ngram, c.token): (c.before, c.after) for c in found.largest}
    assert changes == {k: (a.get(k, 0), b.get(k, 0)) for k in a.keys() | b.keys() if a.get(k) != b.get(k)}
    by = [abs(c.after - c.before) for c in found.largest]
    assert by == sorted(by, reverse=True)


def everything(path: Path) -> None:
    """All operations on an untrusted file."""
    table = read_lookup(path)
    for static in (True, False):
        assert sum(inspect_table(table, static=static, top=3).ngrams.values()) == len(table)
    assert compare_tables(table, table).equal
    merge_tables([table, table])
    prune_table(table, 100, static=True)
    prune_table(table, None, static=False)
    table.as_loaded()
    calls = [TokenCall([1, 2], [3, 4, 1, 2, 3, 4, 1, 2])]
    for program in Program:
        LookupReplayer(table, table, program=program, ctx=4).add_log(calls)


def test_every_prefix_of_a_file_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "cache.bin"
    write_lookup(path, table_of(MIXED))
    raw = path.read_bytes()
    ends = {0}
    for followers in (1, 2, 3, 1, 1, 2):
        ends.add(max(ends) + 20 + 8 * followers)
    for length in range(len(raw) + 1):
        path.write_bytes(raw[:length])
        if length in ends:
            everything(path)
        else:
            with pytest.raises(StoreCorruptError, match="byte"):
                everything(path)


@settings(deadline=None, max_examples=rounds(90, full=300))
@given(
    changes=st.lists(
        st.tuples(st.integers(0, 49), st.sampled_from([-(2**31), -2, -1, 0, 1, 2, 3, 100, 2**31 - 1])),
        min_size=1,
        max_size=4,
    )
)
def test_no_change_of_a_file_breaks_anything(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]
) -> None:
    path = tmp_path_factory.mktemp("hostile") / "cache.bin"
    write_lookup(path, table_of(MIXED))
    words = np.frombuffer(path.read_bytes(), np.int32).copy()
    for at, value in changes:
        words[at] = value
    path.write_bytes(words.tobytes())
    try:
        everything(path)
    except StoreCorruptError as error:
        assert error.message.count("byte ") == 1  # noqa: PT017 - a file may also be whole
    except InvalidInputError as error:
        assert "must be token ids" in error.message  # noqa: PT017 - as above


@given(text=st.lists(tokens_, max_size=60))
def test_counted_files_are_those_of_a_recount(text: list[int]) -> None:
    counted: dict[tuple[int, int], Counter[int]] = {}
    for a, b, c in zip(text, text[1:], text[2:], strict=False):
        counted.setdefault((a, b), Counter())[c] += 1
    counts = NgramCounts(orders=[2])
    counts.extend(text, 0)
    assert counts.file_bytes() == table_of(counted).file_bytes()
