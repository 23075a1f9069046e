"""Base class of adapters that own a session tracker: statistics and closing."""

from __future__ import annotations

from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_adapters.tracking.session_tracker import SessionTracker
from suffixsvc_adapters.tracking.tracker_types import TrackerStats


class AdapterBase(ClosedOnExit):
    """Drafts with :attr:`tracker`. Use it as a context manager where the engine allows it.

    Attributes:
        tracker: None if this process has no use for drafts.
    """

    tracker: SessionTracker | None = None

    @property
    def stats(self) -> TrackerStats:
        """The tracker's counters."""
        return TrackerStats() if self.tracker is None else self.tracker.stats

    def close(self) -> None:
        """Store all outputs and stop drafting: the engine then decodes plainly. Idempotent."""
        if self.tracker is not None:
            self.tracker.close()
