"""Counters of namespaces with a bounded number of series: those of the busiest, and one for all others.

Which namespaces are the busiest changes, and a counter must not fall. The table adds what a namespace
counted since the last reading to the series that it belongs to now:

    counters of a namespace ──difference──> its own series     while it is one of the busiest
                                     └────> the series OTHER   otherwise

The increases of all series together are therefore those of all namespaces, whatever moves between them. A
series that ends and begins again starts at 0.
"""

from __future__ import annotations

import heapq
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

#: name of the series of the namespaces that have none of their own; no path begins with a slash
OTHER: Final = "/other"
#: time after which a step counts half in the order of the busiest
HALF_LIFE_SECONDS: Final = 600.0

Counts: TypeAlias = tuple[float, ...]


@dataclass(slots=True)
class _Seen:
    """A namespace at the last reading.

    Attributes:
        counts: its counters.
        score: decayed number of its steps.
    """

    counts: Counts
    score: float = 0.0


class NamespaceSeries:
    """Assigns the counters of namespaces to series. Thread-safe.

    Args:
        most: number of namespaces with a series of their own.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._seen: dict[str, _Seen] = {}
        self._series: dict[str, Counts] = {}
        self._read_at = 0.0

    def update(self, counters: Mapping[str, Counts], now: float) -> dict[str, Counts]:
        """Read the counters of all namespaces.

        Args:
            counters: by path; the first one of each is its number of steps.
            now: in seconds.

        Returns:
            The counters of every series by the path of its namespace, or OTHER.
        """
        with self._lock:
            decay = 0.5 ** (max(0.0, now - self._read_at) / HALF_LIFE_SECONDS)
            self._read_at = now
            for path in self._seen.keys() - counters.keys():  # deleted
                del self._seen[path]
            new: dict[str, Counts] = {}
            for path, counts in counters.items():
                before = self._seen.get(path)
                new[path] = _difference(counts, before)
                score = new[path][0] + (0.0 if before is None else before.score * decay)
                self._seen[path] = _Seen(counts, score)
            named = self._busiest()
            for path in self._series.keys() - named - {OTHER}:
                del self._series[path]
            for path, more in new.items():
                label = path if path in named else OTHER
                sums = self._series.get(label)
                self._series[label] = more if sums is None else tuple(map(sum, zip(sums, more, strict=True)))
            return dict(self._series)

    def _busiest(self) -> set[str]:
        """Paths with a series; at equal scores, those that have one stay."""
        if len(self._seen) <= self._most:
            return set(self._seen)
        return set(
            heapq.nlargest(
                self._most, self._seen, key=lambda path: (self._seen[path].score, path in self._series)
            )
        )


def _difference(counts: Counts, before: _Seen | None) -> Counts:
    """What was counted since the last reading; all of it if the namespace was deleted and created again."""
    if before is None or any(now < then for now, then in zip(counts, before.counts, strict=True)):
        return counts
    return tuple(now - then for now, then in zip(counts, before.counts, strict=True))


def grouped_sums(values: Mapping[str, Sequence[float]], named: Mapping[str, object]) -> dict[str, Counts]:
    """Values of namespaces by series: those that have one, and the sums of the others as OTHER."""
    groups: dict[str, Counts] = {}
    for path, row in values.items():
        label = path if path in named else OTHER
        sums = groups.get(label)
        groups[label] = tuple(row) if sums is None else tuple(map(sum, zip(sums, row, strict=True)))
    return groups
