"""Another user of this machine, who listens where a service will: a process with that user's id."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc.frames import GREETING

__all__ = ["HTTP2_SETTINGS", "STRANGER", "answers", "stranger_at"]

#: nobody, by convention; the id needs no entry in any file
STRANGER = 65534
#: an empty SETTINGS frame: a client of gRPC that has read it takes its connection for established, and sends
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
def stranger_at(path: Path, greeting: bytes = GREETING) -> Iterator[Path]:
    """While it listens at ``path``, greeting like a direct socket, or like a server of gRPC; a file with what
    it was sent. Skips where this process may not become another user."""
    if os.geteuid():
        pytest.skip("only root can start a process of another user")
    log = path.parent.parent / f"{path.parent.name}.heard"
    log.touch()
    log.chmod(0o666)
    command = [sys.executable, "-c", _LISTEN, str(path), str(STRANGER), str(log), greeting.hex()]
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
    """Whether a process listens there."""
    with socket.socket(socket.AF_UNIX) as probe, contextlib.suppress(OSError):
        probe.connect(str(path))
        return True
    return False
