"""A request on its way through the scheduler."""

from __future__ import annotations

import threading
from typing import Final

from suffixsvc.errors import SuffixError
from suffixsvc.types import Draft
from suffixsvc_driver.workers.server.job import DraftRequest, Job

#: time that a reply needs to reach its client
_MARGIN_SECONDS: Final = 0.001


class Ticket:
    """A request on its way through the scheduler.

    Attributes, valid once ``done`` is set:
        busy: the request was refused and nothing was done.
        error: the reason if there is no draft.
        draft, length: the reply, and the context tokens now held for the session.
        seconds: from its start to its end.
        job: its progress, once it has started.
    """

    job: Job

    def __init__(
        self, request: DraftRequest, arrived: float, timeout_seconds: float, wait_seconds: float
    ) -> None:
        self.request = request
        self.wait_seconds = wait_seconds
        self.deadline = arrived + timeout_seconds - _MARGIN_SECONDS if timeout_seconds > 0 else None
        self.busy = False
        self.error: SuffixError | None = None
        self.draft = Draft.empty()
        self.length = 0
        self.seconds = 0.0
        self.cancelled = False
        self.started_at = 0.0
        self.started = threading.Event()
        self.done = threading.Event()

    def complete(self) -> None:
        """Release the threads that wait for this request."""
        self.done.set()
        self.started.set()
