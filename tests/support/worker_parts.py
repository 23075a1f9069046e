"""Inner state of draft workers and their clients, for tests that have no public effect to wait for."""

from __future__ import annotations

from collections import deque

from suffixsvc_driver.targets.slots import Slot
from suffixsvc_driver.workers.client.channel import WorkerChannel
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.server.engine import DraftEngine
from suffixsvc_driver.workers.server.scheduler import Scheduler
from suffixsvc_driver.workers.server.ticket import Ticket

__all__ = ["channel_of", "sequences_of", "session_ids_of", "waiting_in"]


def channel_of(session: WorkerSession) -> WorkerChannel | None:
    return session._channel


def session_ids_of(engine: DraftEngine) -> list[str]:
    return list(engine._sessions)


def sequences_of(engine: DraftEngine) -> list[Slot]:
    return engine._sequences.slots


def waiting_in(scheduler: Scheduler) -> deque[Ticket]:
    return scheduler._waiting
