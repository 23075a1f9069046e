"""Sync points: named points of the engine and the store at which tests run code, or end the process.

A class with sync points calls its static method ``_sync_point`` with the name of the point. It does nothing;
:func:`with_sync_points` makes a subclass that calls a test's function instead.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

T = TypeVar("T")

#: called with the name of the point
SyncPoint = Callable[[str], None]


def with_sync_points(cls: type[T], sync_point: SyncPoint) -> type[T]:
    """Return a subclass of ``cls`` that calls ``sync_point`` at its sync points; for tests."""
    return cast("type[T]", type(cls.__name__, (cls,), {"_sync_point": staticmethod(sync_point)}))
