"""State of one worker of a pool."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from suffixsvc.errors import SuffixError
from suffixsvc_driver.workers.client.interface import WorkerDescription
from suffixsvc_driver.workers.client.single import SingleWorker


class WorkerState(enum.StrEnum):
    """State of a worker in the pool."""

    #: not checked yet
    NEW = "new"
    USABLE = "usable"
    #: unreachable, or it does not reply
    GONE = "gone"
    #: replies, but its vocabulary does not match the target's
    UNFIT = "unfit"


@dataclass(slots=True, eq=False)
class PoolEntry:
    """A worker of the pool, its state and its counters. Guarded by the pool's lock."""

    worker: SingleWorker
    state: WorkerState = WorkerState.NEW
    description: WorkerDescription | None = None
    sessions: int = 0
    departures: int = 0
    error: SuffixError | None = None
    check_at: float = 0.0
    usable_since: float = 0.0
    backoff: float = 0.0
    logged_states: set[WorkerState] = field(default_factory=set)
