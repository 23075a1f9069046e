"""What reading logs came to: calls handed on, and what was left out and why."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final, Self

__all__ = ["MAX_FAULTS", "LogCounts", "LogFault", "LogTally"]

#: so many faults are kept in words; the rest only count
MAX_FAULTS: Final = 20


@dataclass(frozen=True, slots=True)
class LogFault:
    """Something that could not be read.

    Attributes:
        place: where in the file: "line 7", "record 3" of a JSON document, "row 12" of a table, or "" for
            the file as a whole.
    """

    path: Path
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}{', ' if self.place else ''}{self.place}: {self.reason}"


@dataclass(slots=True)
class LogCounts:
    """The numbers of a tally.

    Attributes:
        files: files begun.
        bytes: bytes of files read, as they are on the disk.
        calls: calls handed on.
        filtered: calls that the filter left out.
        without_response: calls whose response is missing or empty, failed requests among them.
        malformed: lines, records or rows that are no call, and text files that are no text.
        binary: files that were no text.
        damaged: files that ended early: truncated, corrupt, unreadable, gone.
    """

    files: int = 0
    bytes: int = 0
    calls: int = 0
    filtered: int = 0
    without_response: int = 0
    malformed: int = 0
    binary: int = 0
    damaged: int = 0


class LogTally:
    """Counts of one or many readers. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts = LogCounts()
        self._faults: list[LogFault] = []

    def add(self, counts: LogCounts) -> None:
        """Add numbers."""
        with self._lock:
            for field in fields(LogCounts):
                value = getattr(counts, field.name)
                if value:
                    setattr(self._counts, field.name, getattr(self._counts, field.name) + value)

    def add_fault(self, fault: LogFault) -> None:
        """Note a fault; its number is counted apart, by :meth:`add`."""
        with self._lock:
            if len(self._faults) < MAX_FAULTS:
                self._faults.append(fault)

    def merge(self, other: LogTally) -> None:
        """Add another tally, its faults behind those that are here."""
        self.add(other.counts)
        for fault in other.faults:
            self.add_fault(fault)

    def as_dict(self) -> dict[str, Any]:
        """The tally as plain JSON."""
        faults = [[str(each.path), each.place, each.reason] for each in self.faults]
        return {"counts": asdict(self.counts), "faults": faults}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """What :meth:`as_dict` gave."""
        tally = cls()
        tally.add(LogCounts(**plain["counts"]))
        for path, place, reason in plain["faults"]:
            tally.add_fault(LogFault(Path(path), place, reason))
        return tally

    @property
    def counts(self) -> LogCounts:
        """The numbers so far, a copy."""
        with self._lock:
            return LogCounts(*(getattr(self._counts, field.name) for field in fields(LogCounts)))

    @property
    def faults(self) -> tuple[LogFault, ...]:
        """The first :data:`MAX_FAULTS` faults in the order in which they were met."""
        with self._lock:
            return tuple(self._faults)

    def describe(self) -> str:
        """The tally in words: one line of counts, then a line for each fault that was kept."""
        counts = self.counts
        parts = [f"{counts.calls:,} calls in {counts.files:,} files"]
        parts += [
            f"{number:,} {what}"
            for number, what in (
                (counts.filtered, "filtered out"),
                (counts.without_response, "without a response"),
                (counts.malformed, "malformed"),
                (counts.binary, "binary files"),
                (counts.damaged, "damaged files"),
            )
            if number
        ]
        faults = self.faults
        lines = [", ".join(parts), *map(str, faults)]
        rest = counts.malformed + counts.damaged - len(faults)
        if rest > 0:
            lines.append(f"and {rest:,} more")
        return "\n".join(lines)
