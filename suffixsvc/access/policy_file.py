"""The policy file: limits of namespaces and rights of principals, in TOML.

[default]                        limits of every namespace (policies.py)
[namespaces."acme"]              limits of acme and everything below it
max_bytes = "4 GiB"

[principals."sql-agents"]        what a principal may do outside its own prefix
read = ["acme/shared"]
write = ["acme/shared/sql"]
follow = []
admin = []
certificates = ["sql.acme.example"]
uids = [1001]

[principals."*"]                 what every authenticated principal may do
read = ["public"]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from suffixsvc.access.grants import Grants, grants_of
from suffixsvc.access.principals import EVERY, Right, validate_principal
from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError, InvalidNamespaceError
from suffixsvc.policies import Policies, PolicyTable

K = TypeVar("K", str, int)


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Who may do what.

    Attributes:
        grants: rights on namespaces.
        principals: those that the file names.
        certificates: subject alternative name or common name of a client's certificate -> principal.
        uids: user id of a process on this machine -> principal.
        required: callers must be authenticated; False: no principal is named, and callers need not be.
    """

    grants: Grants = field(default_factory=Grants)
    principals: tuple[str, ...] = ()
    certificates: Mapping[str, str] = field(default_factory=dict)
    uids: Mapping[int, str] = field(default_factory=dict)
    required: bool = False


@dataclass(frozen=True, slots=True)
class PolicyFile:
    """The contents of a policy file."""

    policies: Policies = field(default_factory=Policies)
    access: AccessPolicy = field(default_factory=AccessPolicy)


def read_policy_file(file: str | os.PathLike[str]) -> PolicyFile:
    """Read and check a whole policy file, of the form shown in the docstring of this module.

    Raises:
        InvalidConfigError: names the file, and the invalid line or key.
    """
    from suffixsvc.settings import read_toml  # noqa: PLC0415 - pydantic is slow to load

    read = read_toml(_File, file, "policies file")
    named = read.principals or {}
    grants = [grant for name, table in named.items() for grant in grants_of(name, table.paths())]
    return PolicyFile(
        Policies({path: table.policy() for path, table in read.namespaces.items()}, read.default.policy()),
        AccessPolicy(
            Grants(grants),
            tuple(name for name in named if name != EVERY),
            _inverted("certificates", {name: table.certificates for name, table in named.items()}),
            _inverted("uids", {name: table.uids for name, table in named.items()}),
            required=read.principals is not None,
        ),
    )


@dataclass(frozen=True, slots=True)
class _PrincipalTable:
    read: list[str] = field(default_factory=list)
    write: list[str] = field(default_factory=list)
    follow: list[str] = field(default_factory=list)
    admin: list[str] = field(default_factory=list)
    certificates: list[str] = field(default_factory=list)
    uids: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for right, paths in self.paths().items():
            for path in paths:
                _validate_path(right.value, path)
        for uid in self.uids:
            if not 0 <= uid < 2**32 - 1:
                raise InvalidConfigError("uids must be user ids", expected="0 .. 4294967294", got=uid)
        for name in self.certificates:
            if not name.strip() or name != name.strip():
                raise InvalidConfigError(
                    "certificates must be names in certificates, without spaces around them",
                    got=repr(name)[:80],
                )

    def paths(self) -> dict[Right, list[str]]:
        return {right: getattr(self, right.value) for right in Right}


@dataclass(frozen=True, slots=True)
class _File:
    default: PolicyTable = field(default_factory=PolicyTable)
    namespaces: dict[str, PolicyTable] = field(default_factory=dict)
    principals: dict[str, _PrincipalTable] | None = None

    def __post_init__(self) -> None:
        for path in self.namespaces:
            _validate_path(f'namespaces."{path}"', path, "a path")
        for name, table in (self.principals or {}).items():
            if name != EVERY:
                validate_principal(name, f'principals."{name}"')
            elif table.certificates or table.uids:
                raise InvalidConfigError(
                    'principals."*" must not have certificates or uids', remedy="Name a principal for them."
                )
        for key in ("certificates", "uids"):
            tables = (self.principals or {}).items()
            _inverted(key, {name: getattr(table, key) for name, table in tables})


def _validate_path(key: str, path: str, form: str = 'paths, or "*" for every namespace') -> None:
    if path == EVERY and "*" in form:
        return
    try:
        validate_namespace(path)
    except InvalidNamespaceError as error:
        raise InvalidConfigError(f"{key} must be {form}", expected=error.expected, got=error.got) from None


def _inverted(key: str, of_principals: Mapping[str, list[K]]) -> dict[K, str]:
    """Value -> principal. InvalidConfigError if two principals have the same value."""
    found: dict[Any, str] = {}
    for name, values in of_principals.items():
        for value in values:
            if found.setdefault(value, name) != name:
                raise InvalidConfigError(
                    f"principals must not share {key}", got=f"{value!r} of {found[value]!r} and {name!r}"
                )
    return found
