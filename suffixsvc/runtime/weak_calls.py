"""Callbacks that do not keep their object alive."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


def weak_callback(method: Callable[..., Any]) -> Callable[..., None]:
    """A function that calls a bound method, or does nothing after its object was collected."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        if (bound := weak()) is not None:
            bound(*arguments)

    return call
