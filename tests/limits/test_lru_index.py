"""The LRU index compared with a list and a dictionary under random operations."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from suffixsvc.index.lru_index import AverageSize, LruIndex
from suffixsvc.index.output_size import OutputSize
from support.long_form import rounds


def sized(tokens: int) -> OutputSize:
    """The size of an output of so many tokens, with a tail and attributes."""
    return OutputSize(1, tokens, tokens % 65, tokens % 7 * 100)


def sums(tokens: Iterable[int]) -> OutputSize:
    total = OutputSize()
    for each in tokens:
        total = total.plus(sized(each))
    return total


class LruIndexMachine(RuleBasedStateMachine):
    """Recency is the position in a list; everything else is in a dictionary."""

    @initialize()
    def begin(self) -> None:
        self.lru = LruIndex()
        self.lru.complete = True
        self.order: list[int] = []  # ids, the least recently used first
        self.rows: dict[int, tuple[int, bool, bool, int]] = {}  # tokens, pinned, own TTL, written
        self.written: set[int] = set()
        self.highest = 0
        self.now = 1000

    @rule(
        ahead=st.integers(1, 3),
        tokens=st.integers(1, 50),
        pinned=st.booleans(),
        own_ttl=st.booleans(),
        pause=st.integers(-5, 20),
    )
    def write(self, ahead: int, tokens: int, pinned: bool, own_ttl: bool, pause: int) -> None:
        self.highest += ahead
        self._write(self.highest, tokens, pinned, own_ttl, pause)

    @precondition(lambda self: self.highest > 1)
    @rule(data=st.data())
    def write_out_of_order(self, data: st.DataObject) -> None:
        """The commits of two threads may arrive in the other order."""
        output_id = data.draw(st.integers(1, self.highest))
        if output_id not in self.written:
            self._write(output_id, 7, False, False, 0)

    def _write(self, output_id: int, tokens: int, pinned: bool, own_ttl: bool, pause: int) -> None:
        self.now += pause  # clocks step back
        self.lru.add(output_id, self.now, sized(tokens), pinned=pinned, own_ttl=own_ttl)
        self.rows[output_id] = tokens, pinned, own_ttl, self.now
        self.order.append(output_id)
        self.written.add(output_id)

    @rule(data=st.data())
    def draft(self, data: st.DataObject) -> None:
        used = data.draw(st.lists(st.sampled_from([0, *sorted(self.written)]), unique=True, max_size=5))
        self.lru.touch(used, self.now)
        for output_id in used:
            if output_id in self.rows:
                self.order.remove(output_id)
                self.order.append(output_id)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(sorted(self.rows)), unique=True))
        self.lru.remove([*gone, *gone, 10**6])
        for output_id in gone:
            del self.rows[output_id]
            self.order.remove(output_id)

    @rule()
    def restart(self) -> None:
        """Another process loads the log and the saved state: the order is unchanged."""
        fresh = LruIndex()
        for output_id in sorted(self.rows):
            tokens, pinned, own_ttl, written = self.rows[output_id]
            fresh.add(output_id, written, sized(tokens), pinned=pinned, own_ttl=own_ttl, logged=True)
        assert fresh.load(self.lru.save())
        fresh.complete = True
        self.lru = fresh

    @invariant()
    def same(self) -> None:
        assert len(self.lru) == len(self.rows)
        pinned_rows = [row[0] for row in self.rows.values() if row[1]]
        assert self.lru.pinned == sums(pinned_rows)
        assert self.lru.size == sums(row[0] for row in self.rows.values())

    @rule(need=st.floats(1, 1500), most=st.integers(1, 8), most_tokens=st.integers(1, 120))
    def query_least_recently_used(self, need: float, most: int, most_tokens: int) -> None:
        cost = AverageSize(per_output=10, per_token=2.5, per_attribute_byte=0.5)
        expected: list[int] = []
        taken, tokens = 0.0, 0
        for output_id in [i for i in self.order if not self.rows[i][1]]:
            size = self.rows[output_id][0]
            if taken >= need or len(expected) == most or (expected and tokens + size > most_tokens):
                break
            expected.append(output_id)
            taken += 10 + 2.5 * size + 0.5 * sized(size).attribute_bytes
            tokens += size
        assert self.lru.least_recently_used(need, cost, most, most_tokens) == expected

    @rule(before=st.integers(900, 3000), most=st.integers(1, 8))
    def query_expired(self, before: int, most: int) -> None:
        due = [
            i
            for i, (_, pinned, own, written) in sorted(self.rows.items())
            if written <= before and not pinned and not own
        ]
        assert self.lru.expired(before, most) == due[:most]


LruIndexMachine.TestCase.settings = settings(max_examples=rounds(20, full=75), stateful_step_count=60)
TestLruIndex = LruIndexMachine.TestCase


def test_the_table_stays_small_over_thousands_of_outputs() -> None:
    lru = LruIndex()
    lru.complete = True
    for first in range(1, 20_001, 100):
        for output_id in range(first, first + 100):
            lru.add(output_id, output_id, sized(5), pinned=False, own_ttl=False)
        lru.remove(range(first - 500, first - 400))
    assert len(lru) == 500
    assert len(lru._rows["id"]) < 2000
    assert lru.least_recently_used(1, AverageSize(1, 1), 256, 10**6) == [19_501]


def test_what_was_saved_by_another_version_is_left_alone() -> None:
    lru = LruIndex()
    lru.add(1, 10, sized(5), pinned=False, own_ttl=False, logged=True)
    lru.touch([1], 50)
    saved = lru.save()
    for bad in (
        b"",
        saved[:-1],
        saved + b"\0",
        b"XXXX" + saved[4:],
        saved[:4] + struct.pack("<H", 2) + saved[6:],
        saved[:8] + struct.pack("<I", 2**32 - 1) + saved[12:],
    ):
        assert not LruIndex().load(bad)
    assert LruIndex().load(saved)  # of a removed output: ignored


def test_the_bytes_of_the_saved_state_are_as_documented() -> None:
    """docs/format.md: a header, the ids, the times."""
    lru = LruIndex()
    for output_id in (3, 5, 9):
        lru.add(output_id, 10 * output_id, sized(5), pinned=False, own_ttl=False, logged=True)
    lru.touch([9, 3], 1000)
    assert lru.save() == b"SXUS" + struct.pack("<HHI2Q2q", 1, 0, 2, 3, 9, 1001, 1000)
    assert not lru.dirty


@pytest.mark.parametrize("most", [1, 2, 300])
def test_outputs_of_one_moment_go_in_the_order_of_the_log(most: int) -> None:
    """One append of many outputs has one time for all of them."""
    lru = LruIndex()
    for output_id in range(1, 400):
        lru.add(output_id, 77, sized(1), pinned=False, own_ttl=False, logged=True)
    assert lru.least_recently_used(1e9, AverageSize(1, 1), most, 10**6) == list(range(1, most + 1))


def test_tokens_above_32_bits_do_not_wrap() -> None:
    lru = LruIndex()
    lru.add(1, 1, sized(2**40), pinned=False, own_ttl=False)
    assert lru.least_recently_used(1, AverageSize(1, 1), 1, 1) == [1]
    assert int(np.max(lru._rows["tokens"])) == 2**32 - 1
