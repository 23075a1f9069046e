"""Report of reading logs: number of calls, number of skipped records by reason, and the first faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, Self

#: faults that are stored; further ones are only counted
MAX_FAULTS: Final = 20


@dataclass(frozen=True, slots=True)
class LogFault:
    """A part of a log that could not be read.

    Attributes:
        path: the file.
        place: position in the file: "line 7", "record 3" of a JSON document, "row 12" of a table; "" for the
            whole file.
        reason: error message.
    """

    path: Path
    place: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}{', ' if self.place else ''}{self.place}: {self.reason}"


@dataclass(slots=True)
class LogCounts:
    """Counts of a report.

    Attributes:
        files: files opened.
        bytes: bytes read, as stored on disk.
        calls: calls yielded.
        filtered: calls rejected by the filter.
        without_response: calls with a missing or empty response, including failed requests.
        malformed: lines, records or rows that are not calls, and text files that cannot be decoded.
        binary: binary files, skipped in the text format.
        damaged: files that could not be read to their end: truncated, corrupt, unreadable or removed.
    """

    files: int = 0
    bytes: int = 0
    calls: int = 0
    filtered: int = 0
    without_response: int = 0
    malformed: int = 0
    binary: int = 0
    damaged: int = 0


@dataclass(slots=True)
class ReadReport:
    """Counts and faults of one or more readers, for one thread at a time.

    Attributes:
        counts: the counts.
        faults: the first :data:`MAX_FAULTS` faults, in order of occurrence.
    """

    counts: LogCounts = field(default_factory=LogCounts)
    faults: list[LogFault] = field(default_factory=list)

    def add_fault(self, fault: LogFault) -> None:
        """Store a fault, up to :data:`MAX_FAULTS`; the counts have all of them."""
        if len(self.faults) < MAX_FAULTS:
            self.faults.append(fault)

    def merge(self, other: ReadReport) -> None:
        """Add the counts and faults of another report."""
        for name, number in asdict(other.counts).items():
            setattr(self.counts, name, getattr(self.counts, name) + number)
        for fault in other.faults:
            self.add_fault(fault)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain JSON values."""
        faults = [[str(each.path), each.place, each.reason] for each in self.faults]
        return {"counts": asdict(self.counts), "faults": faults}

    @classmethod
    def from_dict(cls, plain: Mapping[str, Any]) -> Self:
        """Restore the report of :meth:`as_dict`."""
        faults = [LogFault(Path(path), place, reason) for path, place, reason in plain["faults"]]
        return cls(LogCounts(**plain["counts"]), faults)

    def describe(self) -> str:
        """Return the report as text: one line of counts, then one line for each stored fault."""
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
        lines = [", ".join(parts), *map(str, self.faults)]
        rest = counts.malformed + counts.damaged - len(self.faults)
        if rest > 0:
            lines.append(f"and {rest:,} more")
        return "\n".join(lines)
