"""State notifications to a service manager: the protocol of systemd's sd_notify(3)."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(state: str) -> None:
    """Send a state, as "READY=1", to the service manager that started this process, if it wants that.

    Never raises. The manager names its socket in $NOTIFY_SOCKET: a path, or "@NAME" for an abstract one.
    """
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = f"\0{address[1:]}"
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.sendto(state.encode(), address)
