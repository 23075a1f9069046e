"""Incomplete outputs of sessions that expired, or were live when the service drained.

A resumed session contains the output of the previous session of its id, from this process or an earlier one.
Its own output replaces that one; a discard removes both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from suffixsvc.access.caller import SessionName
from suffixsvc.errors import UnknownSessionError
from suffixsvc.service.sessions.entries import ClosedSession
from suffixsvc.types import IncompleteOutput, OutputId

if TYPE_CHECKING:
    from suffixsvc.engine import Session, SuffixCache

log = structlog.get_logger(__name__)


def contained_in(cache: SuffixCache, session: Session, name: SessionName) -> list[IncompleteOutput]:
    """The incomplete outputs that the output of this session replaces."""
    stored = name.stored
    outputs = cache.incomplete_outputs(stored)
    return [each for each in outputs if session.continues(each.namespace, each.uuid, stored)]


def forget(cache: SuffixCache, outputs: Sequence[IncompleteOutput], replacement: OutputId | None) -> None:
    """Forget outputs whose replacement is acknowledged; errors are logged, as the close has succeeded."""
    for each in outputs:
        if each.output_id == replacement:
            continue  # resumed and stored again without new tokens
        try:
            cache.namespace(each.namespace).delete(output_ids=[each.output_id], superseded=True)
        except Exception as error:  # any exception: the output is stored
            log.warning("incomplete output not forgotten", output=each.output_id, error=str(error))


def discard(cache: SuffixCache, name: SessionName, closed: ClosedSession | None) -> bool:
    """Forget the incomplete outputs of the last session of this name.

    Args:
        closed: the result of that session. None if this process has no record of it, after a restart for
            example: the last incomplete output of the id is forgotten, if all are of one namespace.

    Returns:
        Whether there were any.

    Raises:
        UnknownSessionError: several namespaces have incomplete outputs of this id.
        StoreError: the outputs are still stored; the call can be repeated.
    """
    if closed is not None:
        namespace, output_ids = closed.identity[0], closed.incomplete_outputs
    else:
        outputs = cache.incomplete_outputs(name.stored)
        if not outputs:
            return False
        if len({each.namespace for each in outputs}) > 1:
            raise UnknownSessionError(
                f"session {name.id} is unknown, and its id has outputs in several namespaces",
                expected="a live session, or incomplete outputs of one namespace",
                remedy="Open it again with its namespace, prompt and output so far; then discard it.",
            )
        namespace, output_ids = outputs[-1].namespace, (outputs[-1].output_id,)
    if output_ids:
        cache.namespace(namespace).delete(output_ids=output_ids, superseded=True)
    return bool(output_ids)
