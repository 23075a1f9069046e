"""What adapters with a tracker of their own have in common: its counts, and its end."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from suffixsvc_driver.adapters.session_tracker import SessionTracker
from suffixsvc_driver.adapters.tracker_types import TrackerStats

__all__ = ["Tracking"]


class Tracking:
    """Drafts with :attr:`tracker`. Use it as a context manager, where the engine lets you."""

    tracker: SessionTracker

    @property
    def stats(self) -> TrackerStats:
        """What was drafted, and what came true."""
        return self.tracker.stats

    def close(self) -> None:
        """Wait until what was written is kept. The engine decodes plainly from now on. Idempotent."""
        self.tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
