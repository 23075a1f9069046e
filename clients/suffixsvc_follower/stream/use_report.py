"""Reports of what a follower did, so that the service's eviction and statistics stay true, and its drafting
learns from all of its followers."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Final
from weakref import WeakKeyDictionary

from suffixsvc.core import new_learner
from suffixsvc.index.namespace_stats import StepCounts
from suffixsvc.log_types import LogPosition
from suffixsvc.log_wire import pack_ids, position_to_proto
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_follower.stream.followed import Followed, FollowedTable

#: what was learned in a namespace is reported this often, if it was drafted in
LEARNED_SECONDS: Final = 60.0


@dataclass(slots=True)
class _Reported:
    """What was reported of a namespace; ``steps`` and ``at`` are of the last report of what was learned."""

    counts: StepCounts = field(default_factory=StepCounts)
    steps: int = 0
    at: float = field(default_factory=time.monotonic)


class UseReports:
    """Makes reports; each has what happened since the one before. Its caller serialises the calls.

    Args:
        table: the namespaces.
    """

    def __init__(self, table: FollowedTable) -> None:
        self._table = table
        self._reported: WeakKeyDictionary[Followed, _Reported] = WeakKeyDictionary()

    def next(self, applied: LogPosition, *, last: bool = False) -> pb.FollowerReport:
        """The next report.

        Args:
            applied: position of the copies.
            last: the follower is being closed: all that was learned is in it.
        """
        report = pb.FollowerReport(applied=position_to_proto(applied))
        for entry in self._table.values():
            copy = entry.copy
            report.held_bytes += copy.held_bytes
            report.mapped_bytes += copy.mapped_bytes
            now = StepCounts.of(copy.counters)
            reported = self._reported.setdefault(entry, _Reported())
            learned = self._learned(entry, reported, now.num_steps, last=last)
            used = copy.take_used()
            if now != reported.counts or used or learned:
                more = now.since(reported.counts)._asdict()
                report.used.add(namespace=entry.path, output_ids=pack_ids(used), learned=learned, **more)
            reported.counts = now
        return report

    def _learned(self, entry: Followed, reported: _Reported, steps: int, *, last: bool) -> bytes:
        now = time.monotonic()
        if steps == reported.steps or not (last or now - reported.at >= LEARNED_SECONDS):
            return b""
        reported.steps, reported.at = steps, now
        learner = entry.copy.learner
        base, entry.learned_base = entry.learned_base or new_learner().save(), learner.save()
        # between the two calls of the learner a step may learn: its share is reported twice, or not at all
        return learner.difference(base)
