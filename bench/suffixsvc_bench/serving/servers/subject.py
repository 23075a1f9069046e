"""What answers the calls of `bench http`: a server process or the driver called directly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from suffixsvc_bench.decode.workload.jobs import Job
from suffixsvc_bench.serving.servers.client import Reply

Messages = Sequence[Mapping[str, str]]


class Subject(Protocol):
    """A way of answering jobs.

    Attributes:
        name: name in tables.
        learns: whether it drafts from earlier answers.
        optional: whether a run continues without it when it fails.
        pid: of its process; None if it is this one or not running.
    """

    name: str
    learns: bool
    optional: bool

    @property
    def pid(self) -> int | None:
        """See above."""

    def restart(self) -> None:
        """Start it with empty caches.

        Raises:
            ServiceUnavailableError: it does not start.
        """

    def stop(self) -> None:
        """End its process. Idempotent."""

    def answer(self, job: Job, max_tokens: int | None = None) -> Reply:
        """Answer a job greedily, with at most ``max_tokens`` tokens instead of the job's.

        Raises:
            ServiceUnavailableError: it refuses or fails.
        """


class ChatSubject(Subject, Protocol):
    """A subject that also serves chats."""

    def chat(self, messages: Messages, max_tokens: int, more: Mapping[str, Any] | None = None) -> Reply:
        """Answer messages greedily; ``more`` are further fields of the request.

        Raises:
            ServiceUnavailableError: it refuses or fails.
        """
