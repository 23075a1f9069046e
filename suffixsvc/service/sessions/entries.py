"""Records of the session registry: a live session, and the result of a session that has ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from suffixsvc.access.caller import Caller, SessionName
from suffixsvc.access.principals import Right
from suffixsvc.core import SessionSlot
from suffixsvc.errors import SessionClosedError, StepSequenceError, SuffixError, UnknownSessionError
from suffixsvc.types import OutputId
from suffixsvc.v1 import suffix_cache_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine import Session

#: namespace and hash of the prompt: sessions that share an id but differ in either are unrelated
Identity: TypeAlias = tuple[str, str]
#: rights on namespaces
Needs: TypeAlias = tuple[tuple[Right, str], ...]


@dataclass(slots=True, eq=False)
class SessionEntry:
    """One live session. ``lock`` guards the other fields; ``session`` is None unless the session is open."""

    name: SessionName
    caller: Caller  #: that opened it
    identity: Identity
    needs: Needs  #: rights without which the session ends
    slot: SessionSlot
    lock: SessionSlot  #: the slot's mutex
    session: Session | None = None
    #: the follower, of its principal, that drafts for the session and has its text; "": this service drafts
    follower: str = ""
    #: answer to the slot's last ``seq`` if that was an append; the slot holds the answer to a step
    context_answer: pb.AppendContextReply | None = None
    #: incomplete outputs left by the previous session of this id and identity
    previous_outputs: tuple[OutputId, ...] = ()
    #: incomplete outputs contained in this session's text when it was last closed
    resumed_outputs: tuple[OutputId, ...] = ()

    @property
    def is_revoked(self) -> bool:
        """Whether its caller has lost a right that the session needs."""
        return not all(self.caller.may(right, path) for right, path in self.needs)

    def require_rights(self) -> None:
        """Raise PermissionDeniedError if the session is revoked."""
        for right, path in self.needs:
            self.caller.require(right, path)

    def repeated_append(self, seq: int) -> pb.AppendContextReply | None:
        """The stored answer to a retried append of context; None if ``seq`` is new.

        Raises:
            StepSequenceError: ``seq`` is older than the last one, or was used by a step.
        """
        if not 0 < seq <= self.slot.seq:
            return None
        if seq == self.slot.seq and self.slot.answer is None and self.context_answer is not None:
            return self.context_answer
        raise stale_sequence_error(self.name.id, seq, self.slot.seq)

    def record_append(self, seq: int, answer: pb.AppendContextReply) -> None:
        """Store the answer to ``seq`` for a retry; 0 is not numbered and not stored."""
        if seq:
            self.slot.record_append(seq)
            self.context_answer = answer


@dataclass(frozen=True, slots=True)
class ClosedSession:
    """Result of a session that has ended.

    Attributes:
        output_id: the stored output, if any.
        expired: the service ended the session, not its client.
        incomplete_outputs: outputs of its namespace that a discard removes.
        lost: its output could not be stored.
        refused: its output was not stored: a limit was reached, or its namespace was deleted.
    """

    identity: Identity
    output_id: OutputId | None
    expired: bool
    incomplete_outputs: tuple[OutputId, ...] = ()
    lost: bool = False
    refused: bool = False


def stale_sequence_error(session_id: str, seq: int, last_seq: int) -> StepSequenceError:
    """The error for a ``seq`` that is not greater than the last one answered, and not a retry of it."""
    return StepSequenceError(
        f"seq of session {session_id} must be greater than the last one answered",
        expected=f"more than {last_seq}",
        got=seq,
        remedy="Number the steps of a session upwards; only the last one can be retried.",
    )


def not_live_error(session_id: str, closed: ClosedSession | None) -> SuffixError:
    """The error for a request that names no live session.

    Args:
        closed: result of the last session of this id; None if the service has no record of one.
    """
    if closed is not None and not closed.expired:
        return SessionClosedError(
            f"session {session_id} is closed", expected="a live session", remedy="Open a new session."
        )
    return UnknownSessionError(
        f"session {session_id} is {_state(closed)}",
        expected="a live session",
        remedy="Open it again with the prompt and the output so far.",
    )


def _state(closed: ClosedSession | None) -> str:
    if closed is None:
        return "unknown to this service"
    if closed.lost:
        return "released: its output could not be stored, and is lost unless it is sent again"
    if closed.refused:
        why = "a limit was reached, or its namespace was deleted"
        return f"expired: it was idle and its output was not stored: {why}"
    if closed.output_id is None:
        return "expired: it was idle and had no output"
    return "expired: it was idle and its output is stored as incomplete"
