"""How much each namespace may hold and for how long: settings on paths.

    [default]                              every namespace
    max_bytes = "4 GiB"

    [namespaces."acme"]                    acme and everything below it
    ttl = "30d"

    [namespaces."acme/qwen2.5-coder"]      inherits ttl = "30d", has its own max_bytes
    max_bytes = "1 GiB"

    [namespaces."acme/qwen2.5-coder/docs"] inherits both; what is in it stays
    pinned = true

Every field is looked up by itself: the nearest path at or above a namespace that sets it wins, then the
default. A limit on "acme" is the limit of *each* namespace below it, not of all of them together: nobody's
writes cost another namespace its room.
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

import pygtrie

from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError, InvalidNamespaceError

__all__ = ["UNLIMITED", "Policies", "Policy"]

#: as ``max_bytes``: no limit here, whatever paths further up say
UNLIMITED: Final = 2**63 - 1
_MAX_TTL_SECONDS: Final = 2**32 - 1

_UNITS: Final = {"B": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_QUOTE: Final = ' (a path with "/" or "." stands in quotes: [namespaces."a/b.c"])'
_QUANTITY: Final = re.compile(r"([0-9]+) ?([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class Policy:
    """What was set at one path, or (:meth:`Policies.of`) what holds for a namespace. None = not set.

    Attributes:
        max_bytes: what the namespace may hold, as ``NamespaceStats.held_bytes`` counts it; beyond it the
            outputs least recently drafted from are forgotten. :data:`UNLIMITED` ends a limit set further up.
        ttl_seconds: outputs without a time to live of their own are forgotten this long after they were
            written; 0 = never.
        pinned: nothing is evicted and ``ttl_seconds`` does not apply; writes that do not fit are refused.
    """

    max_bytes: int | None = None
    ttl_seconds: int | None = None
    pinned: bool | None = None

    def __post_init__(self) -> None:
        _require_int("max_bytes", self.max_bytes, 1, UNLIMITED)
        _require_int("ttl_seconds", self.ttl_seconds, 0, _MAX_TTL_SECONDS)
        if self.pinned is not None and type(self.pinned) is not bool:
            raise InvalidConfigError("pinned makes no sense", expected="true or false", got=repr(self.pinned))

    def over(self, above: Policy) -> Policy:
        """Our fields, and those of ``above`` where we set none."""
        merged = {f.name: getattr(self, f.name) for f in fields(self)}
        return Policy(**{name: getattr(above, name) if v is None else v for name, v in merged.items()})


class Policies:
    """Policies of namespace paths; immutable, thread-safe.

    Args:
        of_paths: path -> what is set there, for it and for every namespace below it.
        default: what holds where no path says otherwise.

    Raises:
        InvalidNamespaceError: a path is none. InvalidConfigError: a value is no Policy.
    """

    def __init__(self, of_paths: Mapping[str, Policy] | None = None, default: Policy | None = None) -> None:
        self.default = Policy() if default is None else _require_policy(default, "default")
        self._trie = pygtrie.StringTrie(separator="/")
        for path, policy in (of_paths or {}).items():
            self._trie[validate_namespace(path)] = _require_policy(policy, path)

    def of(self, path: str) -> Policy:
        """What holds for the namespace at ``path``: of each field the nearest setting."""
        policy = self.default
        for step in self._trie.prefixes(path):  # from the root down
            policy = step.value.over(policy)
        return policy

    @property
    def has_ttl(self) -> bool:
        """Whether any namespace may have a time to live from here."""
        return any(policy.ttl_seconds for policy in (self.default, *self._trie.values()))

    @staticmethod
    def load(file: str | os.PathLike[str]) -> Policies:
        """Read a TOML file as drawn at the top of this module.

        Sizes are bytes, or text with a unit (``"512 MiB"``, ``"2 GB"``, ``"unlimited"``); times are seconds,
        or text with s, m, h or d (``"7d"``).

        Raises:
            InvalidConfigError: it names the file, and the line or the key that is wrong.
        """
        path = Path(file)
        try:
            with path.open("rb") as opened:
                tables = tomllib.load(opened)
        except OSError as error:
            raise InvalidConfigError(
                f"the policies in {path} cannot be read", expected="a TOML file", got=error.strerror
            ) from None
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:  # the first says line
            raise InvalidConfigError(
                f"the policies in {path} are no TOML", expected="a TOML file", got=error
            ) from None
        return _from_tables(tables, str(path))


def _from_tables(tables: dict[str, Any], file: str) -> Policies:
    for name in tables:
        if name not in ("default", "namespaces"):
            raise _bad(file, name, '[default] and [namespaces."PATH"]', "another key")
    default = _policy(tables.get("default", {}), file, "default")
    namespaces = _table(tables.get("namespaces", {}), file, "namespaces")
    of_paths: dict[str, Policy] = {}
    for path, table in namespaces.items():
        key = f'namespaces."{path}"'
        try:
            validate_namespace(path)
        except InvalidNamespaceError as error:
            raise _bad(file, key, error.expected, error.got) from None
        of_paths[path] = _policy(table, file, key)
    return Policies(of_paths, default)


def _policy(table: object, file: str, key: str) -> Policy:
    told: dict[str, Any] = {}
    for name, value in _table(table, file, key).items():
        where = f"{key}.{name}"
        match name:
            case "max_bytes":
                told["max_bytes"] = UNLIMITED if value == "unlimited" else _quantity(value, _UNITS)
                wanted = 'bytes, as 1073741824, "1 GiB" or "unlimited"'
            case "ttl":
                told["ttl_seconds"] = _quantity(value, _SPANS)
                wanted = 'seconds, as 3600, "7d" or 0 for never'
            case "pinned":
                told["pinned"] = value
                wanted = "true or false"
            case _:
                hint = (
                    ' (a path with "/" stands in quotes: [namespaces."a/b"])' if type(value) is dict else ""
                )
                raise _bad(file, where, "max_bytes, ttl or pinned", f"{name}{hint}")
        try:
            Policy(**told)
        except InvalidConfigError:
            raise _bad(file, where, wanted, repr(value)) from None
    return Policy(**told)


def _quantity(value: object, units: Mapping[str, int]) -> object:
    """A number with a unit as a number; anything else as it is, for the Policy to refuse."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None or match[2] not in units or len(match[1]) > 20:
        return value if type(value) is int else "?"
    return int(match[1]) * units[match[2]]


def _table(value: object, file: str, key: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _bad(file, key, f"a table, as in [{key}]", repr(value))
    return value


def _bad(file: str, key: str, expected: object, got: object) -> InvalidConfigError:
    return InvalidConfigError(
        f"the policies in {file} are wrong at {key}", expected=expected, got=str(got)[:200]
    )


def _require_policy(policy: object, where: str) -> Policy:
    if not isinstance(policy, Policy):
        raise InvalidConfigError(
            f"the policy of {where} is none", expected="a Policy", got=type(policy).__name__
        )
    return policy


def _require_int(name: str, value: object, smallest: int, largest: int) -> None:
    if value is None:
        return
    if type(value) is not int or not smallest <= value <= largest:
        raise InvalidConfigError(
            f"{name} makes no sense",
            expected=f"an integer in {smallest} .. {largest}, or None",
            got=repr(value)[:80],
        )
