"""Policies of namespaces: limits, time to live, pinning and retention, set on paths.

In a file (access/policy_file.py):

    [default]                              every namespace
    max_bytes = "4 GiB"

    [namespaces."acme"]                    acme and everything below it
    ttl = "30d"

    [namespaces."acme/qwen2.5-coder"]      inherits ttl = "30d", has its own max_bytes
    max_bytes = "1 GiB"

    [namespaces."acme/qwen2.5-coder/docs"] inherits both; its outputs are not evicted
    pinned = true

    [namespaces."acme/secret"]             nothing is stored, sessions draft from what they write themselves
    no_store = true

    [namespaces."pool"]                    readers without follow get runs that 3 principals wrote
    min_principals = 3
    match = 16
    publish_every = "5m"

    [namespaces."acme/broken"]             nothing is drafted, and what is written is stored
    drafting = false

Each field is inherited separately: the value of the nearest path at or above a namespace that sets it, else
the default. A limit on "acme" is the limit of *each* namespace below it, not of their sum: a write in one
namespace never evicts outputs of another.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Final

import pygtrie

from suffixsvc.config import validate_namespace
from suffixsvc.errors import InvalidConfigError

#: as ``max_bytes``: no limit, which overrides a limit of a parent path
UNLIMITED: Final = 2**63 - 1
_MAX_TTL_SECONDS: Final = 2**32 - 1
#: of a policy with ``min_principals`` that does not set them
DEFAULT_MATCH: Final = 16
DEFAULT_PUBLISH_SECONDS: Final = 300
#: shorter runs are shared by chance: they say little, and disclose what is in the gaps of longer ones
MIN_MATCH: Final = 8
_MAX_MATCH: Final = 4096
_MAX_PRINCIPALS: Final = 65_536
_MAX_PUBLISH_SECONDS: Final = 7 * 86_400

_UNITS: Final = {"B": 1} | {
    f"{prefix}{suffix}": base ** (power + 1)
    for power, prefix in enumerate("KMGT")
    for suffix, base in (("iB", 1024), ("B", 1000))
}
_SPANS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_FORM_OF_BYTES: Final = 'bytes, as 1073741824, "1 GiB" or "unlimited"'
_QUANTITY: Final = re.compile(r"([0-9]{1,20}) ?([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class PublishTerms:
    """Which runs of tokens a namespace publishes, and how often.

    Attributes:
        min_principals: number of principals that wrote the run; 2 or more.
        match: minimum length of a run in tokens.
        every_seconds: time between two builds.
    """

    min_principals: int
    match: int
    every_seconds: int

    def same_runs(self, other: PublishTerms) -> bool:
        """Whether the same runs meet both."""
        return (self.min_principals, self.match) == (other.min_principals, other.match)

    def permit(self, of_reader: PublishTerms) -> bool:
        """Whether outputs under these terms may count towards runs that are published under others."""
        return self.min_principals <= of_reader.min_principals and self.match <= of_reader.match


@dataclass(frozen=True, slots=True)
class Policy:
    """Settings of one path, or effective settings of a namespace (:meth:`Policies.of`). None = not set.

    Attributes:
        max_bytes: limit of ``NamespaceStats.held_bytes``; above it the least recently drafted outputs are
            evicted. :data:`UNLIMITED` overrides a limit of a parent path.
        ttl_seconds: time to live of outputs that were written without one; 0 = no expiry.
        pinned: outputs are never evicted and ``ttl_seconds`` does not apply; writes that do not fit are
            rejected.
        no_store: sessions store nothing and no other session drafts from what they write
            (``open_session(private=True)``); other writes are rejected. What is stored already stays.
        min_principals: readers without a full grant draft only from runs that so many principals wrote; 2 or
            more, or 0: no such restriction, which overrides that of a parent path.
        match: minimum length of these runs in tokens; None: :data:`DEFAULT_MATCH`.
        publish_every_seconds: time between two builds of them; None: :data:`DEFAULT_PUBLISH_SECONDS`.
        drafting: False: sessions of the namespace draft nothing, and others nothing from it, from their next
            step on; what is written is stored as before. None: True.
    """

    max_bytes: int | None = None
    ttl_seconds: int | None = None
    pinned: bool | None = None
    no_store: bool | None = None
    min_principals: int | None = None
    match: int | None = None
    publish_every_seconds: int | None = None
    drafting: bool | None = None

    def __post_init__(self) -> None:
        _require_int("max_bytes", self.max_bytes, 1, UNLIMITED)
        _require_int("ttl_seconds", self.ttl_seconds, 0, _MAX_TTL_SECONDS)
        if self.min_principals != 0 or type(self.min_principals) is not int:
            _require_int(
                "min_principals", self.min_principals, 2, _MAX_PRINCIPALS, "2 or more, or 0 for none"
            )
        _require_int("match", self.match, MIN_MATCH, _MAX_MATCH, "a number of tokens")
        _require_int("publish_every_seconds", self.publish_every_seconds, 1, _MAX_PUBLISH_SECONDS, "seconds")
        for name in ("pinned", "no_store", "drafting"):
            value = getattr(self, name)
            if value is not None and type(value) is not bool:
                raise InvalidConfigError(f"{name} must be a bool", expected="true or false", got=repr(value))

    @property
    def publishing(self) -> PublishTerms | None:
        """What readers without a full grant draft from; None: from everything, as those with one."""
        if not self.min_principals:
            return None
        return PublishTerms(
            self.min_principals,
            DEFAULT_MATCH if self.match is None else self.match,
            DEFAULT_PUBLISH_SECONDS if self.publish_every_seconds is None else self.publish_every_seconds,
        )

    def over(self, above: Policy) -> Policy:
        """This policy with the unset fields taken from ``above``."""
        merged = {f.name: getattr(self, f.name) for f in fields(self)}
        return Policy(**{name: getattr(above, name) if v is None else v for name, v in merged.items()})


@dataclass(frozen=True, slots=True)
class PrincipalQuota:
    """Limits of all that one principal wrote, in all namespaces together. None = not set.

    Attributes:
        max_bytes: limit of the bytes of its outputs, at 512 for each and 64 for each token of it, and of its
            live sessions. :data:`UNLIMITED` overrides the limit of every principal.
        max_outputs: limit of the number of its outputs.
    """

    max_bytes: int | None = None
    max_outputs: int | None = None

    def __post_init__(self) -> None:
        _require_int("max_bytes", self.max_bytes, 1, UNLIMITED)
        _require_int("max_outputs", self.max_outputs, 1, UNLIMITED)

    def over(self, above: PrincipalQuota) -> PrincipalQuota:
        """This quota with the unset fields taken from ``above``."""
        return PrincipalQuota(
            above.max_bytes if self.max_bytes is None else self.max_bytes,
            above.max_outputs if self.max_outputs is None else self.max_outputs,
        )


class Policies:
    """Policies of namespace paths, and quotas of principals. Immutable, thread-safe.

    Args:
        of_paths: path -> policy of this path and of every namespace below it.
        default: policy of namespaces for which no path sets a field.
        principals: quotas of principals by name; "*" has those of all that set none of their own. The
            operator, "", has none.

    Raises:
        InvalidNamespaceError: a path is invalid.
        InvalidConfigError: a value is not a Policy, or not a PrincipalQuota.
    """

    def __init__(
        self,
        of_paths: Mapping[str, Policy] | None = None,
        default: Policy | None = None,
        principals: Mapping[str, PrincipalQuota] | None = None,
    ) -> None:
        for name, quota in (principals or {}).items():
            if not isinstance(quota, PrincipalQuota):
                raise InvalidConfigError(
                    f"the quota of {name!r} must be a PrincipalQuota", got=type(quota).__name__
                )
        every = (principals or {}).get("*", PrincipalQuota())
        self._every = every
        self._quotas = {name: quota.over(every) for name, quota in (principals or {}).items()}
        self.default = Policy() if default is None else _require_policy(default, "default")
        self._trie = pygtrie.StringTrie(separator="/")
        for path, policy in (of_paths or {}).items():
            self._trie[validate_namespace(path)] = _require_policy(policy, path)

    def of(self, path: str) -> Policy:
        """The effective policy of the namespace at ``path``: for each field the nearest setting."""
        policy = self.default
        for step in self._trie.prefixes(path):  # from the root down
            policy = step.value.over(policy)
        return policy

    def quota_of(self, principal: str) -> PrincipalQuota:
        """The quota of a principal; the operator has none."""
        return self._quotas.get(principal, self._every) if principal else PrincipalQuota()

    @property
    def has_quotas(self) -> bool:
        """Whether any principal has a quota."""
        return any(quota != PrincipalQuota() for quota in self._quotas.values())

    @property
    def has_ttl(self) -> bool:
        """Whether any policy sets a time to live."""
        return any(policy.ttl_seconds for policy in (self.default, *self._trie.values()))

    @property
    def publishes(self) -> bool:
        """Whether any policy sets ``min_principals``."""
        return any(policy.min_principals for policy in (self.default, *self._trie.values()))


@dataclass(frozen=True, slots=True)
class PolicyTable:
    """A policy as a table of a file: sizes are bytes, or text with a unit (``"512 MiB"``, ``"2 GB"``,
    ``"unlimited"``); times are seconds, or text with s, m, h or d (``"7d"``).

    Raises:
        InvalidConfigError: its message begins with the name of the invalid field.
    """

    max_bytes: Any = None
    ttl: Any = None
    pinned: bool | None = None
    no_store: bool | None = None
    min_principals: Any = None
    match: Any = None
    publish_every: Any = None
    drafting: bool | None = None

    def __post_init__(self) -> None:
        self.policy()

    def policy(self) -> Policy:
        """The policy that the table describes."""
        max_bytes = UNLIMITED if self.max_bytes == "unlimited" else _quantity(self.max_bytes, _UNITS)
        _require_int("max_bytes", max_bytes, 1, UNLIMITED, _FORM_OF_BYTES)
        ttl = _quantity(self.ttl, _SPANS)
        _require_int("ttl", ttl, 0, _MAX_TTL_SECONDS, 'seconds, as 3600, "7d" or 0 for never')
        every = _quantity(self.publish_every, _SPANS)
        _require_int("publish_every", every, 1, _MAX_PUBLISH_SECONDS, 'seconds, as 300 or "5m"')
        return Policy(
            max_bytes,
            ttl,
            self.pinned,
            self.no_store,
            drafting=self.drafting,
            min_principals=self.min_principals,
            match=self.match,
            publish_every_seconds=every,
        )


def bytes_of(value: Any) -> Any:
    """A size in bytes, given a number or text with a unit; another value as it is."""
    return _quantity(value, _UNITS)


def quota_of_table(max_bytes: Any, max_outputs: int | None) -> PrincipalQuota:
    """The quota of a principal's table of a file: bytes as in a :class:`PolicyTable`."""
    size = UNLIMITED if max_bytes == "unlimited" else bytes_of(max_bytes)
    _require_int("max_bytes", size, 1, UNLIMITED, _FORM_OF_BYTES)
    return PrincipalQuota(size, max_outputs)


def seconds_of(text: str) -> int | None:
    """A time in seconds, given a number with or without s, m, h or d; None for another text."""
    seconds = int(text) if text.isascii() and text.isdecimal() and len(text) < 20 else _quantity(text, _SPANS)
    return seconds if isinstance(seconds, int) else None


def _quantity(value: Any, units: Mapping[str, int]) -> Any:
    """A number with a unit as a number; another value as it is."""
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    return value if match is None or match[2] not in units else int(match[1]) * units[match[2]]


def _require_policy(policy: object, where: str) -> Policy:
    if not isinstance(policy, Policy):
        raise InvalidConfigError(
            f"the policy of {where} must be a Policy", expected="a Policy", got=type(policy).__name__
        )
    return policy


def _require_int(name: str, value: object, smallest: int, largest: int, form: str = "an integer") -> None:
    if value is not None and (type(value) is not int or not smallest <= value <= largest):
        raise InvalidConfigError(
            f"{name} must be {form}", expected=f"{smallest} .. {largest}, or None", got=repr(value)[:80]
        )
