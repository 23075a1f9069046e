"""Which session a call belongs to."""

from __future__ import annotations

from suffixsvc_caches.logs.options import SessionSplit, SplitBy

__all__ = ["Sessions"]


class Sessions:
    """Names the sessions of one file.

    Args:
        name: the file's name, which sessions are named by where the log names none.
    """

    def __init__(self, split: SessionSplit, name: str) -> None:
        self._split = split
        self._name = name
        self._calls = 0
        self._gaps = 0
        self._last: float | None = None

    def of(self, session: str, time: float | None, place: int, together: bool) -> str:
        """The session of the next call.

        Args:
            session: as the log names it, or "".
            place: number of the record in the file.
            together: whether the record is a conversation: a session, where the log names none.
        """
        self._calls += 1
        match self._split.by:
            case SplitBy.FIELD:
                return session or (f"{self._name}:{place}" if together else "")
            case SplitBy.FILE:
                return self._name
            case SplitBy.LINE:
                return f"{self._name}#{self._calls}"
            case SplitBy.GAP:
                return self._after_gap(time)

    def _after_gap(self, time: float | None) -> str:
        if time is not None:
            # backwards too: logs of several runs, one behind the other
            if self._last is not None and abs(time - self._last) > self._split.gap_seconds:
                self._gaps += 1
            self._last = time
        return f"{self._name}#{self._gaps + 1}"
