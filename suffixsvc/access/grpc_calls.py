"""Callers of gRPC calls: who made a call, by its metadata, its certificate and its connection.

Calls that outlast their first check are registered (:class:`LiveCalls`): they are cancelled when their
credential is revoked or expires.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Final
from urllib.parse import unquote

import grpc
import structlog

from suffixsvc.access.caller import Caller
from suffixsvc.access.control import AccessControl, Peer
from suffixsvc.access.presented import bearer_token, peer_at

log = structlog.get_logger(__name__)

#: metadata key of a bearer token
AUTHORIZATION: Final = "authorization"
#: properties of gRPC's authentication context that name the holder of a verified certificate
_NAMES: Final = ("x509_subject_alternative_name", "x509_common_name")


def caller_of(context: grpc.ServicerContext, access: AccessControl) -> Caller:
    """Authenticate the caller of a call.

    Raises:
        UnauthenticatedError: it presents nothing valid.
    """
    token = bearer_token(value for key, value in context.invocation_metadata() if key == AUTHORIZATION)
    properties: Mapping[str, Iterable[bytes]] = context.auth_context()  # type: ignore[assignment]  # not int
    names = [name.decode(errors="replace") for key in _NAMES for name in properties.get(key, ())]
    return access.authenticate(token, names, peer_of(context.peer()))


def peer_of(name: str) -> Peer:
    """Where a call came from, by gRPC's name of its peer."""
    kind, _, address = name.partition(":")
    if kind == "unix":
        return Peer.UNIX_SOCKET
    return peer_at(unquote(address.rpartition(":")[0]).strip("[]"))


class LiveCalls:
    """The calls in progress, by caller. Thread-safe.

    Args:
        access: says whether a credential is still valid.
    """

    def __init__(self, access: AccessControl) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._calls: dict[grpc.ServicerContext, Caller] = {}

    @contextlib.contextmanager
    def registered(self, context: grpc.ServicerContext, caller: Caller) -> Iterator[None]:
        """Have a call cancelled if its credential is revoked within the block."""
        with self._lock:
            self._calls[context] = caller
        try:
            yield
        finally:
            with self._lock:
                del self._calls[context]

    def cancel_revoked(self) -> int:
        """Cancel the calls whose credential is not valid any more; returns how many."""
        with self._lock:
            calls = list(self._calls.items())
        valid = {caller: self._access.is_valid(caller) for caller in {caller for _, caller in calls}}
        revoked = [(context, caller) for context, caller in calls if not valid[caller]]
        for context, caller in revoked:
            context.cancel()
            log.info("a call was ended: its credential is revoked", principal=caller.principal)
        return len(revoked)
