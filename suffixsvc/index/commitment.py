"""The way of what a session wrote into the log."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from concurrent.futures import Future

import structlog

from suffixsvc.errors import LimitExceededError
from suffixsvc.index.namespace import NamespaceIndex
from suffixsvc.types import NewOutput, OutputId

__all__ = ["Commit", "Commitment"]

log = structlog.get_logger(__name__)

#: hands an output to the store; the future holds its id once it is durable. LimitExceededError: no room
Commit = Callable[[NewOutput], Future[list[OutputId]]]


class Commitment:
    """Of one session. The session's lock is held.

    ::

                 begin ──> under way ── wait ──> durable ── settled
                   │          ↑  └ interrupted: the next close waits for the same
                 refused      └ failed: as before begin
    """

    def __init__(self, namespace: NamespaceIndex, commit: Commit) -> None:
        self._namespace = namespace
        self._commit = commit
        #: the output that the store did not refuse, and its id once it is durable
        self.made: tuple[NewOutput, Future[list[OutputId]]] | None = None
        self._settling: weakref.finalize[..., Commitment] | None = None

    def begin(self, output: NewOutput) -> tuple[NewOutput, Future[list[OutputId]]] | None:
        """Hand an output to the store; None where the limits refuse it.

        From here to :meth:`settled` the log may hold what the index does not hold as it will stay, so that it
        cannot be sealed yet. A session that is dropped in between holds sealing back no longer.
        """
        self._hold_sealing_back()
        try:
            self.made = output, self._commit(output)
        except LimitExceededError as error:
            self.settled()
            if self._namespace.count_refused():
                log.warning("outputs are not kept", namespace=self._namespace.path, why=str(error))
        except BaseException:
            self.settled()
            raise
        return self.made

    def _hold_sealing_back(self) -> None:
        self.settled()
        number = self._namespace.commits.begin()
        self._settling = weakref.finalize(self, self._namespace.commits.end, number)
        self._settling.atexit = False

    def wait(self, stored: Future[list[OutputId]]) -> OutputId:
        """The id, once the output is durable. An interrupt leaves the commit under way.

        Raises:
            StoreError: nothing was kept.
        """
        try:
            return stored.result()[0]
        except BaseException:
            if stored.done() and stored.exception() is not None:
                self.made = None
                self.settled()
            raise

    def settled(self) -> None:
        """The index holds the output as the log does, or neither does. Idempotent."""
        if self._settling is not None:
            self._settling()
