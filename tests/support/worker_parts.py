"""Inner state of draft workers and their clients, for tests that have no public effect to wait for."""

from __future__ import annotations

from collections import deque

from suffixsvc.types import Draft
from suffixsvc_driver.targets.slots import Slot
from suffixsvc_driver.workers.client.channel import WorkerChannel
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.server.engine import DraftEngine, DraftRequest
from suffixsvc_driver.workers.server.scheduler import Scheduler
from suffixsvc_driver.workers.server.ticket import Ticket

__all__ = ["channel_of", "draft_alone", "sequences_of", "session_ids_of", "waiting_in"]


def channel_of(session: WorkerSession) -> WorkerChannel | None:
    return session._channel


def draft_alone(engine: DraftEngine, request: DraftRequest) -> Draft:
    """Prefill and draft without other sessions. Raises what the engine or the job does."""
    job = engine.begin(request)
    assert job is not None, "every sequence is in use"
    while job.to_prefill and not job.done:
        engine.prefill(job)
    while not job.done:
        engine.step([job])
    if job.error is not None:
        raise job.error
    return job.draft


def session_ids_of(engine: DraftEngine) -> list[str]:
    return list(engine._sessions)


def sequences_of(engine: DraftEngine) -> list[Slot]:
    return engine._sequences.slots


def waiting_in(scheduler: Scheduler) -> deque[Ticket]:
    return scheduler._waiting
