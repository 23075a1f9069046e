"""Values that the session state, the procedures and the clients pass to each other."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

from suffixsvc.errors import (
    AccessError,
    InvalidInputError,
    LimitExceededError,
    ProtocolError,
    SessionClosedError,
    SuffixError,
    TokenizerMismatchError,
    UnknownNamespaceError,
    UnknownSessionError,
)
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2

#: errors after which this session is not served; all others may be transient. While a session is opened again
#: a LimitExceededError may be transient too: it may be the limit on live sessions (``on_open_failure``)
REFUSALS = (AccessError, InvalidInputError, TokenizerMismatchError, UnknownNamespaceError, LimitExceededError)


def is_refusal(error: SuffixError) -> bool:
    """Whether the service refuses a session for good, rather than a step of it for some time."""
    return isinstance(error, REFUSALS) and retry_after(error) is None


def retry_after(error: SuffixError) -> float | None:
    """Seconds after which the service admits what a limit refused, such as a rate; None for other errors."""
    return error.retry_after_s if isinstance(error, LimitExceededError) else None


#: errors of a session that the service does not hold
LOST = (UnknownSessionError, SessionClosedError)


class Phase(enum.Enum):
    """State of a session at its client; see session_state.py for the transitions."""

    UNOPENED = enum.auto()
    OPENING = enum.auto()
    LIVE = enum.auto()
    REFUSED = enum.auto()
    CLOSED = enum.auto()


class StepArguments(NamedTuple):
    """The checked arguments of a step, beside its tokens."""

    max_draft_tokens: int
    verify_cost: types_pb2.VerifyCost
    tree: pb.TreeMode
    verified: pb.Verified | None


class StepCall(NamedTuple):
    """One step in flight, and what its answer acknowledges."""

    arguments: StepArguments
    session_id: str
    seq: int
    #: messages that are sent before the step: tokens that cannot be part of it
    preceding: Sequence[pb.StreamRequest]
    #: all tokens before its first one are acknowledged, so that a gap cannot be due to a lost message
    from_acknowledged: bool
    end: int


def mismatch(expected: str, got: object) -> ProtocolError:
    """The error for a reply that does not belong to its request."""
    return ProtocolError("a reply does not match its request", expected=expected, got=got)
