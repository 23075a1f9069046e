"""Calls of a store's listeners: an exception of a listener must not affect the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

__all__ = ["call_listener"]

log = structlog.get_logger(__name__)

T = TypeVar("T")


def call_listener(listener: Callable[[T], object] | None, value: T) -> None:
    """Call the listener unless it is None; log an exception that it raises."""
    if listener is None:
        return
    try:
        listener(value)
    except Exception:
        log.exception("a listener of the store failed")
