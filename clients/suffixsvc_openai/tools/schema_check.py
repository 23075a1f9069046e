"""Check of a value by a JSON schema of a client, in bounded work.

A schema is data of others. These keywords may take exponential time, and are not checked:

- regular expressions (``pattern``, ``patternProperties``), and ``additionalProperties`` beside the latter
- ``unevaluatedProperties`` and ``unevaluatedItems``, which evaluate the rest of the schema again

References are resolved inside of the schema only, and at most 10,000 of them: each may double the work. A
schema that cannot be evaluated fits nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from typing import Any, Final

import jsonschema
import referencing
from jsonschema import Draft202012Validator
from jsonschema.validators import extend

_MAX_REFERENCES: Final = 10_000
_references_left: ContextVar[list[int]] = ContextVar("references_left")

Errors = Iterator[jsonschema.ValidationError]


class _TooManyReferencesError(Exception):
    """The schema is not evaluated to its end."""


def _counted(keyword: str) -> Any:
    original = Draft202012Validator.VALIDATORS[keyword]

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
        left = _references_left.get()
        left[0] -= 1
        if left[0] < 0:
            raise _TooManyReferencesError
        yield from original(validator, value, instance, schema) or ()

    return check


def _without_patterns(keyword: str) -> Any:
    original = Draft202012Validator.VALIDATORS[keyword]

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Errors:
        if "patternProperties" not in schema:
            yield from original(validator, value, instance, schema) or ()

    return check


def _unchecked(*_: Any) -> Errors:
    return iter(())


_Validator: Final[Any] = extend(  # type: ignore[no-untyped-call]  # the stubs lack its types
    Draft202012Validator,
    {
        "$ref": _counted("$ref"),
        "$dynamicRef": _counted("$dynamicRef"),
        "additionalProperties": _without_patterns("additionalProperties"),
        "unevaluatedProperties": _unchecked,
        "unevaluatedItems": _unchecked,
        "pattern": _unchecked,
        "patternProperties": _unchecked,
    },
)


def fits_schema(value: Any, schema: Mapping[str, Any]) -> bool:
    """Whether a value fits a schema (draft 2020-12), as far as the module says."""
    token = _references_left.set([_MAX_REFERENCES])
    try:
        # an empty registry: the default one would fetch schemas of other hosts
        return bool(_Validator(schema, registry=referencing.Registry()).is_valid(value))
    except Exception:  # a malformed schema raises exceptions of all types, RecursionError among them
        return False
    finally:
        _references_left.reset(token)
