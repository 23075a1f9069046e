"""Questions of the demo: passes of different questions of the same kind."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "AFTER_RESTART",
    "FIRST_MATCH",
    "FIRST_PASS",
    "SECOND_PASS",
    "THIRD_PASS",
    "Question",
    "passes",
]


@dataclass(frozen=True, slots=True)
class Question:
    """One question; ``key`` names its session, e.g. "p1-q3"."""

    key: str
    text: str


def _numbered(number: int, texts: list[str]) -> tuple[Question, ...]:
    return tuple(Question(f"p{number}-q{i}", text) for i, text in enumerate(texts, 1))


FIRST_PASS: Final = _numbered(
    1,
    [
        "Which 5 customers placed the most orders?",
        "What is the total revenue per product category?",
        "How many orders were cancelled in each country?",
        "Which 5 products sold the most units?",
        "How many customers joined in each year?",
        "What is the average price of the products in each category?",
    ],
)

SECOND_PASS: Final = _numbered(
    2,
    [
        "Which 5 customers spent the most money?",
        "What is the total revenue per country?",
        "How many orders were delivered in each city?",
        "Which 5 products brought the most revenue?",
        "How many orders were placed in each month?",
        "What is the highest price of the products in each category?",
    ],
)

#: for measurements that need more calls than the demo makes
THIRD_PASS: Final = _numbered(
    5,
    [
        "Which 5 customers cancelled the most orders?",
        "What is the total revenue per year?",
        "How many customers live in each country?",
        "Which 5 products were ordered least often?",
        "How many products are there in each category?",
        "What is the average value of an order in each country?",
    ],
)

#: a new question after the service was killed: its first call drafts from what the store restored
AFTER_RESTART: Final = Question("p3-q1", "Which 5 cities placed the most orders?")

#: for the stage in which every layer drafts
FIRST_MATCH: Final = Question("p4-q1", "Which 3 countries have the most customers?")


def passes(questions: int) -> tuple[tuple[Question, ...], tuple[Question, ...]]:
    """The first ``questions`` of each of the demo's passes."""
    return FIRST_PASS[:questions], SECOND_PASS[:questions]
