"""Lookup of fields in records by dotted path: ``choices.0.message.content``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from difflib import get_close_matches
from itertools import islice
from typing import Any, Final

from suffixsvc.errors import InvalidInputError

#: field names and nesting levels that an error lists
_SHOWN_NAMES: Final = 40
_SHOWN_LEVELS: Final = 3
#: field names and nesting levels that are searched for the nearest name
_MOST_NAMES: Final = 1000
_MOST_LEVELS: Final = 6


class FieldFinder:
    """Finds one value in records.

    Args:
        name: name of the option, such as "response_field".
        given: path that the user named, or "".
        usual: default paths, by priority.

    Attributes:
        name, given: as above.
        seen: whether a record had the given field, even if null.
    """

    def __init__(self, name: str, given: str, usual: Iterable[str]) -> None:
        self.name = name
        self.given = given
        self.seen = False
        paths = [path.split(".") for path in ((given,) if given else usual)]
        self._paths = [(path[0], tuple(path[1:])) for path in paths]

    def find(self, record: dict[str, Any]) -> Any:
        """Return the first value that is not null, or None."""
        if self.given:
            self.seen = self.seen or self.has(record)
            if self.given in record:  # a key may contain dots
                return record[self.given]
        for first, rest in self._paths:
            value = record.get(first)
            if value is not None and rest:
                value = _walk(value, rest)
            if value is not None:
                return value
        return None

    @property
    def keys(self) -> frozenset[str]:
        """Top-level keys of the paths."""
        return frozenset(first for first, _ in self._paths)

    def has(self, record: dict[str, Any]) -> bool:
        """Whether the record has the field, even if null."""
        if self.given and self.given in record:
            return True
        for first, rest in self._paths:
            *above, last = (first, *rest)
            parent = _walk(record, above)
            if (isinstance(parent, dict) and last in parent) or _walk(parent, (last,)) is not None:
                return True
        return False

    def missing(self, record: dict[str, Any]) -> InvalidInputError:
        """Return the error for a record without the field, with its fields and the nearest name."""
        names = list(islice(_names(record, "", 1), _MOST_NAMES))
        wanted = self.given or " or ".join(".".join((first, *rest)) for first, rest in self._paths)
        near = get_close_matches(wanted, [name for _, name in names], 1)
        listed = [name for level, name in names if level <= _SHOWN_LEVELS][:_SHOWN_NAMES]
        shown = ", ".join([*listed, "..."] if len(listed) < len(names) else listed)
        return InvalidInputError(
            f"no field {wanted}",
            got=f"the fields {shown}" if shown else "a record without fields",
            remedy=f"Did you mean {near[0]}?"
            if near
            else f"Name the field with {self.name} (--{self.name.replace('_', '-')}).",
        )


def _names(value: Any, prefix: str, level: int) -> Iterator[tuple[int, str]]:
    """Yield (level, name) of the fields of a record, of nested objects and of first list entries."""
    if level > _MOST_LEVELS:
        return
    if isinstance(value, dict):
        entries = list(value.items())
    elif isinstance(value, list):
        entries = [("0", one) for one in value[:1] if isinstance(one, (dict, list))]
    else:
        return
    for key, inner in entries:
        yield level, f"{prefix}{key}"
        yield from _names(inner, f"{prefix}{key}.", level + 1)


def _walk(value: Any, steps: Iterable[str]) -> Any:
    for step in steps:
        if isinstance(value, dict):
            value = value.get(step)
        elif isinstance(value, list) and step.lstrip("-").isdecimal():
            place = int(step)
            value = value[place] if -len(value) <= place < len(value) else None
        else:
            return None
    return value
