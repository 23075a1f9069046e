"""Base class of connections to one worker, whatever its protocol."""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Final, Self

import structlog

from suffixsvc.errors import ProtocolError, SuffixError
from suffixsvc_driver.workers.client.channel import WorkerChannel
from suffixsvc_driver.workers.client.interface import WorkerDescription
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.client.vocabulary_check import VocabularyCheck
from suffixsvc_models.vocabulary import Vocabulary

__all__ = ["CONNECT_SECONDS", "SingleWorker", "require_speed"]

_log = structlog.get_logger(__name__)
CONNECT_SECONDS: Final = 10.0
#: timeout of the vocabulary check with which every channel begins
_VERIFY_SECONDS: Final = 5.0


class SingleWorker(ABC):
    """A connection to one worker. See :class:`~suffixsvc_driver.workers.client.interface.DraftWorker`."""

    def __init__(self, address: str) -> None:
        #: as passed to the constructor
        self.address = address
        self.vocabulary_check = VocabularyCheck()
        self._lock = threading.Lock()
        self._failures = 0
        self._closed = False
        # weak: a channel lives while its thread does
        self._open_channels: weakref.WeakSet[WorkerChannel] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def failures(self) -> int:
        """Number of failures in all sessions; the first one was logged."""
        with self._lock:
            return self._failures

    def check_vocabulary(
        self, target: Vocabulary, timeout_seconds: float = CONNECT_SECONDS
    ) -> WorkerDescription:
        """See the protocol."""
        self.vocabulary_check.target = target
        return self._verify(timeout_seconds, patient=True)

    def open_session(
        self, *, p_min: float = 0.4, top_k: int = 10, wait_seconds: float = 0.0
    ) -> WorkerSession:
        """See the protocol."""
        return WorkerSession(
            self._start_channel,
            self._speed,
            self._record_failure,
            p_min=p_min,
            top_k=top_k,
            wait_seconds=wait_seconds,
        )

    @abstractmethod
    def describe(self, timeout_seconds: float = CONNECT_SECONDS) -> WorkerDescription:
        """See the protocol."""

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
        return self._verify(_VERIFY_SECONDS, patient=False).instance_id

    def _speed(self) -> float:
        last = self.vocabulary_check.last
        return last.seconds_per_token if last is not None else 0.0

    def _record_failure(self, error: SuffixError) -> None:
        with self._lock:
            self._failures += 1
            first = self._failures == 1
        if first:
            _log.warning(
                "a draft worker failed; decoding goes on without it", address=self.address, error=repr(error)
            )


def require_speed(seconds_per_token: float, address: str) -> None:
    """Validate the speed in a worker's description.

    Raises:
        ProtocolError: it is negative or not finite.
    """
    if not 0.0 <= seconds_per_token < math.inf:
        raise ProtocolError(
            f"seconds per token of the draft worker at {address} must be a finite number >= 0",
            got=seconds_per_token,
        )
