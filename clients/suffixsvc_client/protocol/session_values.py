"""Values that the session state, the procedures and the clients pass to each other."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from suffixsvc.errors import (
    InvalidInputError,
    LimitExceededError,
    TokenizerMismatchError,
    UnknownNamespaceError,
)
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.values import MAX_TOKEN_ID, as_draft_length
from suffixsvc_client.protocol.costs import EncodedCost

__all__ = ["REFUSALS", "CloseOptions", "OpeningPlan", "Phase", "StepArgs", "StepCall", "draft_width"]

#: errors after which this session is not served; all others may be transient. While a session is opened again
#: a LimitExceededError may be transient too: it may be the limit on live sessions (``on_open_failure``)
REFUSALS = (InvalidInputError, TokenizerMismatchError, UnknownNamespaceError, LimitExceededError)


class Phase(enum.Enum):
    """State of a session at its client; see session_state.py for the transitions."""

    UNOPENED = enum.auto()
    OPENING = enum.auto()
    LIVE = enum.auto()
    REFUSED = enum.auto()
    CLOSED = enum.auto()


class StepArgs(NamedTuple):
    """The checked arguments of one step, whose tokens are in the token log already."""

    max_draft_tokens: int
    cost: EncodedCost
    tree: pb.TreeMode
    verified: pb.Verified | None


class StepCall(NamedTuple):
    """One step in flight: its address, and what its answer acknowledges."""

    #: messages that are sent before the step: tokens that cannot be part of it
    preceding: Sequence[pb.StreamRequest]
    session_id: str
    seq: int
    #: all tokens before its first one are acknowledged, so that a gap cannot be due to a lost message
    from_acknowledged: bool
    end: int
    cost: bytes
    max_draft_tokens: int


@dataclass(frozen=True, slots=True)
class CloseOptions:
    """How to end a session; see the embedded engine's ``Session.close``."""

    commit: bool = True
    incomplete: bool = False
    wait: bool = True


@dataclass(frozen=True, slots=True)
class OpeningPlan:
    """One attempt to open a session: the request, and the length of the session after it."""

    request: pb.OpenSessionRequest
    end: int


def draft_width(max_draft_tokens: int) -> int:
    """A checked ``max_draft_tokens`` that fits its message field. Raises InvalidInputError."""
    return min(as_draft_length(max_draft_tokens), MAX_TOKEN_ID)
