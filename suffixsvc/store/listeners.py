"""Calls of a store's listeners: what fails in one harms neither the store nor what was kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import structlog

__all__ = ["call_listener"]

log = structlog.get_logger(__name__)

T = TypeVar("T")


def call_listener(listener: Callable[[T], object] | None, value: T) -> None:
    """Call it, if there is one; an exception of its own is a defect and is logged."""
    if listener is None:
        return
    try:
        listener(value)
    except Exception:
        log.exception("a listener of the store failed")
