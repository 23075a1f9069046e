"""Task of the examples: questions about a small database, and a tool that queries it."""

from __future__ import annotations

import json
import sqlite3
from typing import Final

PLANNER: Final = (
    "You are the planner. Do not answer the question. Hand it over to the analyst, with a plan: one sentence "
    "that names the tables, the condition and the order."
)
ANALYST: Final = (
    "You are the analyst of a shop. Its SQLite database has the tables customers(id, name, city) and "
    "orders(id, customer_id, euros). Query it with the tool run_sql. Then check that the result answers the "
    "question, and answer in one sentence."
)
QUESTIONS: Final = (
    "Which customer of Lisbon has spent the most in total?",
    "How many orders do customers of Porto have?",
    "What is the average amount of the orders of Lisbon?",
)
#: questions like those, which the first run did not answer
OTHER_QUESTIONS: Final = (
    "Which customer of Porto has spent the most in total?",
    "How many orders do customers of Faro have?",
    "What is the average amount of the orders of Porto?",
)
_TABLES: Final = """
create table customers (id integer primary key, name text, city text);
create table orders (id integer primary key, customer_id integer references customers, euros integer);
insert into customers
values (1, 'Ana', 'Lisbon'), (2, 'Rui', 'Lisbon'), (3, 'Eva', 'Porto'), (4, 'Gil', 'Faro');
insert into orders values (1, 1, 30), (2, 1, 55), (3, 2, 70), (4, 3, 25), (5, 3, 40), (6, 4, 15);
pragma query_only = on;
"""
_MOST_ROWS: Final = 20


class Shop:
    """The database, which cannot be changed, and what the agents did with it.

    Attributes:
        plans: of the planner, one for each hand-off.
        queries: with which the tool was called, and its results.
    """

    def __init__(self) -> None:
        self.plans: list[str] = []
        self.queries: list[tuple[str, str]] = []
        # frameworks call tools in threads of their own, one at a time
        self._database = sqlite3.connect(":memory:", check_same_thread=False)
        self._database.executescript(_TABLES)

    def run_sql(self, query: str) -> str:
        """Return the rows as JSON, or the error of the database: the agent may try again."""
        try:
            result = json.dumps(self._database.execute(query).fetchmany(_MOST_ROWS))
        except sqlite3.Error as error:
            result = f"error: {error}"
        self.queries.append((query, result))
        return result

    def close(self) -> None:
        """Close the database."""
        self._database.close()
