"""Lifecycle of server processes: stop signals, ready file, service manager, umask, common gRPC options."""

from __future__ import annotations

import errno
import json
import os
import selectors
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Protocol

from suffixsvc.errors import InvalidConfigError
from suffixsvc.runtime.atomic_file import write_atomically
from suffixsvc.runtime.service_manager import notify

#: options of all gRPC servers
SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # Clients ping idle connections to detect a dead peer: an agent may wait for its tool for minutes. By
    # default gRPC treats that as abuse and closes the connection after the third ping.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client whose machine or network failed occupies its streams' slots until its connection is detected as
    # dead. Without pings that takes the TCP timers hours, or never happens if nothing is sent.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # the larger of the two applies
    ("grpc.http2.max_pings_without_data", 0),
    # per connection
    ("grpc.max_concurrent_streams", 1_024),
)


class WaitForStop(Protocol):
    """A function that blocks until SIGTERM or SIGINT arrives, or for so many seconds; True for a signal."""

    def __call__(self, seconds: float | None = None, /) -> bool:
        """Wait."""


@contextmanager
def stop_signal() -> Iterator[WaitForStop]:
    """Yield a function that blocks until SIGTERM or SIGINT arrives. A second one of the same kind has its
    default action.

    Signals are received through a pipe: one that arrives on another thread, or just before the main thread
    waits for a lock (as in ``threading.Event.wait``), would not wake it. Main thread only.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    arrived = selectors.DefaultSelector()  # select() refuses descriptors from 1,024 on
    arrived.register(reader, selectors.EVENT_READ)
    stopping = (signal.SIGTERM, signal.SIGINT)
    wakeup_before = signal.set_wakeup_fd(writer)
    before = {number: signal.signal(number, _restore_default) for number in stopping}

    def wait(seconds: float | None = None, /) -> bool:
        while arrived.select(seconds):
            if os.read(reader, 1)[0] in stopping:
                notify("STOPPING=1")
                return True
        return False

    try:
        yield wait
    finally:
        arrived.close()
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(reader)
        os.close(writer)


@contextmanager
def owner_only_umask() -> Iterator[None]:
    """Create files and sockets in the block with mode 0600, without a window of wider permissions."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _restore_default(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)


def require_writable_ready_file(path: Path | None) -> None:
    """Raise InvalidConfigError unless a ready file can be written there. Called before a server starts.

    An existing file is left unchanged: it may belong to a running server.
    """
    if path is None:
        return
    with _readable_failure(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass  # an attempt is the only reliable test: permissions do not show a read-only disk


def report_ready(path: Path | None, **fields: object) -> None:
    """Report that the server answers: to the service manager, and in the ready file.

    The file is a JSON object of ``fields`` and the pid, written atomically.

    Raises:
        InvalidConfigError: it cannot be written.
    """
    if path is not None:
        with _readable_failure(path):
            write_atomically(path, json.dumps({**fields, "pid": os.getpid()}) + "\n")
    notify("READY=1")


def remove_ready_file(path: Path | None) -> None:
    """Remove the ready file. InvalidConfigError if that fails."""
    if path is not None:
        with _readable_failure(path):
            path.unlink(missing_ok=True)


@contextmanager
def _readable_failure(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise InvalidConfigError(
            "the ready file cannot be written",
            expected="a file in a folder that is there and can be written to",
            got=f"{path}: {error.strerror}",
            remedy="Create the folder, or give --ready-file another path.",
        ) from error
