"""One request and its answer through the pipes of a process, until a deadline.

A message is a length (8 bytes, little endian) and that many bytes. A process that is stopped, frozen or
swapped out neither reads nor writes, so that a plain write or read of a pipe would wait for it for ever.
"""

from __future__ import annotations

import math
import os
import select
import subprocess
import time
from contextlib import suppress
from typing import IO, Final

_LENGTH: Final = 8
#: bytes of a read; the kernel's pipes hold as many
_CHUNK: Final = 1 << 16


def framed(data: bytes) -> bytes:
    """Return a message."""
    return len(data).to_bytes(_LENGTH, "little") + data


def exchange(process: subprocess.Popen[bytes], request: bytes, seconds: float) -> bytes:
    """Send a message and return the data of the next one.

    Args:
        process: its standard input and output are unbuffered pipes.
        request: see :func:`framed`.
        seconds: for both directions together.

    Returns:
        The data; empty if the process has ended.

    Raises:
        TimeoutError: the process does not answer in time. What it may still send belongs to no request.
    """
    assert process.stdin is not None  # noqa: S101  # PIPE
    assert process.stdout is not None  # noqa: S101  # PIPE
    deadline = time.monotonic() + seconds
    with suppress(BrokenPipeError):
        _write(process.stdin, request, deadline)
    size = int.from_bytes(_read(process.stdout, _LENGTH, deadline), "little")
    data = _read(process.stdout, size, deadline)
    return data if len(data) == size else b""


def _write(pipe: IO[bytes], data: bytes, deadline: float) -> None:
    os.set_blocking(pipe.fileno(), False)  # a write takes what finds room
    left = memoryview(data)
    while left:
        _wait(pipe, select.POLLOUT, deadline)
        left = left[os.write(pipe.fileno(), left) :]


def _read(pipe: IO[bytes], size: int, deadline: float) -> bytes:
    found = bytearray()
    while len(found) < size:
        _wait(pipe, select.POLLIN, deadline)
        part = os.read(pipe.fileno(), min(_CHUNK, size - len(found)))
        if not part:
            break
        found += part
    return bytes(found)


def _wait(pipe: IO[bytes], event: int, deadline: float) -> None:
    """Wait until a pipe can be used, or its other end is closed."""
    ready = select.poll()
    ready.register(pipe, event)
    left = max(0.0, deadline - time.monotonic())
    if not ready.poll(math.ceil(left * 1000)):
        raise TimeoutError
