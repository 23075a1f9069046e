"""Access control of a log's servers, which the log itself remembers.

Tokens and policies are files of their own, and a backup has none of them. So a server with access control
marks the log that it serves, before it listens, and a server without is refused on a marked log: a restored
log, or one that lost its tokens, is not open to every caller. The mark is part of the log (docs/format.md):
backups, repairs and migrations keep it. Only an operator's explicit choice removes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import structlog

from suffixsvc.access.control import AccessControl
from suffixsvc.errors import InvalidConfigError, ListenError

log = structlog.get_logger(__name__)


class ServedLog(Protocol):
    """The log of a server; the engine implements it."""

    @property
    def access_controlled(self) -> bool:
        """Whether the log has the mark."""

    def set_access_controlled(self, value: bool) -> None:
        """Set or remove the mark, durably. StoreError."""


def require_one_choice(access: AccessControl, *, open_to_all: bool) -> None:
    """Raise InvalidConfigError for a server that has access control and is to be open to all."""
    if open_to_all and access.required:
        raise InvalidConfigError(
            "--open-to-all must not be given to a server with access control",
            got="tokens, [principals] of a policy file, or a --socket-mode for other users",
            remedy="Leave it out; or remove tokens and principals, if every caller may do everything.",
        )


def prepare_log(
    served: ServedLog, access: AccessControl, addresses: Sequence[str], *, open_to_all: bool = False
) -> None:
    """Mark the log of a server with access control, or check that it may be served without; before it
    listens.

    Args:
        served: the log.
        access: of the server.
        addresses: where callers without an identity are the operator unless there is access control: all but
            unix sockets that only the server's own user can open.
        open_to_all: remove the mark.

    Raises:
        InvalidConfigError: of :func:`require_one_choice`.
        ListenError: the log has the mark, the server has no access control, and ``addresses`` is not empty.
        StoreError: the log cannot be written; it has the mark that it had.
    """
    require_one_choice(access, open_to_all=open_to_all)
    if open_to_all and served.access_controlled:
        served.set_access_controlled(False)
        log.warning("the data folder was served with access control; it is open to all callers from now on")
    remember_access(served, access)
    if addresses and served.access_controlled and not access.required:
        raise ListenError(
            f"cannot listen on {', '.join(addresses)}: the data folder must be served with access control, "
            "as it was before",
            expected="a token, or a table [principals] in the file of --policies",
            got="neither, so that every caller could do everything",
            remedy="Give the server its --tokens and --policies (no backup has them), or create tokens with "
            "`suffixsvc token create`. Or pass --open-to-all, which opens the folder to all from now on.",
        )


def remember_access(served: ServedLog, access: AccessControl) -> None:
    """Mark the log if the server has access control, which may begin while it runs. StoreError."""
    if access.required and not served.access_controlled:
        served.set_access_controlled(True)
