"""Waiting for sessions to write tokens."""

from __future__ import annotations

import select

from suffixsvc.core import _ext


class WriteSignal(_ext.WriteSignal):
    """Told by sessions that they wrote; see csrc/base/sync/write_signal.h. One thread waits.

    Args:
        delay_seconds: from a write until the thread is told of it; at most 3600.
    """

    def wait(self, seconds: float) -> bool:
        """Wait for a write since the last call; False after ``seconds`` without one."""
        poll = select.poll()
        poll.register(self.descriptor, select.POLLIN)
        told = bool(poll.poll(1e3 * seconds))
        self.clear()
        return told
