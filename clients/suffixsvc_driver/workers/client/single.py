"""Base class of connections to one worker, whatever its protocol."""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Any, Final

import structlog

from suffixsvc.errors import (
    AccessError,
    ProtocolError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SuffixError,
)
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_driver.workers.client.channel import WorkerChannel
from suffixsvc_driver.workers.client.interface import WorkerDescription
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.client.vocabulary_check import VocabularyCheck
from suffixsvc_models.vocabulary import Vocabulary

_log = structlog.get_logger(__name__)
CONNECT_SECONDS: Final = 10.0
#: timeout of the vocabulary check with which every channel begins
_VERIFY_SECONDS: Final = 5.0


class SingleWorker(ClosedOnExit, ABC):
    """A connection to one worker. See :class:`~suffixsvc_driver.workers.client.interface.DraftWorker`."""

    def __init__(self, address: str) -> None:
        #: as passed to the constructor
        self.address = address
        self.vocabulary_check = VocabularyCheck()
        self._lock = threading.Lock()
        #: number of failures in all sessions; the first one was logged, and the first refusal
        self.failures = 0
        self._refused = False
        #: see the protocol; every session opens a channel, which begins with a check
        self.up = True
        self._closed = False
        # weak: a channel lives while its thread does
        self._open_channels: weakref.WeakSet[WorkerChannel] = weakref.WeakSet()

    def check_vocabulary(
        self, target: Vocabulary, timeout_seconds: float = CONNECT_SECONDS
    ) -> WorkerDescription:
        """See the protocol."""
        self.vocabulary_check.set_target(target)
        return self._checked(timeout_seconds, patient=True)

    def open_session(self, **options: Any) -> WorkerSession:
        """See the protocol."""
        return WorkerSession(self._start_channel, self._speed, self._record_failure, **options)

    def close(self) -> None:
        """See the protocol."""
        with self._lock:
            self._closed = True
            channels = list(self._open_channels)
        for channel in channels:
            channel.end()
        self._disconnect()
        for channel in channels:
            channel.close()

    @abstractmethod
    def _disconnect(self) -> None:
        """Close the connection itself, beside its channels. Idempotent."""

    @abstractmethod
    def _verify(self, timeout_seconds: float, *, patient: bool) -> WorkerDescription:
        """Identify the instance that replies, and compare its vocabulary unless that was done before.

        Args:
            patient: wait for a worker that cannot be reached yet.
        """

    @abstractmethod
    def _new_channel(self) -> WorkerChannel:
        """Return a new channel, not started yet."""

    def _start_channel(self) -> WorkerChannel:
        channel = self._new_channel()
        with self._lock:
            closed = self._closed
            self._open_channels.add(channel)
        channel.start()
        if closed:
            channel.end()
        return channel

    def _verified_instance(self) -> str:
        """Check the vocabulary and return the instance id; "" if no target is set."""
        if self.vocabulary_check.target is None:
            return ""
        return self._checked(_VERIFY_SECONDS, patient=False).instance_id

    def _checked(self, timeout_seconds: float, *, patient: bool) -> WorkerDescription:
        found = self._verify(timeout_seconds, patient=patient)
        self.up = True
        return found

    def _speed(self) -> float:
        last = self.vocabulary_check.last
        return last.seconds_per_token if last is not None else 0.0

    def _record_failure(self, error: SuffixError) -> None:
        with self._lock:
            self.failures += 1
            refused = isinstance(error, AccessError)
            first = self.failures == 1 or (refused and not self._refused)
            self._refused = self._refused or refused
            if refused or isinstance(error, (ServiceUnavailableError, ServiceTimeoutError)):
                self.up = False
        if first:
            _log.warning(
                "a draft worker failed; decoding goes on without it", address=self.address, error=repr(error)
            )


def require_speeds(address: str, *seconds_per_token: float) -> None:
    """Validate speeds in a worker's description.

    Raises:
        ProtocolError: one is negative or not finite.
    """
    for seconds in seconds_per_token:
        if not 0.0 <= seconds < math.inf:
            raise ProtocolError(
                f"seconds per token of the draft worker at {address} must be a finite number >= 0",
                got=seconds,
            )
