"""TTL and the wall clock: steps of the clock must not delete outputs, elapsed time must.

Regression: expiry was compared with the wall clock. After one step forward (wrong firmware date, operator
error, bad time server) the next expiry run deleted every output with a TTL, durably; after a step back
outputs did not expire until the clock had caught up. An open store uses elapsed time; the movement of the
wall clock while it was closed counts after a grace period.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_testing import NS, golden_folder, make_output

from suffixsvc.clock import ClockReading, StoreClock, SystemTime
from suffixsvc.errors import StoreCorruptError
from suffixsvc.store import LmdbStore, MemoryStore
from suffixsvc.store.base import Store
from suffixsvc.store.records.table_records import decode_clock, encode_clock
from suffixsvc.types import NamespaceRecord
from support.store_parts import store_parts_of

HOUR = 3600.0
YEAR = 365 * 24 * HOUR


class Machine(SystemTime):
    """The two clocks of a machine: both advance, only the wall clock can be set."""

    def __init__(self, wall: float = 1_700_000_000.0) -> None:
        self.passed = 1000.0
        self.offset = wall - self.passed

    def wall(self) -> float:
        return self.passed + self.offset

    def elapsed(self) -> float:
        return self.passed

    def wait(self, seconds: float) -> None:
        self.passed += seconds

    def set_clock(self, seconds: float) -> None:
        """Set the wall clock forward by ``seconds``, or back."""
        self.offset += seconds


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture(params=["lmdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path, machine: Machine) -> Iterator[Store]:
    opened: Store
    if request.param == "lmdb":
        opened = open_folder(tmp_path / "data", machine)
    else:
        opened = MemoryStore(clock=machine)
        opened.add_namespace(NamespaceRecord(NS))
    yield opened
    opened.check()
    opened.close()


def open_folder(folder: Path, machine: Machine, grace_seconds: float = HOUR) -> LmdbStore:
    store = LmdbStore(folder, clock=machine, grace_seconds=grace_seconds)
    store.add_namespace(NamespaceRecord(NS))
    return store


def add(store: Store, ttl_seconds: int) -> int:
    return store.append([make_output([1, 2, ttl_seconds], ttl_seconds=ttl_seconds)]).result()[0]


def expired(store: Store) -> list[int]:
    return [stored.output_id for part in iter(store.expire, []) for stored in part]


# ------------------------------------------------------------------------------------------------ while
# running


@pytest.mark.parametrize("step", [10 * YEAR, -10 * YEAR])
def test_a_step_of_the_wall_clock_expires_nothing_and_saves_nothing(
    store: Store, machine: Machine, step: float
) -> None:
    """Regression: a step of ten years forward deleted the output at once; after one back it never expired."""
    first = add(store, 60)
    machine.set_clock(step)
    assert expired(store) == []
    machine.wait(30)
    second = add(store, 60)
    machine.wait(29)
    assert expired(store) == []
    machine.wait(1)
    assert expired(store) == [first]
    machine.wait(29)
    assert expired(store) == []
    machine.wait(1)
    assert expired(store) == [second]


def test_outputs_live_as_long_as_they_should_beside_a_clock_that_jumps_about(
    store: Store, machine: Machine
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    due_at: dict[int, float] = {}
    for _ in range(200):
        match rng.randrange(3):
            case 0:
                ttl = rng.randint(1, 100)
                due_at[add(store, ttl)] = machine.passed + ttl
            case 1:
                machine.wait(rng.uniform(0, 20))
            case _:
                machine.set_clock(rng.uniform(-YEAR, YEAR))
        removed = {output_id for output_id, due in due_at.items() if due <= machine.passed}
        assert set(expired(store)) == removed
        for output_id in removed:
            del due_at[output_id]


def test_the_machines_own_clocks_agree_about_how_time_passes() -> None:
    machine = SystemTime()
    wall, elapsed = machine.wall(), machine.elapsed()
    assert machine.elapsed() >= elapsed
    assert wall > 1.6e9


# ------------------------------------------------------------------------------------------------- at an
# opening


def test_time_without_a_process_counts_after_a_grace_period(tmp_path: Path, machine: Machine) -> None:
    """Regression: a wrong clock at boot deleted every output with a TTL. Outputs due at the close expire at
    once, those due because of the gap after the grace period, and new ones on time."""
    store = open_folder(tmp_path, machine)
    overdue, soon, late = add(store, 10), add(store, 5000), add(store, int(2 * YEAR))
    machine.wait(50)
    store.close()
    machine.wait(YEAR)
    store = open_folder(tmp_path, machine)
    assert store.stats().expiry_grace_seconds == HOUR
    assert expired(store) == [overdue]
    fresh = add(store, 60)
    machine.wait(59)
    assert expired(store) == []
    machine.wait(1)
    assert expired(store) == [fresh]
    machine.wait(HOUR - 61)
    assert store.stats().expiry_grace_seconds == 1
    store.check()
    store.close()
    store = open_folder(tmp_path, machine)
    machine.wait(HOUR)
    assert expired(store) == [soon]
    assert store.stats().expiry_grace_seconds == 0
    assert expired(store) == []
    assert [stored.output_id for stored in store.scan()] == [late]
    store.close()


def test_in_the_grace_period_old_outputs_expire_as_if_no_time_had_passed(
    tmp_path: Path, machine: Machine
) -> None:
    store = open_folder(tmp_path, machine)
    first = add(store, 100)
    store.close()
    machine.set_clock(YEAR)
    store = open_folder(tmp_path, machine)
    machine.wait(99)
    assert expired(store) == []
    machine.wait(1)
    assert expired(store) == [first]
    store.close()


def test_a_short_gap_has_a_short_grace(tmp_path: Path, machine: Machine) -> None:
    store = open_folder(tmp_path, machine)
    first = add(store, 10)
    store.close()
    machine.wait(15)
    store = open_folder(tmp_path, machine)
    assert store.stats().expiry_grace_seconds == 15
    machine.wait(9)
    assert expired(store) == []
    machine.wait(6)
    assert expired(store) == [first]
    store.close()


def test_a_clock_that_is_wrong_at_boot_and_put_right_in_time_deletes_nothing(
    tmp_path: Path, machine: Machine
) -> None:
    """The machine boots with a clock ten years ahead, and the time server corrects it a little later."""
    store = open_folder(tmp_path, machine)
    first = add(store, 1000)
    store.close()
    machine.wait(100)
    machine.set_clock(10 * YEAR)
    store = open_folder(tmp_path, machine, grace_seconds=600)
    machine.wait(60)
    assert expired(store) == []
    machine.set_clock(-10 * YEAR)
    machine.wait(540)
    assert expired(store) == []
    assert store.clock.now() == pytest.approx(machine.wall(), abs=1)  # corrected by ten years
    machine.wait(299)
    assert expired(store) == [], "100 s without a process, 899 with one"
    machine.wait(1)
    assert expired(store) == [first]
    store.close()


def test_processes_that_end_within_the_grace_leave_the_question_open(
    tmp_path: Path, machine: Machine
) -> None:
    """Repeated restarts with a wrong clock must not make the gap count."""
    store = open_folder(tmp_path, machine)
    first = add(store, 5000)
    store.close()
    machine.set_clock(10 * YEAR)
    for _ in range(5):
        store = open_folder(tmp_path, machine)
        add(store, 0)
        machine.wait(60)
        assert expired(store) == []
        store.close()
    machine.set_clock(-10 * YEAR)
    store = open_folder(tmp_path, machine)
    machine.wait(HOUR)
    assert expired(store) == []
    machine.wait(5000 - HOUR - 300)
    assert expired(store) == [first]
    store.close()


def test_a_clock_that_was_set_back_loses_no_time(tmp_path: Path, machine: Machine) -> None:
    store = open_folder(tmp_path, machine)
    first = add(store, 100)
    machine.wait(40)
    store.close()
    machine.set_clock(-10 * YEAR)
    store = open_folder(tmp_path, machine)
    assert store.stats().expiry_grace_seconds == 0
    assert store.clock.moved_seconds == pytest.approx(-10 * YEAR)
    second = add(store, 100)
    machine.wait(60)
    assert expired(store) == [first]
    machine.wait(40)
    assert expired(store) == [second]
    store.close()


def test_a_step_while_running_is_no_gap_at_the_next_opening(tmp_path: Path, machine: Machine) -> None:
    store = open_folder(tmp_path, machine)
    first = add(store, 100)
    machine.set_clock(10 * YEAR)
    store.close()
    store = open_folder(tmp_path, machine)
    assert store.stats().expiry_grace_seconds == 0
    machine.wait(99)
    assert expired(store) == []
    machine.wait(1)
    assert expired(store) == [first]
    store.close()


def test_a_folder_without_the_record_was_alive_at_its_newest_output(tmp_path: Path) -> None:
    machine = Machine(1_800_000_000.0)
    store = LmdbStore(golden_folder("v1", tmp_path / "old"), migrate=True, clock=machine)
    rows = list(store.scan())
    newest = max(stored.written_at for stored in rows)
    assert store.clock.moved_seconds == pytest.approx(1_800_000_000 - newest)
    assert store.stats().expiry_grace_seconds == HOUR
    assert any(stored.output.ttl_seconds for stored in rows)
    assert store.expire() == []
    machine.wait(HOUR)
    assert [stored.output.ttl_seconds for stored in store.expire()] == [60]
    store.check()
    store.close()


def test_outputs_retained_by_the_grace_period_are_skipped(tmp_path: Path, machine: Machine) -> None:
    """Expiry does not iterate over retained outputs."""
    store = open_folder(tmp_path, machine)
    store.append([make_output([1, n], ttl_seconds=100 + n % 50) for n in range(1, 700)]).result()
    store.close()
    machine.wait(YEAR)
    store = open_folder(tmp_path, machine)
    fresh = store.append([make_output([2, n], ttl_seconds=5) for n in range(1, 600)]).result()
    machine.wait(5)
    assert expired(store) == fresh
    machine.wait(HOUR)
    assert len(expired(store)) == 699
    store.check()
    store.close()


def test_an_open_store_that_nothing_is_written_to_notes_now_and_then_that_it_is_open(
    tmp_path: Path, machine: Machine
) -> None:
    store = open_folder(tmp_path, machine)
    machine.wait(YEAR)
    store.expire()
    with store_parts_of(store).environment.read() as view:
        stored = view.clock()
    assert stored is not None
    assert stored.wall_us == round(machine.wall() * 1e6)
    store.close()


# ---------------------------------------------------------------------------------------------------- the
# record


def test_the_record_comes_back_and_its_damage_is_noticed() -> None:
    raw = encode_clock(ClockReading(1, 2**62))
    assert decode_clock(raw) == ClockReading(1, 2**62)
    assert raw.startswith(b"SXCK")
    for damaged in (raw[:-1], raw + b"\0", raw.replace(b"SXCK", b"SXCT"), raw[:9] + b"\xff" + raw[10:]):
        with pytest.raises(StoreCorruptError, match="clock record"):
            decode_clock(damaged)


def test_a_new_store_has_the_wall_clocks_time_and_no_grace(machine: Machine) -> None:
    clock = StoreClock(grace_seconds=HOUR, source=machine)
    assert clock.now() == machine.wall()
    assert clock.grace_seconds == clock.moved_seconds == 0
    assert clock.reading() == ClockReading(*[round(machine.wall() * 1e6)] * 2)
