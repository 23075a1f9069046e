"""Check that an address to listen at cannot be reached by other machines."""

from __future__ import annotations

import ipaddress
import socket

from suffixsvc.errors import ListenError


def resolve(host: str, port: int) -> list[tuple[socket.AddressFamily, str]]:
    """Return the families and IP addresses of a host of this machine. ListenError if it cannot be found."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid DNS name
        raise ListenError(
            f"cannot listen on {host}:{port}", expected="a host of this machine", got=str(error)[:200]
        ) from None
    return [(family, str(sockaddr[0])) for family, _, _, _, sockaddr in found]


def require_loopback(host: str, port: int, danger: str) -> None:
    """Raise ListenError if other machines can reach a host; ``danger`` says what they could do."""
    for _, ip in resolve(host, port):
        if not ipaddress.ip_address(ip.partition("%")[0]).is_loopback:
            raise ListenError(
                f"cannot listen on {host}:{port}: every host that reaches it could {danger}",
                expected="a loopback address such as 127.0.0.1, or a unix socket",
                got=ip,
                remedy="Pass --insecure-network if the network is trusted.",
            )
