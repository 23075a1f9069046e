"""The ledger against a list and a dictionary: who goes first, whatever came and went before."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from suffixsvc.index.eviction import Cost, Ledger


class LedgerMachine(RuleBasedStateMachine):
    """Recency is the place in a list; everything else stands in a dictionary."""

    @initialize()
    def begin(self) -> None:
        self.ledger = Ledger()
        self.ledger.complete = True
        self.order: list[int] = []  # ids, the longest unused first
        self.rows: dict[int, tuple[int, bool, bool, int]] = {}  # tokens, stays, own TTL, written
        self.writer_of: dict[int, int] = {}
        self.highest = 0
        self.now = 1000

    @rule(
        ahead=st.integers(1, 3),
        tokens=st.integers(1, 50),
        stays=st.booleans(),
        own_ttl=st.booleans(),
        pause=st.integers(-5, 20),
    )
    def write(self, ahead: int, tokens: int, stays: bool, own_ttl: bool, pause: int) -> None:
        self.highest += ahead
        self._write(self.highest, tokens, stays, own_ttl, pause)

    @precondition(lambda self: self.highest > 1)
    @rule(data=st.data())
    def write_out_of_order(self, data: st.DataObject) -> None:
        """The commits of two threads may be told in the other order."""
        output_id = data.draw(st.integers(1, self.highest))
        if output_id not in self.writer_of:
            self._write(output_id, 7, False, False, 0)

    def _write(self, output_id: int, tokens: int, stays: bool, own_ttl: bool, pause: int) -> None:
        self.now += pause  # clocks step back
        self.ledger.kept(output_id, self.now, tokens, stays=stays, own_ttl=own_ttl)
        self.ledger.written_by(5000 + output_id, output_id)
        self.rows[output_id] = tokens, stays, own_ttl, self.now
        self.order.append(output_id)
        self.writer_of[output_id] = 5000 + output_id

    @rule(data=st.data(), sealed=st.booleans())
    def draft(self, data: st.DataObject, sealed: bool) -> None:
        used = data.draw(st.lists(st.sampled_from([0, *self.writer_of]), unique=True, max_size=5))
        writers = [] if sealed else [self.writer_of.get(i, 1) for i in used]
        self.ledger.drafted(writers, used if sealed else [], self.now)
        for output_id in used:
            if output_id in self.rows:
                self.order.remove(output_id)
                self.order.append(output_id)

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def drop(self, data: st.DataObject) -> None:
        gone = data.draw(st.lists(st.sampled_from(sorted(self.rows)), unique=True))
        self.ledger.dropped([*gone, *gone, 10**6])
        for output_id in gone:
            del self.rows[output_id]
            self.order.remove(output_id)

    @rule()
    def restart(self) -> None:
        """Another process reads the log, and what this one saved: nobody changes places."""
        fresh = Ledger()
        for output_id in sorted(self.rows):
            tokens, stays, own_ttl, written = self.rows[output_id]
            fresh.known(output_id, written, tokens, stays=stays, own_ttl=own_ttl)
            fresh.written_by(5000 + output_id, output_id)
        assert fresh.load(self.ledger.save())
        fresh.complete = True
        self.ledger = fresh

    @invariant()
    def same(self) -> None:
        assert len(self.ledger) == len(self.rows)
        staying = [row[0] for row in self.rows.values() if row[1]]
        assert self.ledger.staying == (len(staying), sum(staying))

    @rule(need=st.floats(1, 1500), most=st.integers(1, 8), most_tokens=st.integers(1, 120))
    def ask(self, need: float, most: int, most_tokens: int) -> None:
        cost = Cost(row=10, token=2.5)
        expected: list[int] = []
        taken, tokens = 0.0, 0
        for output_id in [i for i in self.order if not self.rows[i][1]]:
            size = self.rows[output_id][0]
            if taken >= need or len(expected) == most or (expected and tokens + size > most_tokens):
                break
            expected.append(output_id)
            taken += 10 + 2.5 * size
            tokens += size
        assert self.ledger.oldest(need, cost, most, most_tokens) == expected

    @rule(before=st.integers(900, 3000), most=st.integers(1, 8))
    def ask_who_is_due(self, before: int, most: int) -> None:
        due = [
            i
            for i, (_, stays, own, written) in sorted(self.rows.items())
            if written <= before and not stays and not own
        ]
        assert self.ledger.due(before, most) == due[:most]


LedgerMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestLedger = LedgerMachine.TestCase


def test_thousands_come_and_go_and_the_books_stay_small() -> None:
    ledger = Ledger()
    ledger.complete = True
    for first in range(1, 20_001, 100):
        for output_id in range(first, first + 100):
            ledger.kept(output_id, output_id, 5, stays=False, own_ttl=False)
            ledger.written_by(output_id, output_id)
        ledger.dropped(range(first - 500, first - 400))
    assert len(ledger) == 500
    assert len(ledger._rows["id"]) < 2000
    assert len(ledger._id_of) < 2000
    assert ledger.oldest(1, Cost(1, 1), 256, 10**6) == [19_501]


def test_what_was_saved_by_another_version_is_left_alone() -> None:
    ledger = Ledger()
    ledger.known(1, 10, 5, stays=False, own_ttl=False)
    ledger.drafted([], [1], 50)
    saved = ledger.save()
    for bad in (
        b"",
        saved[:-1],
        saved + b"\0",
        b"XXXX" + saved[4:],
        saved[:4] + struct.pack("<H", 2) + saved[6:],
        saved[:8] + struct.pack("<I", 2**32 - 1) + saved[12:],
    ):
        assert not Ledger().load(bad)
    assert Ledger().load(saved)  # of an output that is gone meanwhile: nothing to say


def test_the_bytes_of_the_saved_state_are_as_documented() -> None:
    """docs/format.md: a head, the ids, the times."""
    ledger = Ledger()
    for output_id in (3, 5, 9):
        ledger.known(output_id, 10 * output_id, 5, stays=False, own_ttl=False)
    ledger.drafted([], [9, 3], 1000)
    assert ledger.save() == b"SXUS" + struct.pack("<HHI2Q2q", 1, 0, 2, 3, 9, 1001, 1000)
    assert not ledger.unsaved


@pytest.mark.parametrize("most", [1, 2, 300])
def test_outputs_of_one_moment_go_in_the_order_of_the_log(most: int) -> None:
    """One append of many outputs has one time for all of them."""
    ledger = Ledger()
    for output_id in range(1, 400):
        ledger.known(output_id, 77, 1, stays=False, own_ttl=False)
    assert ledger.oldest(1e9, Cost(1, 1), most, 10**6) == list(range(1, most + 1))


def test_tokens_above_32_bits_do_not_wrap() -> None:
    ledger = Ledger()
    ledger.kept(1, 1, 2**40, stays=False, own_ttl=False)
    assert ledger.oldest(1, Cost(1, 1), 1, 1) == [1]
    assert int(np.max(ledger._rows["tokens"])) == 2**32 - 1
