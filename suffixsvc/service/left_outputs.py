"""Incomplete outputs that sessions left when they expired or the service drained.

A resumed session contains what the session of its id left, in this process or in an earlier one: its own
output replaces that, and where its client discards it, that goes as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from suffixsvc.errors import SuffixError, UnknownOutputError
from suffixsvc.service.entries import Closed
from suffixsvc.types import IncompleteOutput, OutputId

if TYPE_CHECKING:
    from suffixsvc.engine import Session, SuffixCache

__all__ = ["LeftOutputs"]

log = structlog.get_logger(__name__)


class LeftOutputs:
    """Finds and forgets incomplete outputs by the id of their session. Thread-safe."""

    def __init__(self, cache: SuffixCache) -> None:
        self._cache = cache

    def contained_in(self, session: Session, session_id: str) -> list[IncompleteOutput]:
        """Those that the output of this session replaces."""
        left = self._cache.incomplete_outputs(session_id)
        return [each for each in left if session.continues(each.namespace, each.uuid, session_id)]

    def forget(self, left: Sequence[IncompleteOutput], kept: OutputId | None) -> None:
        """Their replacement, ``kept``, is acknowledged: an error is worth a line in the log."""
        for each in left:
            if each.output_id == kept:
                continue  # it was resumed and left again as it was
            try:
                self._cache.namespace(each.namespace).forget(each.output_id)
            except UnknownOutputError:
                continue  # another call has forgotten it
            except SuffixError as error:
                log.warning("incomplete output not forgotten", output=each.output_id, error=str(error))

    def discard(self, session_id: str, closed: Closed | None) -> bool:
        """Forget what the last session of this id left; whether there was anything.

        Args:
            closed: how it ended; None where that is not known here. An end that left no output, as it was
                lost or empty, says nothing of what the session left before it was resumed: the log is asked.

        Raises:
            StoreError: it is still there; try again.
        """
        if closed is not None and closed.output_id is not None:
            namespace, output_id = closed.namespace, closed.output_id
        else:
            left = self._cache.incomplete_outputs(session_id)
            if not left:
                return False
            namespace, output_id = left[-1].namespace, left[-1].output_id
        with contextlib.suppress(UnknownOutputError):  # by another call, or by its time to live
            self._cache.namespace(namespace).forget(output_id)
        return True
