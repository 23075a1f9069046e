"""A disk that fails on request, as a hook of the store, and a cache on it."""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lmdb

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import StoreError
from suffixsvc.runtime.sync_points import with_sync_points
from support.serving import eventually

__all__ = ["MAX_SESSIONS", "FailingDisk", "opened_cache", "small_limits", "writes"]

#: limit on live sessions of :func:`small_limits`
MAX_SESSIONS = 8


class FailingDisk:
    """A sync point (``with_sync_points``): while it is failing, no transaction is written."""

    def __init__(self) -> None:
        self.failing = threading.Event()

    def __call__(self, point: str) -> None:
        if point == "written" and self.failing.is_set():
            error = lmdb.Error("injected")
            error.code = errno.EIO
            raise error


def small_limits(**changed: Any) -> Limits:
    """Limits with few sessions that do not expire, and ``changed``."""
    return Limits(**{"max_sessions": MAX_SESSIONS, "session_idle_seconds": 3600.0, **changed})


@contextlib.contextmanager
def opened_cache(folder: Path, disk: FailingDisk, chosen: Limits) -> Iterator[SuffixCache]:
    """A cache on ``disk`` with the namespaces "a" and "b", whose creation is a write; writable at the end."""
    with with_sync_points(SuffixCache, disk)(folder / "d", limits=chosen, background=False) as cache:
        for path in ("a", "b"):
            cache.namespace(path).add_output([1])
        yield cache
        disk.failing.clear()
        eventually(lambda: writes(cache), "the store has recovered")


def writes(cache: SuffixCache) -> bool:
    """Whether the store accepts writes."""
    with contextlib.suppress(StoreError):
        cache.namespace("b").add_output([1])
    return cache.durability() is None
