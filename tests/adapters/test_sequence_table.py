"""The table of live sequences: which of them a new one evicts, and what that costs while its lock is held."""

from __future__ import annotations

import time
from collections.abc import Hashable

import numpy as np

from suffixsvc_adapters.tracking.live_sequence import LiveSequence, View
from suffixsvc_adapters.tracking.sequence_table import SequenceTable


class Engine:
    """What an engine knows of its requests, and how often it was asked."""

    def __init__(self) -> None:
        self.running: set[Hashable] = set()
        self.unknown: set[Hashable] = set()
        self.asked = 0

    def is_over(self, hint: Hashable) -> bool | None:
        self.asked += 1
        return None if hint in self.unknown else hint not in self.running


def view_of(number: int, *more: int) -> View:
    return View(np.array([number, *more], np.int32), 0)


def insert(table: SequenceTable, number: int) -> LiveSequence:
    sequence = LiveSequence(view_of(number))
    table.insert(sequence, f"r{number}")
    table.release(sequence)
    return sequence


def test_a_sequence_is_running_while_one_of_its_names_is() -> None:
    """An engine that gives a request another name names its sequence twice. The old name has ended, and that
    was taken for the end of the sequence: its session was closed under the running request, whose output was
    kept in two parts. A sequence ends with the last of its names."""
    engine = Engine()
    engine.running = {"r1"}
    table = SequenceTable(8, 3600.0, time.monotonic, engine.is_over)
    insert(table, 1)
    engine.running = {"renamed"}
    found = table.claim(view_of(1, 2), "renamed")
    assert found is not None
    table.release(found)
    assert found.hints == {"r1", "renamed"}
    table.remove_idle()
    assert len(table) == 1, "it is running under its new name"
    engine.running.clear()
    table.remove_idle()
    assert len(table) == 0


def test_a_new_sequence_asks_about_a_bounded_number_of_others() -> None:
    """Above ``most``, every new sequence asked the engine about every other one with the table's lock held:
    1,025 questions of the 1,025th running sequence, 5 to 10 ms in which no other thread got a draft."""
    engine = Engine()
    engine.running = {f"r{i}" for i in range(2000)}
    table = SequenceTable(256, 3600.0, time.monotonic, engine.is_over)
    for number in range(1024):
        insert(table, number)
    assert len(table) == 1024, "all are running"
    engine.asked = 0
    insert(table, 1024)
    assert 0 < engine.asked <= 64


def test_every_sequence_is_asked_about_in_its_turn() -> None:
    """A bounded number of questions finds in a few entries whatever can be evicted: one that has ended, and
    one of which the engine knows nothing."""
    engine = Engine()
    engine.running = {f"r{i}" for i in range(2000)}
    table = SequenceTable(64, 3600.0, time.monotonic, engine.is_over)
    sequences = [insert(table, number) for number in range(300)]
    engine.running.remove("r150")
    engine.unknown.add("r200")
    for number in range(300, 320):
        insert(table, number)
    gone = [i for i, sequence in enumerate(sequences) if not sequence.hints]
    assert gone == [150, 200]
    assert len(table) == 318


def test_running_sequences_stay_up_to_eight_times_the_number() -> None:
    """The limit holds with a bounded number of questions, too, and the least recently used one is evicted."""
    engine = Engine()
    engine.running = {f"r{i}" for i in range(2000)}
    table = SequenceTable(16, 3600.0, time.monotonic, engine.is_over)
    sequences = [insert(table, number) for number in range(140)]
    assert len(table) == 128
    assert [i for i, sequence in enumerate(sequences) if not sequence.hints] == list(range(12))


def test_without_answers_of_the_engine_the_least_recently_used_one_is_evicted() -> None:
    table = SequenceTable(3, 3600.0, time.monotonic)
    sequences = [insert(table, number) for number in range(3)]
    claimed = table.claim(view_of(0, 9), "r0")
    assert claimed is sequences[0]
    table.release(claimed)
    insert(table, 3)
    assert [bool(sequence.hints) for sequence in sequences] == [True, False, True]
