"""What a caller presents, whatever the protocol: a bearer token, and the address it calls from."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from typing import Final

from suffixsvc.access.control import Peer
from suffixsvc.errors import UnauthenticatedError

_SCHEME: Final = "bearer"


def bearer_token(headers: Iterable[str | bytes]) -> str | None:
    """The token in the values of the authorization headers of a call; None without a header.

    Raises:
        UnauthenticatedError: several headers, or another form.
    """
    values = list(headers)
    if not values:
        return None
    if len(values) > 1:
        raise UnauthenticatedError("a call must have one authorization header", got="several")
    [value] = values
    text = value if isinstance(value, str) else value.decode(errors="replace")
    scheme, _, token = text.partition(" ")
    if scheme.lower() != _SCHEME or not token.strip():
        raise UnauthenticatedError(
            "the authorization header must hold a bearer token", expected="'Bearer TOKEN'", got="another form"
        )
    return token.strip()


def peer_at(host: str) -> Peer:
    """Where a call from an IP address came from; what is no address is another machine."""
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return Peer.NETWORK
    mapped = getattr(found, "ipv4_mapped", None)
    return Peer.LOOPBACK if (mapped or found).is_loopback else Peer.NETWORK
