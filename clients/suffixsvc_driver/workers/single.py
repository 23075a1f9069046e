"""What the connections to one worker have in common, whatever that worker speaks."""

from __future__ import annotations

import math
import threading
import weakref
from abc import ABC, abstractmethod
from typing import Final, Self

import structlog

from suffixsvc.errors import ProtocolError, SuffixError
from suffixsvc_driver.vocabulary import Vocabulary
from suffixsvc_driver.workers.admission import Admission
from suffixsvc_driver.workers.exchange import Exchange
from suffixsvc_driver.workers.interface import WorkerDescription
from suffixsvc_driver.workers.session import WorkerSession

__all__ = ["CONNECT_SECONDS", "SingleWorker", "require_speed"]

_log = structlog.get_logger(__name__)
CONNECT_SECONDS: Final = 10.0
#: a conversation that begins asks who answers: for so long
_ADMIT_SECONDS: Final = 5.0


class SingleWorker(ABC):
    """A connection to one worker. See :class:`~suffixsvc_driver.workers.interface.DraftWorker`."""

    def __init__(self, address: str) -> None:
        #: as it was given
        self.address = address
        self.admission = Admission()
        self._lock = threading.Lock()
        self._failures = 0
        self._closed = False
        # alive while their threads are
        self._exchanges: weakref.WeakSet[Exchange] = weakref.WeakSet()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def failures(self) -> int:
        """What went wrong in all its sessions; the first one was logged."""
        with self._lock:
            return self._failures

    def check_vocabulary(
        self, target: Vocabulary, timeout_seconds: float = CONNECT_SECONDS
    ) -> WorkerDescription:
        self.admission.target = target
        return self._admit(timeout_seconds, patient=True)

    def open_session(
        self, *, p_min: float = 0.4, top_k: int = 10, wait_seconds: float = 0.0
    ) -> WorkerSession:
        return WorkerSession(
            self._start_exchange,
            self._speed,
            self._note_failure,
            p_min=p_min,
            top_k=top_k,
            wait_seconds=wait_seconds,
        )

    @abstractmethod
    def describe(self, timeout_seconds: float = CONNECT_SECONDS) -> WorkerDescription:
        """See the protocol."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
            exchanges = list(self._exchanges)
        for exchange in exchanges:
            exchange.end()
        self._disconnect()
        for exchange in exchanges:
            exchange.close()

    @abstractmethod
    def _disconnect(self) -> None:
        """Drop what there is beside the conversations. Idempotent."""

    @abstractmethod
    def _admit(self, timeout_seconds: float, *, patient: bool) -> WorkerDescription:
        """Ask who answers, and compare its vocabulary unless that was done before. ``patient``: one that
        cannot be reached is waited for."""

    @abstractmethod
    def _converse(self) -> Exchange:
        """A new conversation, not started yet."""

    def _start_exchange(self) -> Exchange:
        exchange = self._converse()
        with self._lock:
            closed = self._closed
            self._exchanges.add(exchange)
        exchange.start()
        if closed:
            exchange.end()
        return exchange

    def _admitted(self) -> str:
        """The instance that answers, its vocabulary being compared; "" where nobody wants it compared."""
        if self.admission.target is None:
            return ""
        return self._admit(_ADMIT_SECONDS, patient=False).instance_id

    def _speed(self) -> float:
        last = self.admission.last
        return last.seconds_per_token if last is not None else 0.0

    def _note_failure(self, error: SuffixError) -> None:
        with self._lock:
            self._failures += 1
            first = self._failures == 1
        if first:
            _log.warning(
                "a draft worker failed; going on without its drafts", address=self.address, error=repr(error)
            )


def require_speed(seconds_per_token: float, address: str) -> None:
    """ProtocolError unless a worker says of itself what a speed can be."""
    if not 0.0 <= seconds_per_token < math.inf:
        raise ProtocolError(
            f"the draft worker at {address} describes itself as nothing can be",
            expected="seconds per token, a finite number",
            got=seconds_per_token,
        )
