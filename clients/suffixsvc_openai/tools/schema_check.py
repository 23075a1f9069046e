"""Checks of values by the JSON schemas of a client, in bounded work.

A schema is data of others. These keywords may take exponential time, and are not checked:

- regular expressions (``pattern``, ``patternProperties``), and ``additionalProperties`` beside the latter
- ``unevaluatedProperties`` and ``unevaluatedItems``, which evaluate the rest of the schema again

References are JSON pointers into the schema (``#/$defs/..``); a schema that has others, or names parts of
itself otherwise (``$id`` below its root, ``$anchor``), would be searched at every reference.
Every evaluation of a subschema has a cost, by the number of its keywords, unknown ones included. That of a
keyword has one by the number of subschemas and items that it may examine, and by the size of the values that
an error message would show. A schema that cannot be evaluated to its end fits nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import jsonschema
import referencing
from jsonschema import Draft202012Validator
from jsonschema.validators import create

#: of all checks of one answer: about a tenth of a second, in which the event loop waits for them. A value of
#: 60 properties, each of an enum of 50, and a list of 100 objects takes 8,500.
MAX_COST: Final = 10_000
#: characters of a text, and nested values, that cost one unit
_SIZE_PER_COST: Final = 16
_CHARACTERS_PER_VALUE: Final = 64
_NAMES: Final = frozenset({"$id", "$anchor", "$dynamicAnchor", "$dynamicRef"})
_running: ContextVar[SchemaChecks] = ContextVar("running")

Errors = Iterator[jsonschema.ValidationError]


class _UncheckedError(Exception):
    """The schema is not evaluated to its end."""


class SchemaChecks:
    """The checks of one answer, however many there are.

    Args:
        max_cost: of all together; later checks fail.
    """

    def __init__(self, max_cost: int = MAX_COST) -> None:
        self._left = max_cost
        self._sizes: dict[int, int] = {}  # of values, by their id, during one check
        self._usable: dict[int, bool] = {}  # by the id of a schema

    def fits(self, value: Any, schema: Mapping[str, Any]) -> bool:
        """Whether a value fits a schema (draft 2020-12), as far as the module says.

        Args:
            value: the value.
            schema: lives as long as these checks.
        """
        if self._left <= 0:
            return False
        token = _running.set(self)
        try:
            if id(schema) not in self._usable:
                self._usable[id(schema)] = _is_local(schema)
            if not self._usable[id(schema)]:
                return False
            # an empty registry: the default one would fetch schemas of other hosts
            return bool(_Validator(schema, registry=referencing.Registry()).is_valid(value))
        except Exception:  # a malformed schema raises exceptions of all types, RecursionError among them
            self._usable[id(schema)] = False
            return False
        finally:
            _running.reset(token)
            self._sizes.clear()

    def charge(self, keyword: str, value: Any, instance: Any) -> None:
        """Count an evaluation. Raises an exception that :meth:`fits` expects: all is spent."""
        size = self._size(value) + self._size(instance)
        if keyword == "uniqueItems":  # compares every item with every other one, if they have no order
            size *= _length(instance)
        self._spend(1 + _length(value) + _length(instance) + size // _SIZE_PER_COST)

    def keywords(self, schema: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
        """Return the keywords of a subschema, and count its evaluation, as :meth:`charge` does."""
        self._spend(len(schema) // _SIZE_PER_COST)
        return schema.items()

    def _spend(self, cost: int) -> None:
        self._left -= cost
        if self._left < 0:
            raise _UncheckedError

    def _size(self, value: Any) -> int:
        """Number of nested values, and of the characters of texts in their measure."""
        if isinstance(value, str):
            return len(value) // _CHARACTERS_PER_VALUE
        if not isinstance(value, (list, dict)):
            return 0
        size = self._sizes.get(id(value))
        if size is None:
            keys, values = (value.keys(), value.values()) if isinstance(value, dict) else ((), value)
            size = len(value) + sum(map(self._size, keys)) + sum(map(self._size, values))
            self._sizes[id(value)] = size
        return size


def _length(value: Any) -> int:
    return len(value) if isinstance(value, (list, dict)) else 0


def _is_local(schema: Mapping[str, Any]) -> bool:
    """Whether a schema names its parts by JSON pointers only."""
    root = {name: value for name, value in schema.items() if name != "$id"}
    left: list[Any] = [root]
    while left:
        value = left.pop()
        if isinstance(value, dict):
            target = value.get("$ref", "#")
            pointer = not isinstance(target, str) or target == "#" or target.startswith("#/")
            if not pointer or not _NAMES.isdisjoint(value):
                return False
            left += value.values()
        elif isinstance(value, list):
            left += value
    return True


def _counted(keyword: str) -> Any:
    original = Draft202012Validator.VALIDATORS[keyword]

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
        if keyword == "additionalProperties" and "patternProperties" in schema:
            return
        _running.get().charge(keyword, value, instance)
        yield from original(validator, value, instance, schema) or ()

    return check


def _keywords(schema: Any) -> Iterable[tuple[str, Any]]:
    return _running.get().keywords(schema)


def _unchecked(*_: Any) -> Errors:
    return iter(())


_UNCHECKED: Final = frozenset({"pattern", "patternProperties", "unevaluatedProperties", "unevaluatedItems"})
_draft: Final[Any] = Draft202012Validator  # the stubs of create() differ from those of its arguments
_Validator: Final[Any] = create(
    _draft.META_SCHEMA,
    {keyword: _unchecked if keyword in _UNCHECKED else _counted(keyword) for keyword in _draft.VALIDATORS},
    type_checker=_draft.TYPE_CHECKER,
    format_checker=_draft.FORMAT_CHECKER,
    id_of=_draft.ID_OF,
    applicable_validators=_keywords,
)
