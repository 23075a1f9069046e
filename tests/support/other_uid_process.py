"""A process of another user id that listens at the path of a service's socket."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

__all__ = ["HTTP2_SETTINGS", "OTHER_UID", "answers", "other_uid_process_at"]

#: conventionally an unprivileged user; the id needs no entry in /etc/passwd
OTHER_UID = 65534
#: an empty SETTINGS frame, after which a gRPC client considers its connection established and sends
HTTP2_SETTINGS = bytes.fromhex("000000040000000000")

_LISTEN = """
import os, socket, sys, threading
path, uid, log, greeting = sys.argv[1], int(sys.argv[2]), sys.argv[3], bytes.fromhex(sys.argv[4])
os.setgroups([]); os.setgid(uid); os.setuid(uid)
heard = open(log, "ab", buffering=0)
listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
os.chmod(path, 0o777)
listener.listen(8)
print("listening", flush=True)
def serve(connection):
    try:
        connection.sendall(greeting)
        while data := connection.recv(1 << 16):
            heard.write(data)
    except OSError:
        pass
while True:
    connection, _ = listener.accept()
    threading.Thread(target=serve, args=[connection], daemon=True).start()
"""


@contextlib.contextmanager
def other_uid_process_at(path: Path, greeting: bytes = HTTP2_SETTINGS) -> Iterator[Path]:
    """Run a process of another user id that listens at ``path`` and sends ``greeting``.

    ``greeting`` is that of a gRPC server. Yields the file with the bytes that it received. Skips the test
    unless run as root.
    """
    if os.geteuid():
        pytest.skip("only root can start a process of another user")
    log = path.parent.parent / f"{path.parent.name}.heard"
    log.touch()
    log.chmod(0o666)
    command = [sys.executable, "-c", _LISTEN, str(path), str(OTHER_UID), str(log), greeting.hex()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "listening"
        yield log
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
        log.unlink()


def answers(path: Path) -> bool:
    """Whether a process listens at ``path``."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        return True
    return False
