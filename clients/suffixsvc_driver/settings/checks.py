"""Checks of the values of settings, which name the field, the condition and the value."""

from __future__ import annotations

import enum
import math
import numbers
import sys
from dataclasses import fields
from typing import Any, TypeVar

from suffixsvc.errors import InvalidConfigError

E = TypeVar("E", bound=enum.StrEnum)


def invalid(name: str, condition: str, got: object) -> InvalidConfigError:
    """Return the error of a value that does not meet its condition."""
    return InvalidConfigError(f"{name} must be {condition}", got=repr(got)[:80])


def as_integer(name: str, value: Any, least: int | None = 1) -> int:
    """Return an integer of at least ``least`` as an int.

    Raises:
        InvalidConfigError: another value.
    """
    fits = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not fits or (least is not None and value < least):
        raise invalid(name, "an int" if least is None else f"an int >= {least}", value)
    return int(value)


def as_real(
    name: str,
    value: Any,
    low: float = 0.0,
    high: float = sys.float_info.max,
    condition: str = "a finite number >= 0",
) -> float:
    """Return a number from ``low`` to ``high`` as a float.

    Args:
        condition: for the message.

    Raises:
        InvalidConfigError: another value.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise invalid(name, condition, value)
    try:
        number = float(value)
    except OverflowError:
        number = math.nan
    if not low <= number <= high:
        raise invalid(name, condition, value)
    return number


def as_member(kind: type[E], name: str, value: Any) -> E:
    """Return the member of ``kind`` that ``value`` names.

    Raises:
        InvalidConfigError: there is none.
    """
    try:
        return kind(value)
    except ValueError as err:
        raise invalid(name, " or ".join(kind), value) from err


def check_numbers(settings: Any, prefix: str = "", **least: int) -> None:
    """Check the fields of types ``int`` and ``float`` of a frozen dataclass, and convert them to these types.

    Args:
        settings: a dataclass of a module with ``from __future__ import annotations``.
        prefix: of the fields' names in errors.
        least: lower bounds of integers that are not 1, by field. Floats must be finite, and not negative.
    """
    for each in fields(settings):
        value = getattr(settings, each.name)
        if each.type == "int":
            value = as_integer(prefix + each.name, value, least.get(each.name, 1))
        elif each.type == "float":
            value = as_real(prefix + each.name, value)
        object.__setattr__(settings, each.name, value)


def require(fits: bool, condition: str, got: object) -> None:
    """Raise InvalidConfigError unless ``fits``."""
    if not fits:
        raise InvalidConfigError(condition, got=got)
