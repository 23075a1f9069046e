"""Assignment of calls to sessions."""

from __future__ import annotations

from suffixsvc_caches.logs.base.options import SessionSplit, SplitBy


class SessionAssigner:
    """Assigns session names to the calls of one file.

    Args:
        split: rule by which the log is divided into sessions.
        name: name of the file, part of generated session names.
    """

    def __init__(self, split: SessionSplit, name: str) -> None:
        self._split = split
        self._name = name
        self._calls = 0
        self._gaps = 0
        self._last: float | None = None

    def assign(self, session: str, time: float | None, place: int, in_conversation: bool) -> str:
        """Return the session of the next call.

        Args:
            session: name in the log, or "".
            time: seconds since the epoch, or None.
            place: number of the record in the file.
            in_conversation: the record is a conversation, which is a session if the log does not name one.
        """
        self._calls += 1
        match self._split.by:
            case SplitBy.FIELD:
                return session or (f"{self._name}:{place}" if in_conversation else "")
            case SplitBy.FILE:
                return self._name
            case SplitBy.LINE:
                return f"{self._name}#{self._calls}"
            case SplitBy.GAP:
                return self._after_gap(time)

    def _after_gap(self, time: float | None) -> str:
        if time is not None:
            # also backwards: a file may have the logs of several runs
            if self._last is not None and abs(time - self._last) > self._split.gap_seconds:
                self._gaps += 1
            self._last = time
        return f"{self._name}#{self._gaps + 1}"
