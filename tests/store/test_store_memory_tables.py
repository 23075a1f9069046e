"""The databases in memory against a dictionary: order, ranges, transactions that are aborted."""

from __future__ import annotations

import random

import pytest

from suffixsvc.store.memory_tables import MemoryTables
from support.long_form import rounds


def contents(tables: MemoryTables) -> dict[bytes, bytes]:
    """Return the rows, checked to be in order and to agree with lookups."""
    rows = list(tables.rows("state"))
    assert [key for key, _ in rows] == sorted(key for key, _ in rows) == list(tables.keys("state"))
    assert tables.entries("state") == len(rows)
    assert all(tables.get("state", key) == value for key, value in rows)
    assert tables.bytes == sum(len(key) + len(value) for key, value in rows)
    return dict(rows)


@pytest.mark.parametrize("seed", range(rounds(3, full=6)))
@pytest.mark.parametrize("ascending", [True, False])
def test_rows_are_those_of_a_dictionary(seed: int, ascending: bool) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    tables, model = MemoryTables(), dict[bytes, bytes]()
    for n in range(40):
        tables.begin()
        before = dict(model)
        for i in range(rng.randrange(400)):
            number = n * 1000 + i if ascending else rng.randrange(20_000)
            key = number.to_bytes(rng.choice([4, 5]), "big")
            if model and rng.random() < 0.3:
                gone = rng.choice([key, rng.choice(list(model))])
                tables.drop("state", gone)
                model.pop(gone, None)
            else:
                model[key] = rng.randbytes(rng.randrange(4))
                tables.put("state", key, model[key])
        if rng.random() < 0.3:
            tables.abort()
            model = before
        else:
            tables.commit()
        assert contents(tables) == model
        first, last = sorted(rng.randrange(40_000).to_bytes(4, "big") for _ in range(2))
        assert list(tables.keys("state", first, last)) == sorted(k for k in model if first <= k <= last)
    tables.begin()
    for key in rng.sample(list(model), len(model)):
        tables.drop("state", key)
    assert contents(tables) == {}


def test_records_of_the_store_itself_do_not_count_as_bytes() -> None:
    tables = MemoryTables()
    tables.begin()
    tables.put("meta", b"counters", bytes(60))
    assert tables.bytes == 0
