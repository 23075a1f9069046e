"""Addresses of hosts and ports: resolution, and the check that other machines cannot reach one."""

from __future__ import annotations

import ipaddress
import socket

from suffixsvc.errors import ListenError


def resolve(host: str, port: int, family: int = socket.AF_UNSPEC) -> list[tuple[socket.AddressFamily, str]]:
    """Return the families and IP addresses of a host of this machine. ListenError if it cannot be found."""
    try:
        found = socket.getaddrinfo(host, port, family, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid DNS name
        raise ListenError(
            f"cannot listen on {host_and_port(host, port)}",
            expected="a host of this machine",
            got=str(error)[:200],
        ) from None
    return [(each, str(sockaddr[0])) for each, _, _, _, sockaddr in found]


def require_loopback(host: str, port: int, danger: str, family: int = socket.AF_UNSPEC) -> None:
    """Raise ListenError if other machines can reach a host; ``danger`` says what they could do."""
    for _, ip in resolve(host, port, family):
        if not ipaddress.ip_address(ip.partition("%")[0]).is_loopback:
            raise ListenError(
                f"cannot listen on {host_and_port(host, port)}: every host that reaches it could {danger}",
                expected="a loopback address such as 127.0.0.1",
                got=ip,
                remedy="Give it certificates (--tls-cert, --tls-key), or, in a trusted network, pass "
                "--insecure-network.",
            )


def host_and_port(host: str, port: int) -> str:
    """``HOST:PORT``, an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
