"""A caller that was authenticated, and the checks of its rights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Final, Protocol

from suffixsvc.access.principals import OPERATOR, Right
from suffixsvc.access.rate_limits import PrincipalLimits, RateLimiter
from suffixsvc.errors import PermissionDeniedError
from suffixsvc.types import NamespaceCreator

#: separates a principal from the ids that its clients choose; names and ids are printable
_SCOPE: Final = "\x1f"


class Rights(Protocol):
    """What principals may do at this moment."""

    def rights(self, principal: str, path: str) -> frozenset[Right]:
        """The rights of a principal on a namespace."""

    def everywhere(self, principal: str, right: Right) -> bool:
        """Whether a principal has a right on every namespace."""

    def limits(self, principal: str) -> PrincipalLimits:
        """The limits of a principal."""

    @property
    def rates(self) -> RateLimiter:
        """What principals have sent."""

    @property
    def shared(self) -> bool:
        """Whether there are several principals."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call. Its rights are those of the current policy, not of the time of its authentication.

    Attributes:
        principal: whom it acts for; "" is the operator, which may do everything.
        credential: what it was authenticated by: "token ID", "certificate NAME", "user UID" or "none".
    """

    principal: str
    credential: str
    _rights: Rights = field(repr=False, compare=False)

    def may(self, right: Right, path: str) -> bool:
        """Whether the caller has a right on a namespace."""
        return right in self._rights.rights(self.principal, path)

    def sees_all(self, path: str) -> bool:
        """Whether the caller may see all that a namespace holds, also where its policy has
        ``min_principals``."""
        return self.may(Right.FOLLOW, path)

    def may_see(self, path: str) -> bool:
        """Whether the caller has any right on a namespace, and so may know of it."""
        return bool(self._rights.rights(self.principal, path))

    def may_everywhere(self, right: Right) -> bool:
        """Whether the caller has a right on every namespace."""
        return self._rights.everywhere(self.principal, right)

    def require(self, right: Right, path: str) -> None:
        """Raise PermissionDeniedError without a right on a namespace, the same whether or not it exists."""
        if not self.may(right, path):
            line = f'[principals."{self.principal}"] {right.value} = ["{path}"]'
            raise PermissionDeniedError(
                f"namespace {path!r} must be granted to the principal {self.principal!r}",
                expected=f"the right {right.value!r}",
                got="no grant",
                remedy=f"An operator can grant it: {line}.",
            )

    def require_everywhere(self, right: Right, what: str, *, instead: str = "") -> None:
        """Raise PermissionDeniedError without a right on every namespace.

        Args:
            what: that needs it.
            instead: what a principal without it can do, as a sentence.
        """
        if not self.may_everywhere(right):
            raise PermissionDeniedError(
                f"{what} must be asked for by a principal with the right {right.value!r} on every namespace",
                got=f"principal {self.principal!r}",
                remedy=(f"{instead} " if instead else "")
                + f'An operator can grant it: [principals."{self.principal}"] {right.value} = ["*"].',
            )

    @property
    def limits(self) -> PrincipalLimits:
        """The limits of the caller's principal."""
        return self._rights.limits(self.principal)

    @property
    def is_one_of_several(self) -> bool:
        """Whether there are principals besides the caller's."""
        return self._rights.shared

    @property
    def creator(self) -> NamespaceCreator:
        """The caller as the creator of a namespace."""
        return NamespaceCreator(self.principal, self.limits.max_namespaces, lambda: self.is_one_of_several)

    def admit(self, message: bytes) -> bytes:
        """Count a message that the caller has sent, and return it.

        Raises:
            LimitExceededError: it is too large, or the caller's principal sends too much.
        """
        limits = self.limits
        if limits.bounds_messages:
            self._rights.rates.admit(self.principal, limits, len(message))
        return message

    def count_refusal(self, limit: str) -> None:
        """Count what a limit of the caller's principal refuses."""
        self._rights.rates.refusals.count(self.principal, limit)

    @property
    def scope(self) -> str:
        """Prefix that makes an id which a client chose unique among principals."""
        return _scope(self.principal)

    def session(self, session_id: str) -> SessionName:
        """The names of a session of this principal."""
        return SessionName(self.scope, session_id)


@dataclass(frozen=True, slots=True)
class SessionName:
    """The names of a session: equal ids of two principals are unrelated.

    Attributes:
        scope: of its principal; empty for the operator.
        id: that its client chose; errors and logs name it.
    """

    scope: str
    id: str

    @property
    def key(self) -> str:
        """Unique among principals."""
        return self.scope + self.id

    @property
    def stored(self) -> str:
        """As :attr:`key`, but it discloses no principal: stored with outputs, and sent to followers.

        A cryptographic hash, so that no principal can choose an id that has another one's name.
        """
        if not self.scope:
            return self.id
        return hashlib.blake2b(self.key.encode(), digest_size=16).hexdigest()


_UNLIMITED: Final = PrincipalLimits()
_RATES: Final = RateLimiter()


def session_name(principal: str, session_id: str) -> SessionName:
    """The names of a session of a principal."""
    return SessionName(_scope(principal), session_id)


def _scope(principal: str) -> str:
    return "" if principal == OPERATOR else f"{principal}{_SCOPE}"


class _EveryRight:
    """The rights of the operator."""

    def rights(self, principal: str, path: str) -> frozenset[Right]:
        return frozenset(Right)

    def everywhere(self, principal: str, right: Right) -> bool:
        return True

    def limits(self, principal: str) -> PrincipalLimits:
        return _UNLIMITED

    @property
    def rates(self) -> RateLimiter:
        return _RATES

    @property
    def shared(self) -> bool:
        return False


#: the caller where access is not controlled
OPERATOR_CALLER: Final = Caller(OPERATOR, "none", _EveryRight())
