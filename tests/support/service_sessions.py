"""Requests for tests of the service's sessions, through its handlers."""

from __future__ import annotations

import numpy as np

from suffixsvc import Limits, wire
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.sessions.entries import SessionEntry
from suffixsvc.v1 import suffix_cache_pb2 as pb

__all__ = ["LIMITS", "deletion_of", "live_entry", "live_ids", "open_session", "step", "tokens"]

LIMITS = Limits(max_sessions=3, max_session_tokens=100, session_idle_seconds=60)


def tokens(*ids: int) -> bytes:
    return wire.pack_tokens(np.array(ids, np.int32))


def open_session(handlers: Handlers, session_id: str = "", namespace: str = "a") -> str:
    request = pb.OpenSessionRequest(
        namespace=namespace, prompt_token_ids=tokens(1, 2, 3), session_id=session_id
    )
    return handlers.open_session(request, OPERATOR_CALLER).session_id


def step(session_id: str, *ids: int, seq: int = 0, at: int | None = None, width: int = 4) -> pb.StepRequest:
    return pb.StepRequest(
        session_id=session_id, seq=seq, new_token_ids=tokens(*ids), at=at, max_draft_tokens=width
    )


def deletion_of(namespace: str, *output_ids: int) -> pb.DeleteRequest:
    """A request to delete outputs of a namespace."""
    return pb.DeleteRequest(selection=pb.Selection(namespace=namespace, output_ids=output_ids))


def live_entry(handlers: Handlers, session_id: str) -> SessionEntry:
    """The registry's entry of a live session."""
    entry = handlers.sessions.table.get(OPERATOR_CALLER.session(session_id))
    assert entry is not None
    return entry


def live_ids(handlers: Handlers) -> list[str]:
    """Ids of the live sessions, in the order in which they were opened."""
    return [entry.name.id for entry in handlers.sessions.table.entries()]
