"""Principals, and the rights that they can have on namespaces."""

from __future__ import annotations

import enum
from typing import Final

from suffixsvc.config import validate_namespace
from suffixsvc.config import validate_principal as validate_principal_of_outputs
from suffixsvc.errors import InvalidConfigError, InvalidInputError

#: principal of the embedded engine, of the service's own user, and of all callers without access control
OPERATOR: Final = ""
#: in a policy file, every authenticated principal; as a path, every namespace
EVERY: Final = "*"
#: bytes of a principal's name, so that the namespaces below it have room for the rest of their path
MAX_PRINCIPAL_BYTES: Final = 64


class Right(enum.Enum):
    """A right on a namespace. ADMIN includes all others, FOLLOW includes READ."""

    READ = "read"  #: draft from it, or from what it publishes; read its statistics
    WRITE = "write"  #: store outputs in it
    FOLLOW = "follow"  #: see all of it, and copy it: followers, exports
    ADMIN = "admin"  #: delete from it

    @property
    def includes(self) -> frozenset[Right]:
        """The rights that a grant of this one gives."""
        return _INCLUDES[self]


_INCLUDES: Final = {
    Right.READ: frozenset({Right.READ}),
    Right.WRITE: frozenset({Right.WRITE}),
    Right.FOLLOW: frozenset({Right.FOLLOW, Right.READ}),
    Right.ADMIN: frozenset(Right),
}


def validate_principal(name: object, field: str = "principal") -> str:
    """Return the name of a principal, which is the first component of its own namespaces.

    Raises:
        InvalidConfigError: not a name that outputs can carry, no component of a path, or too long.
    """
    try:
        valid = 0 < len(validate_principal_of_outputs(name)) <= MAX_PRINCIPAL_BYTES
        validate_namespace(name)
    except InvalidInputError:
        valid = False
    if not valid:
        raise InvalidConfigError(
            f"{field} must be a name",
            expected=f"1 to {MAX_PRINCIPAL_BYTES} letters, digits and . _ - @ :",
            got=repr(name)[:80],
        )
    return str(name)
