"""What every server process of ours needs: to be told to stop, and to say that it is ready."""

from __future__ import annotations

import errno
import json
import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from suffixsvc.errors import InvalidConfigError

__all__ = [
    "SERVER_OPTIONS",
    "announce_ready",
    "owner_only_umask",
    "require_ready_file",
    "stop_signal",
    "withdraw_ready",
]

#: of every gRPC server of ours
SERVER_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),
    # Clients ping idle connections to notice a dead peer: an agent may wait for its tool for minutes. By
    # default gRPC takes that for abuse after the third ping and hangs up.
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A client whose machine or network vanished holds its streams' places until its connection is known to be
    # dead; without pings that takes the system's TCP timers hours, or for ever where nothing is sent.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.ping_timeout_ms", 20_000),  # the later of the two counts
    ("grpc.http2.max_pings_without_data", 0),
    # calls of one connection: others have their own
    ("grpc.max_concurrent_streams", 1_024),
)


@contextmanager
def stop_signal() -> Iterator[Callable[[], None]]:
    """A function that blocks until SIGTERM or SIGINT came. A second one meets the default action: it kills.

    Signals are told through a pipe: one that arrives just before the main thread goes to sleep on a lock,
    as in ``threading.Event.wait``, or on another thread, would never wake it. Main thread only.
    """
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    stopping = (signal.SIGTERM, signal.SIGINT)
    wakeup_before = signal.set_wakeup_fd(writer)
    before = {number: signal.signal(number, _next_one_kills) for number in stopping}

    def wait() -> None:
        while os.read(reader, 1)[0] not in stopping:
            pass

    try:
        yield wait
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(wakeup_before)
        os.close(reader)
        os.close(writer)


@contextmanager
def owner_only_umask() -> Iterator[None]:
    """Files made inside, sockets among them, are the owner's alone (mode 0600) from their first moment."""
    before = os.umask(0o177)
    try:
        yield
    finally:
        os.umask(before)


def _next_one_kills(number: int, _frame: object) -> None:
    signal.signal(number, signal.SIG_DFL)


def require_ready_file(path: Path | None) -> None:
    """InvalidConfigError unless a ready file can be written there; asked before a server does anything else.

    A file that is there already is left alone: it may be that of a server that lives.
    """
    if path is None:
        return
    with _readable_failure(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        with tempfile.TemporaryFile(dir=path.parent):
            pass  # trying is the only sure way to know: rights alone say nothing about a read-only disk


def announce_ready(path: Path | None, **told: object) -> None:
    """Write the ready file, a JSON object, at once: a script that waits for it never reads half of it.
    InvalidConfigError if it cannot be written."""
    if path is None:
        return
    fresh = path.with_name(path.name + ".new")
    with _readable_failure(path):
        fresh.write_text(json.dumps({**told, "pid": os.getpid()}) + "\n", encoding="utf-8")
        fresh.replace(path)


def withdraw_ready(path: Path | None) -> None:
    """Take the ready file away again. InvalidConfigError if that fails."""
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
