"""The policy file: limits of namespaces and rights of principals, in TOML.

[default]                        limits of every namespace (policies.py)
[namespaces."acme"]              limits of acme and everything below it
max_bytes = "4 GiB"
min_principals = 3               readers without follow draft from what 3 principals wrote (docs/security.md)

[principals."sql-agents"]        what a principal may do outside its own prefix
read = ["acme/shared"]
write = ["acme/shared/sql"]
follow = []
admin = []
certificates = ["sql.acme.example"]
uids = [1001]                    users of the machine, at a unix socket that they can open
requests_per_second = 2000       limits of what it sends (rate_limits.py)
tokens_per_second = 1e6
max_sessions = 200
max_namespaces = 100
max_message_bytes = "4 MiB"
max_unmatched_tokens = 300       limit of probing (docs/security.md)
max_bytes = "2 GiB"              limits of what it stores, in all namespaces together (policies.py)
max_outputs = 100_000

[principals."*"]                 what every authenticated principal may do
read = ["public"]
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from suffixsvc.access.grants import Grants, grants_of
from suffixsvc.access.principals import EVERY, Right, validate_principal
from suffixsvc.access.rate_limits import PrincipalLimits
from suffixsvc.config import is_at_or_above, validate_namespace
from suffixsvc.errors import InvalidConfigError, InvalidNamespaceError
from suffixsvc.policies import Policies, PolicyTable, PrincipalQuota, bytes_of, quota_of_table

#: user id that stands for none
_NO_UID: Final = 2**32 - 1
#: user id that the kernel reports for users that have none in this process's user namespace
_OVERFLOW_UID: Final = 65534


@dataclass(frozen=True, slots=True)
class AccessPolicy:
    """Who may do what.

    Attributes:
        grants: rights on namespaces.
        limits: of principals that have a table; that of "*" is the default of all others.
        principals: those that the file names.
        certificates: subject alternative name or common name of a client's certificate -> principal.
        users: user id -> principal.
        required: callers must be authenticated; False: no principal is named, and callers need not be.
    """

    grants: Grants = field(default_factory=Grants)
    limits: Mapping[str, PrincipalLimits] = field(default_factory=dict)
    principals: tuple[str, ...] = ()
    certificates: Mapping[str, str] = field(default_factory=dict)
    users: Mapping[int, str] = field(default_factory=dict)
    required: bool = False

    def limits_of(self, principal: str) -> PrincipalLimits:
        """The limits of a principal: each its own, or that of every principal."""
        every = self.limits.get(EVERY, PrincipalLimits())
        return self.limits.get(principal, every).over(every)


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
        Policies(
            {path: table.policy() for path, table in read.namespaces.items()},
            read.default.policy(),
            {name: table.quota() for name, table in named.items()},
        ),
        AccessPolicy(
            Grants(grants),
            {name: table.limits() for name, table in named.items()},
            tuple(name for name in named if name != EVERY),
            _principals_of(named, "certificates"),
            _principals_of(named, "uids"),
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
    requests_per_second: float | None = None
    tokens_per_second: float | None = None
    max_sessions: int | None = None
    max_message_bytes: Any = None
    max_unmatched_tokens: float | None = None
    max_namespaces: int | None = None
    max_bytes: Any = None
    max_outputs: int | None = None

    def __post_init__(self) -> None:
        for right, paths in self.paths().items():
            for path in paths:
                _validate_path(right.value, path)
        for name in self.certificates:
            if not name.strip() or name != name.strip():
                raise InvalidConfigError(
                    "certificates must be names in certificates, without spaces around them",
                    got=repr(name)[:80],
                    remedy="Write the subject alternative name, or the common name, of the certificate.",
                )
        for uid in self.uids:
            if not 0 < uid < _NO_UID or uid == _OVERFLOW_UID:
                raise InvalidConfigError(
                    f"uids must be ids of users, neither 0 (root is the operator) nor {_OVERFLOW_UID} (the "
                    "kernel reports it for users of other user namespaces)",
                    expected=f"1 to {_NO_UID - 1}",
                    got=uid,
                    remedy="Write the numbers that `id -u` prints for the users.",
                )
        self.limits()
        self.quota()

    def quota(self) -> PrincipalQuota:
        return quota_of_table(self.max_bytes, self.max_outputs)

    def limits(self) -> PrincipalLimits:
        size = bytes_of(self.max_message_bytes)
        return PrincipalLimits(
            self.requests_per_second,
            self.tokens_per_second,
            self.max_sessions,
            size,
            self.max_unmatched_tokens,
            self.max_namespaces,
        )

    def paths(self) -> dict[Right, list[str]]:
        return {right: getattr(self, right.value) for right in Right}


@dataclass(frozen=True, slots=True)
class _File:
    default: PolicyTable = field(default_factory=PolicyTable)
    namespaces: dict[str, PolicyTable] = field(default_factory=dict)
    principals: dict[str, _PrincipalTable] | None = None

    def __post_init__(self) -> None:
        if EVERY in self.namespaces:
            raise InvalidConfigError(
                'namespaces."*" must be a path',
                expected='as [namespaces."acme"]',
                got="*",
                remedy="Write limits of every namespace under [default].",
            )
        for path in self.namespaces:
            _validate_path(f'namespaces."{path}"', path, "a path")
        self._require_publishing()
        for name, table in (self.principals or {}).items():
            if name != EVERY:
                validate_principal(name, f'principals."{name}"')
            elif table.certificates or table.uids:
                raise InvalidConfigError(
                    'principals."*" must not have certificates or uids', remedy="Name a principal for them."
                )
        for key in ("certificates", "uids"):
            _principals_of(self.principals or {}, key)

    def _require_publishing(self) -> None:
        """Refuse terms of published runs that apply nowhere: their author expects runs to be published."""
        tables = {"": self.default, **self.namespaces}
        # 0 turns it off, and the terms may stay for when it is turned on again
        publishing = [path for path, table in tables.items() if table.min_principals is not None]
        for path, table in tables.items():
            for key, value in (("match", table.match), ("publish_every", table.publish_every)):
                if value is None or any(
                    is_at_or_above(path, each) or is_at_or_above(each, path) for each in publishing
                ):
                    continue
                name = f'namespaces."{path}"' if path else "default"
                raise InvalidConfigError(
                    f"{name}.{key} must be a term of a policy that publishes",
                    expected="min_principals in the same table, above it or below it",
                    got=f"{key} = {value!r}, and no min_principals",
                    remedy=f"Set min_principals, or remove {key}.",
                )


def _validate_path(key: str, path: str, form: str = 'paths, or "*" for every namespace') -> None:
    if path == EVERY and "*" in form:
        return
    if path.endswith("/*"):
        raise InvalidConfigError(
            f"{key} must be {form}",
            got=repr(path),
            remedy=f"Write {path[:-2]!r}: a path covers the namespaces below it, and there are no patterns.",
        )
    try:
        validate_namespace(path)
    except InvalidNamespaceError as error:
        raise InvalidConfigError(
            f"{key} must be {form}", expected=error.expected, got=error.got, remedy="Correct the path."
        ) from None


def _principals_of(principals: Mapping[str, _PrincipalTable], key: str) -> dict[Any, str]:
    """Entry of a list of the tables -> principal. InvalidConfigError if two principals have the same one."""
    found: dict[Any, str] = {}
    for principal, table in principals.items():
        for entry in getattr(table, key):
            if found.setdefault(entry, principal) != principal:
                raise InvalidConfigError(
                    f"principals must not share {key}",
                    got=f"{entry!r} of {found[entry]!r} and {principal!r}",
                    remedy="Name it for one of them, and grant the other what both need.",
                )
    return found
