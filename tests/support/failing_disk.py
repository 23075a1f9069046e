"""A disk that fails when a test says so, as a hook of the store's."""

from __future__ import annotations

import errno
import threading

import lmdb

__all__ = ["FailingDisk"]


class FailingDisk:
    """To be passed as ``crash_hook``: while it is failing, no transaction is written."""

    def __init__(self) -> None:
        self.failing = threading.Event()

    def __call__(self, point: str) -> None:
        if point == "written" and self.failing.is_set():
            error = lmdb.Error("injected")
            error.code = errno.EIO
            raise error
