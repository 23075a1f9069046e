"""Base class of adapters that own a session tracker: statistics and closing."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from suffixsvc_adapters.session_tracker import SessionTracker
from suffixsvc_adapters.tracker_types import TrackerStats

__all__ = ["AdapterBase"]


class AdapterBase:
    """Drafts with :attr:`tracker`. Use it as a context manager where the engine allows it."""

    tracker: SessionTracker

    @property
    def stats(self) -> TrackerStats:
        """The tracker's counters."""
        return self.tracker.stats

    def close(self) -> None:
        """Store all outputs and stop drafting: the engine then decodes plainly. Idempotent."""
        self.tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
