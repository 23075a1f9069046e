"""Incomplete outputs that sessions left when they expired or the service drained.

A resumed session contains what the session of its id left, in this process or in an earlier one: its own
output replaces that, and where its client discards it, that goes as well.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from suffixsvc.errors import SuffixError, UnknownOutputError, UnknownSessionError
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
            closed: how it ended. None where that is not known here, after a restart, say: the last incomplete
                output of this id is forgotten, if all of them are of one namespace.

        Raises:
            UnknownSessionError: several namespaces have incomplete outputs of this id.
            StoreError: it is still there; try again.
        """
        if closed is not None:
            namespace, output_ids = closed.identity[0], closed.left
        else:
            left = self._cache.incomplete_outputs(session_id)
            if not left:
                return False
            if len({each.namespace for each in left}) > 1:
                raise UnknownSessionError(
                    f"session {session_id} is not known here, and several namespaces have outputs of its id",
                    expected="a live session, or incomplete outputs of one namespace",
                    remedy="Open it again with its namespace, prompt and output so far; then discard it.",
                )
            namespace, output_ids = left[-1].namespace, (left[-1].output_id,)
        for output_id in output_ids:
            with contextlib.suppress(UnknownOutputError):  # by another call, or by its time to live
                self._cache.namespace(namespace).forget(output_id)
        return bool(output_ids)
