"""Check of a value by a JSON schema of a client, in bounded work.

A schema is data of others. These keywords may take exponential time, and are not checked:

- regular expressions (``pattern``, ``patternProperties``), and ``additionalProperties`` beside the latter
- ``unevaluatedProperties`` and ``unevaluatedItems``, which evaluate the rest of the schema again

References are resolved inside of the schema only. Every evaluation of a keyword has a cost, the number of
subschemas and items that it may examine; a check of a higher total cost than :data:`MAX_COST` ends. A schema
that cannot be evaluated to its end fits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import jsonschema
import referencing
from jsonschema import Draft202012Validator
from jsonschema.validators import extend

#: of one check, which takes at most seconds: the event loop waits for it
MAX_COST: Final = 200_000
_cost_left: ContextVar[list[int]] = ContextVar("cost_left")

Errors = Iterator[jsonschema.ValidationError]


class _TooCostlyError(Exception):
    """The schema is not evaluated to its end."""


def _size(value: Any) -> int:
    return len(value) if isinstance(value, (list, dict)) else 0


def _counted(keyword: str) -> Any:
    original = Draft202012Validator.VALIDATORS[keyword]
    # uniqueItems compares every item with every other one, if they have no order
    power = 2 if keyword == "uniqueItems" else 1

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
        if keyword == "additionalProperties" and "patternProperties" in schema:
            return
        left = _cost_left.get()
        left[0] -= 1 + _size(value) + _size(instance) ** power
        if left[0] < 0:
            raise _TooCostlyError
        yield from original(validator, value, instance, schema) or ()

    return check


def _unchecked(*_: Any) -> Errors:
    return iter(())


_UNCHECKED: Final = frozenset({"pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems"})
_Validator: Final[Any] = extend(  # type: ignore[no-untyped-call]  # the stubs lack its types
    Draft202012Validator,
    {
        keyword: _unchecked if keyword in _UNCHECKED else _counted(keyword)
        for keyword in Draft202012Validator.VALIDATORS
    },
)


def fits_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value fits a schema (draft 2020-12), as far as the module says."""
    token = _cost_left.set([MAX_COST])
    try:
        # an empty registry: the default one would fetch schemas of other hosts
        return bool(_Validator(schema, registry=referencing.Registry()).is_valid(value))
    except Exception:  # a malformed schema raises exceptions of all types, RecursionError among them
        return False
    finally:
        _cost_left.reset(token)
