"""The shop database of the demo: a small SQLite file with the same rows every time, and read-only queries."""

from __future__ import annotations

import random
import sqlite3
import time
import tomllib
from contextlib import closing
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Final

_SHOP: Final = tomllib.loads(Path(__file__).with_name("shop.toml").read_text(encoding="utf-8"))
#: part of the agents' prompts; `create` executes it
SCHEMA: Final[str] = _SHOP["schema"]
SEED: Final = 20240229
MAX_ROWS: Final = 5
#: limit of a value in characters or bytes, so that a row always fits into a prompt
MAX_CELL: Final = 200
#: timeout of a query; on a shop this small only a runaway join takes longer
MAX_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class QueryResult:
    """Result of a query: at most ``MAX_ROWS`` rows, or SQLite's error message."""

    columns: tuple[str, ...] = ()
    rows: tuple[tuple[object, ...], ...] = ()
    total_rows: int = 0
    error: str = ""

    @property
    def ok(self) -> bool:
        """True without an error."""
        return not self.error


def create(path: Path) -> None:
    """Write the shop to ``path``, replacing an existing file. The bytes depend on the SQLite version only."""
    path.unlink(missing_ok=True)
    rng = random.Random(SEED)
    with closing(sqlite3.connect(path)) as db, db:
        db.executescript(SCHEMA)
        db.executemany("INSERT INTO customers VALUES (?, ?, ?, ?, ?)", _customers(rng))
        products = _products(rng)
        db.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", products)
        for order_id in range(1, 401):
            placed = date(2024, 1, 1) + timedelta(days=rng.randrange(366))
            customer = min(rng.randrange(1, 61), rng.randrange(1, 61))
            db.execute(
                "INSERT INTO orders VALUES (?, ?, ?, ?)",
                (order_id, customer, placed.isoformat(), rng.choice(_SHOP["statuses"])),
            )
            # the last two products are never ordered: questions about such products have an answer
            for product_id in rng.sample(range(1, len(products) - 1), rng.choice([1, 1, 2, 3])):
                db.execute(
                    "INSERT INTO order_items VALUES (?, ?, ?)", (order_id, product_id, rng.randint(1, 4))
                )


def _customers(rng: random.Random) -> list[tuple[object, ...]]:
    names = rng.sample(
        [f"{first} {last}" for first in _SHOP["first_names"] for last in _SHOP["last_names"]], 60
    )
    rows: list[tuple[object, ...]] = []
    for number, name in enumerate(names, 1):
        country = rng.choice(list(_SHOP["cities"]))
        joined = date(2021, 1, 1) + timedelta(days=rng.randrange(1095))
        rows.append((number, name, rng.choice(_SHOP["cities"][country]), country, joined.isoformat()))
    return rows


def _products(rng: random.Random) -> list[tuple[object, ...]]:
    goods = [(name, category) for category, names in _SHOP["products"].items() for name in names]
    return [
        (number, name, category, round(rng.uniform(4, 160), 2))
        for number, (name, category) in enumerate(goods, 1)
    ]


def execute(path: Path, sql: str) -> QueryResult:
    """Execute one SELECT. The file is opened read-only, and an authorizer permits reading only."""
    if not sql.strip():
        return QueryResult(error="no SQL statement found in the answer")
    started = time.monotonic()
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as db:
            db.set_authorizer(_authorise)
            db.set_progress_handler(lambda: time.monotonic() - started > MAX_SECONDS, 10_000)
            cursor = db.execute(sql)
            rows = cursor.fetchall()
    except (sqlite3.Error, sqlite3.Warning, UnicodeError, ValueError) as error:
        return QueryResult(error=str(error))
    if cursor.description is None:
        return QueryResult(error="the statement returns no rows")
    limited = tuple(tuple(_short(value) for value in row) for row in rows[:MAX_ROWS])
    return QueryResult(tuple(column[0] for column in cursor.description), limited, len(rows))


def _authorise(action: int, *_: object) -> int:
    reading = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
    return sqlite3.SQLITE_OK if action in reading else sqlite3.SQLITE_DENY


def _short(value: object) -> object:
    if isinstance(value, str | bytes):
        return value[:MAX_CELL]
    return round(value, 2) if isinstance(value, float) else value
