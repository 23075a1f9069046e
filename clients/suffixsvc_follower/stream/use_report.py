"""Reports of what a follower did, so that the service's eviction and statistics stay true."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

from suffixsvc.log_types import LogPosition
from suffixsvc.log_wire import pack_ids, position_to_proto
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_follower.stream.followed import Followed, FollowedTable


class _Counts(NamedTuple):
    num_steps: int = 0
    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0


class UseReports:
    """Makes reports; each has what happened since the one before. One thread.

    Args:
        table: the namespaces.
    """

    def __init__(self, table: FollowedTable) -> None:
        self._table = table
        self._reported: WeakKeyDictionary[Followed, _Counts] = WeakKeyDictionary()

    def next(self, applied: LogPosition) -> pb.FollowerReport:
        """The next report.

        Args:
            applied: position of the copies.
        """
        report = pb.FollowerReport(applied=position_to_proto(applied))
        for entry in self._table.values():
            copy = entry.copy
            report.held_bytes += copy.held_bytes
            report.mapped_bytes += copy.mapped_bytes
            counters = copy.counters
            now = _Counts(counters.steps, counters.drafts, counters.drafted, counters.accepted)
            before = self._reported.get(entry, _Counts())
            used = copy.take_used()
            if now != before or used:
                more = {name: getattr(now, name) - getattr(before, name) for name in _Counts._fields}
                report.used.add(namespace=entry.path, output_ids=pack_ids(used), **more)
            self._reported[entry] = now
        return report
