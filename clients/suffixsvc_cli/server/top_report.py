"""What ``suffixsvc top`` shows: the state of a service, and its rates between two readings."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Protocol

from suffixsvc_client import SuffixClient
from suffixsvc_client.protocol.replies import BackgroundTask, FollowerStats, NamespaceSummary, ServiceStats


@dataclass(frozen=True, slots=True)
class Reading:
    """The statistics of a service at one moment."""

    at: float  #: monotonic seconds
    version: str
    instance_id: str
    stats: ServiceStats
    namespaces: tuple[NamespaceSummary, ...]
    store_failure: str = ""


def read(client: SuffixClient) -> Reading:
    """Read a service. SuffixError: it does not answer."""
    info = client.server_info()
    namespaces = client.namespace_summaries()
    failure = "" if info.store_failure is None else str(info.store_failure)
    return Reading(
        time.monotonic(), info.version, info.instance_id, client.stats(), tuple(namespaces), failure
    )


class _Counters(Protocol):
    @property
    def num_steps(self) -> int: ...
    @property
    def num_drafts(self) -> int: ...
    @property
    def num_draft_tokens(self) -> int: ...
    @property
    def num_accepted_tokens(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Activity:
    """Rates between two readings; None where nothing tells."""

    steps_per_second: float | None = None
    accepted_tokens_per_second: float | None = None
    #: steps with a draft, of those that requested one
    draft_hit_rate: float | None = None
    #: accepted tokens, of those drafted
    acceptance_rate: float | None = None


@dataclass(frozen=True, slots=True)
class NamespaceActivity:
    """A namespace."""

    path: str
    activity: Activity
    sessions: int
    outputs: int
    tokens: int
    held_bytes: int
    drafting_off: bool


@dataclass(frozen=True, slots=True)
class StoreState:
    """The store."""

    failing: bool
    bytes: int
    #: time of the last write, in microseconds since 1970
    last_lsn: int
    queue: int
    reopened: int
    defects: int
    #: why it is failing; "" if it is not
    failure: str


@dataclass(frozen=True, slots=True)
class Report:
    """The state of a service. Namespaces come by their rate, followers by their lag."""

    version: str
    instance_id: str
    #: between the two readings; None: there is one
    seconds: float | None
    sessions: int
    outputs: int
    tokens: int
    held_bytes: int
    limit_bytes: int
    activity: Activity
    #: seconds of the target that drafts saved, in each second (docs/metrics.md)
    saved_seconds_per_second: float | None
    unkept_sessions: int
    lost_sessions: int
    live_text_dropped: int
    log_lines_dropped: int
    store: StoreState
    namespaces: tuple[NamespaceActivity, ...]
    followers: tuple[FollowerStats, ...]
    background_tasks: tuple[BackgroundTask, ...]


def report_of(now: Reading, before: Reading | None) -> Report:
    """The report of a reading, with rates since an earlier one of the same service process."""
    if before is not None and (before.instance_id != now.instance_id or now.at <= before.at):
        before = None
    seconds = None if before is None else now.at - before.at
    stats = now.stats
    known = {} if before is None else {each.path: each for each in before.namespaces}
    namespaces = [
        NamespaceActivity(
            each.path,
            _activity(each, known.get(each.path), seconds),
            each.sessions,
            each.outputs,
            each.tokens,
            each.held_bytes,
            bool(each.drafting_off),
        )
        for each in now.namespaces
    ]
    namespaces.sort(key=lambda each: (-(each.activity.steps_per_second or 0.0), -each.outputs, each.path))
    saved = None
    if before is not None and seconds is not None:
        saved = (_saved_seconds(stats) - _saved_seconds(before.stats)) / seconds
    return Report(
        version=now.version,
        instance_id=now.instance_id,
        seconds=seconds,
        sessions=stats.sessions,
        outputs=stats.outputs,
        tokens=stats.tokens,
        held_bytes=stats.held_bytes,
        limit_bytes=stats.limit_bytes,
        activity=_activity(stats, None if before is None else before.stats, seconds),
        saved_seconds_per_second=saved,
        unkept_sessions=stats.unkept_sessions,
        lost_sessions=stats.lost_sessions,
        live_text_dropped=stats.live_lost,
        log_lines_dropped=stats.dropped_log_lines,
        store=StoreState(
            stats.store_failing,
            stats.store_bytes,
            stats.last_lsn,
            stats.store_queue,
            stats.store_reopened,
            stats.store_defects,
            now.store_failure,
        ),
        namespaces=tuple(namespaces),
        followers=tuple(sorted(stats.followers, key=lambda each: -each.lag)),
        background_tasks=stats.background_tasks,
    )


def _saved_seconds(stats: ServiceStats) -> float:
    return stats.avoided_seconds - stats.verify_seconds


def _activity(now: _Counters, before: _Counters | None, seconds: float | None) -> Activity:
    """Rates; of what began since the earlier reading, from 0 on if there is one."""
    if seconds is None:
        return Activity()

    def counts(each: _Counters) -> tuple[int, ...]:
        return each.num_steps, each.num_drafts, each.num_draft_tokens, each.num_accepted_tokens

    then = (0,) * 4 if before is None else counts(before)
    # not negative: counters of a namespace that was deleted end with it
    steps, drafts, drafted, accepted = (max(0, b - a) for a, b in zip(then, counts(now), strict=True))
    return Activity(
        steps_per_second=steps / seconds,
        accepted_tokens_per_second=accepted / seconds,
        draft_hit_rate=drafts / steps if steps else None,
        acceptance_rate=min(1.0, accepted / drafted) if drafted else None,
    )
