"""What the registry keeps of a session, alive and after it closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from suffixsvc.core import Seat
from suffixsvc.errors import SessionClosedError, StepSequenceError, SuffixError, UnknownSessionError
from suffixsvc.types import FloatArray, OutputId
from suffixsvc.v1 import suffix_cache_pb2 as pb

if TYPE_CHECKING:
    from suffixsvc.engine import Session

__all__ = ["Closed", "Entry", "Identity", "not_live"]

_DEFAULT_COST = 0.02

#: namespace and hash of the prompt: sessions of one id that differ in it have nothing to do with each other
Identity: TypeAlias = tuple[str, str]
Answer = TypeVar("Answer", bytes, pb.AppendContextReply)


@dataclass(slots=True)
class Entry:
    """One live session. ``lock`` guards everything else; ``session`` is None before and after its life."""

    session_id: str
    identity: Identity
    seat: Seat = field(default_factory=Seat)
    lock: Seat = field(init=False)  #: the turn of the seat
    session: Session | None = None
    cost: float | FloatArray = _DEFAULT_COST
    #: to the seat's last ``seq``, if that was no step; a step's answer is in the seat
    context_answer: pb.AppendContextReply | None = None
    #: incomplete outputs of its namespace: those that the session before of this id and identity left, and
    #: those that this session's text contained when it was last to be closed
    before: tuple[OutputId, ...] = ()
    resumed: tuple[OutputId, ...] = ()

    def __post_init__(self) -> None:
        self.lock = self.seat

    @property
    def touched(self) -> float:
        """When it was last used, by ``time.monotonic``; read without the lock."""
        return self.seat.touched

    @touched.setter
    def touched(self, now: float) -> None:
        self.seat.touched = now

    def repeated_step(self, seq: int) -> bytes | None:
        """The answer already given to a step, serialised; None when it is new. StepSequenceError when it is
        older, or was another question."""
        return self._last(seq, self.seat.answer) if 0 < seq <= self.seat.seq else None

    def repeated_append(self, seq: int) -> pb.AppendContextReply | None:
        """The same for context."""
        return self._last(seq, self.context_answer) if 0 < seq <= self.seat.seq else None

    def _last(self, seq: int, answer: Answer | None) -> Answer:
        if seq == self.seat.seq and answer is not None:
            return answer
        raise StepSequenceError(
            f"session {self.session_id} has answered this sequence number already",
            expected=f"more than {self.seat.seq}",
            got=seq,
            remedy="Number the steps of a session upwards; only the last one can be asked again.",
        )

    def answered(self, seq: int, step: bytes | None, context: pb.AppendContextReply | None = None) -> None:
        if seq:
            self.seat.set_answer(seq, step)
            self.context_answer = context


@dataclass(frozen=True, slots=True)
class Closed:
    """How a session ended. ``left``: incomplete outputs of its namespace that a discard takes back; ``lost``:
    its output could not be stored; ``refused``: a limit had no room for it, or its namespace was deleted."""

    identity: Identity
    output_id: OutputId | None
    expired: bool
    left: tuple[OutputId, ...] = ()
    lost: bool = False
    refused: bool = False


def not_live(session_id: str, closed: Closed | None) -> SuffixError:
    """Why there is no live session of this id.

    Args:
        closed: how the last one ended; None: there was none, as far as known.
    """
    if closed is not None and not closed.expired:
        return SessionClosedError(
            f"session {session_id} is closed", expected="a live session", remedy="Open a new session."
        )
    return UnknownSessionError(
        f"session {session_id} is {_how_it_ended(closed)}",
        expected="a live session",
        remedy="Open it again with the prompt and the output so far.",
    )


def _how_it_ended(closed: Closed | None) -> str:
    if closed is None:
        return "not known here"
    if closed.lost:
        return "released: its output could not be stored, and is lost unless it is sent again"
    if closed.refused:
        why = "a limit left no room, or its namespace was deleted"
        return f"expired: it was idle and its output was not kept: {why}"
    if closed.output_id is None:
        return "expired: it was idle and had no output"
    return "expired: it was idle and its output is kept as incomplete"
