"""Where a call came from, by gRPC's name of its peer."""

from __future__ import annotations

import pytest

from suffixsvc.access.control import Peer
from suffixsvc.access.grpc_calls import peer_of


@pytest.mark.parametrize(
    ("name", "peer"),
    [
        ("unix:", Peer.UNIX_SOCKET),
        ("unix:/a/b", Peer.UNIX_SOCKET),
        ("ipv4:127.0.0.1:80", Peer.LOOPBACK),
        ("ipv6:[::1]:80", Peer.LOOPBACK),
        ("ipv6:%5B::1%5D:8", Peer.LOOPBACK),
        ("ipv6:[::ffff:127.0.0.1]:80", Peer.LOOPBACK),
        ("ipv4:10.0.0.1:80", Peer.NETWORK),
        ("ipv6:[2001:db8::1]:80", Peer.NETWORK),
        ("ipv6:[::ffff:10.0.0.1]:80", Peer.NETWORK),
        ("vsock:1:2", Peer.NETWORK),
        ("", Peer.NETWORK),
        ("ipv4:x:1", Peer.NETWORK),
    ],
)
def test_peers(name: str, peer: Peer) -> None:
    assert peer_of(name) is peer
