"""Small regular languages, as GBNF for llama.cpp and as a slow oracle: Brzozowski's derivatives.

An expression is a tuple: ("set", "abc"), ("seq", e, ..), ("alt", e, ..), ("many", e). ("alt",) is the empty
language and ("seq",) the empty text. What is left of an expression after a character is again one, and a text
can go on exactly where that is not the empty language.
"""

from __future__ import annotations

import functools
import random
from typing import Any

__all__ = ["NOTHING", "Expression", "after", "as_gbnf", "may_end", "random_expression"]

Expression = tuple[Any, ...]
NOTHING: Expression = ("alt",)
_END: Expression = ("seq",)


def random_expression(chance: random.Random, alphabet: str, depth: int = 3) -> Expression:
    kind = chance.choice(["set", "seq", "alt", "many"]) if depth else "set"
    if kind == "set":
        return ("set", "".join(sorted(chance.sample(alphabet, chance.randint(1, 3)))))
    if kind == "many":
        return ("many", random_expression(chance, alphabet, depth - 1))
    parts = [random_expression(chance, alphabet, depth - 1) for _ in range(chance.randint(2, 3))]
    return (kind, *parts)


def as_gbnf(expression: Expression) -> str:
    """The whole grammar."""
    return f"root ::= {_gbnf(expression)}\n"


def _gbnf(expression: Expression) -> str:
    kind, *parts = expression
    if kind == "set":
        return "[" + "".join(f"\\x{ord(c):02X}" for c in parts[0]) + "]"
    if kind == "many":
        return f"({_gbnf(parts[0])})*"
    return "(" + (" " if kind == "seq" else " | ").join(_gbnf(part) for part in parts) + ")"


@functools.cache
def may_end(expression: Expression) -> bool:
    kind, *parts = expression
    if kind in ("seq", "many"):
        return kind == "many" or all(may_end(part) for part in parts)
    return kind == "alt" and any(may_end(part) for part in parts)


@functools.cache
def after(expression: Expression, text: str) -> Expression:
    """What may follow ``text``; NOTHING where it cannot begin the language."""
    for char in text:
        expression = _after(expression, char)
    return expression


@functools.cache
def _after(expression: Expression, char: str) -> Expression:
    kind, *parts = expression
    if kind == "set":
        return _END if char in parts[0] else NOTHING
    if kind == "many":
        return _seq(_after(parts[0], char), expression)
    if kind == "alt":
        return _alt(*(_after(part, char) for part in parts))
    if not parts:
        return NOTHING
    first, rest = parts[0], ("seq", *parts[1:])
    taken = _seq(_after(first, char), rest)
    return _alt(taken, _after(rest, char)) if may_end(first) else taken


def _seq(first: Expression, rest: Expression) -> Expression:
    if NOTHING in (first, rest):
        return NOTHING
    return rest if first == _END else first if rest == _END else ("seq", first, rest)


def _alt(*parts: Expression) -> Expression:
    flat = {p for part in parts for p in (part[1:] if part[0] == "alt" else [part])}
    return flat.pop() if len(flat) == 1 else ("alt", *sorted(flat, key=repr))
