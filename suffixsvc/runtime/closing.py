"""Base class of objects that a ``with`` block closes."""

from __future__ import annotations

from typing import Self


class ClosedOnExit:
    """A context manager whose end calls :meth:`close`."""

    __slots__ = ()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close it. Idempotent."""
        raise NotImplementedError
