"""One session as its client sees it: what it holds, what the service has acknowledged, what to send next.

Free of I/O and clocks. Requests come out, replies and errors go in; the sync and the asyncio client
drive the same object.

    UNOPENED ──begin_opening──> OPENING ──opened──> LIVE ──closed──> CLOSED
        ^ └──────────opening failed──┘                │
        └──────────the service does not know it───────┘      REFUSED: the service will not have it
"""

from __future__ import annotations

import enum
import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from suffixsvc import wire
from suffixsvc.config import validate_labels, validate_namespace, validate_reads
from suffixsvc.errors import (
    AppendConflict,
    AppendError,
    AppendGap,
    InvalidInputError,
    LimitExceededError,
    ProtocolError,
    SessionClosedError,
    StepSequenceError,
    SuffixError,
    TokenizerMismatchError,
    UnknownNamespaceError,
    UnknownSessionError,
)
from suffixsvc.types import Draft, Labels, OutputId, TokenIds, Verified, VerifyCost
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.values import MAX_TOKEN_ID, as_token_array
from suffixsvc_client.costs import CostEncoder, EncodedCost
from suffixsvc_client.journal import Journal, Piece

__all__ = ["REFUSALS", "Closing", "OpeningPlan", "Phase", "SessionState", "StepArgs", "StepCall"]

#: errors that say this session will never be served as it is; everything else may pass. A limit is one
#: of them but for opening again, where it may be the limit on live sessions: see ``opening_failed``
REFUSALS = (InvalidInputError, TokenizerMismatchError, UnknownNamespaceError, LimitExceededError)
#: feedback for a step whose draft never reached its caller: plain decoding took place
NOTHING_VERIFIED = pb.Verified(width=1, accepted=0)


class Phase(enum.Enum):
    UNOPENED = enum.auto()
    OPENING = enum.auto()
    LIVE = enum.auto()
    REFUSED = enum.auto()
    CLOSED = enum.auto()


class StepArgs(NamedTuple):
    """The checked arguments of one step, its tokens already in the journal."""

    max_draft_tokens: int
    cost: EncodedCost
    tree: pb.TreeMode
    verified: pb.Verified | None


class StepCall(NamedTuple):
    """One step on its way: messages that go before it, what it is addressed with, and what an answer
    acknowledges."""

    before: Sequence[pb.StreamRequest]
    session_id: str
    seq: int
    #: everything before its first token was acknowledged: a gap cannot come from a lost message
    from_acknowledged: bool
    end: int
    cost: bytes
    #: drafted tokens that were asked for at most
    most: int


@dataclass(frozen=True, slots=True)
class Closing:
    """How a session is to end; see the embedded engine's ``Session.close``."""

    commit: bool = True
    incomplete: bool = False
    wait: bool = True


@dataclass(frozen=True, slots=True)
class OpeningPlan:
    """One attempt to open: the request, and the position it brings the service to."""

    request: pb.OpenSessionRequest
    end: int


class SessionState:
    """Thread-safe: a background thread opens while the caller's thread steps."""

    def __init__(
        self,
        namespace: str,
        tokenizer: str | None,
        prompt: TokenIds,
        output: TokenIds | None = None,
        labels: Labels | None = None,
        reads: Sequence[str] | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._namespace = validate_namespace(namespace)
        self._tokenizer = tokenizer or ""
        self._labels = validate_labels(labels)
        self._reads = [validate_namespace(path) for path in validate_reads(reads)]
        self._journal = Journal(as_token_array(prompt, "prompt_token_ids"))
        if output is not None:
            self._journal.append(as_token_array(output, "output_token_ids"), output=True)
        self._session_id = ""
        self._seq = 0
        self._acked = 0  # the service has acknowledged everything before this position
        self._sent = 0  # and been sent everything before this one; >= _acked
        #: how much of the text the service had when a close was sent that keeps it
        self._closing_at: int | None = None
        self._acked_cost = b""
        self._costs = CostEncoder()
        self._last_draft_lost = False
        self.phase = Phase.UNOPENED
        #: the service has had it
        self.was_live = False
        self.refusal: SuffixError | None = None
        self.output_id: OutputId | None = None
        #: a failed attempt to open is not repeated before this time
        self.retry_at = 0.0

    def __len__(self) -> int:
        return len(self._journal)

    @property
    def namespace(self) -> str:
        return self._namespace

    @property
    def session_id(self) -> str:
        """Chosen when the session is first opened; empty before."""
        return self._session_id

    @property
    def has_output(self) -> bool:
        return self._journal.has_output

    # ------------------------------------------------------------------------------------------ stepping

    def accept(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int,
        verify_cost: VerifyCost,
        tree: bool | str,
        at: int | None,
        verified: Verified | tuple[int, int, int] | None,
    ) -> StepArgs:
        """Check a step and note its tokens: from here on they cannot get lost. Raises the caller's errors."""
        self._require_open()
        tokens = as_token_array(new_token_ids, "new_token_ids")
        width = _draft_width(max_draft_tokens)
        mode = pb.TREE_MODE_CHAIN if tree is False else wire.tree_to_proto(tree)
        seen = None if verified is None else wire.verified_to_proto(verified)
        with self._lock:
            cost = self._costs.encode(verify_cost)
            self._journal.append(self._journal.new_part(tokens, at), output=True)
        return StepArgs(width, cost, mode, seen)

    def step_call(self, args: StepArgs, batch: pb.StepBatch) -> StepCall:
        """Add a step of a live session to a batch: everything not yet sent, and the question."""
        with self._lock:
            before, at, data = self._unsent_step()
            seq = self._next_seq()
            end = len(self._journal)
            batch.items.add(
                session_id=self._session_id,
                seq=seq,
                new_token_ids=data,
                at=at,
                max_draft_tokens=args.max_draft_tokens,
                verify_cost=None if args.cost.data == self._acked_cost else args.cost.message,
                tree=args.tree,
                verified=args.verified or (NOTHING_VERIFIED if self._last_draft_lost else None),
            )
            from_acknowledged = self._sent == self._acked
            self._sent = end
            return StepCall(
                before, self._session_id, seq, from_acknowledged, end, args.cost.data, args.max_draft_tokens
            )

    def _unsent_step(self) -> tuple[Sequence[pb.StreamRequest], int, bytes]:
        """What was not sent: messages for what can be no part of a step, then its position and tokens."""
        data = self._journal.last_output(self._sent)
        if data is not None:
            return (), self._sent, data
        pieces = list(self._journal.pieces(self._sent, len(self._journal)))
        last = pieces.pop() if pieces and pieces[-1].output else None
        before = [self._stream_request(piece) for piece in pieces]
        if last is None:
            return before, len(self._journal), b""
        return before, last.at, wire.pack_tokens(last.tokens)

    def answered(self, call: StepCall, item: pb.StepItem) -> Draft:
        """The draft of a step's answer. ProtocolError or the service's own error; see :meth:`failed`."""
        if item.HasField("error"):
            raise wire.error_from_detail(item.error.error)
        reply = item.reply
        if reply.seq != call.seq or reply.length != call.end or reply.session_id != call.session_id:
            raise ProtocolError(
                "an answer does not belong to its step",
                expected=f"session {call.session_id}, step {call.seq}, length {call.end}",
                got=f"session {reply.session_id}, step {reply.seq}, length {reply.length}",
            )
        draft = wire.draft_from_proto(reply.draft)
        if len(draft) > call.most:
            raise ProtocolError(
                "a draft is longer than was asked for", expected=f"at most {call.most} tokens", got=len(draft)
            )
        with self._lock:
            if call.session_id == self._session_id:
                self._acked = max(self._acked, call.end)
                self._acked_cost = call.cost
            self._last_draft_lost = False
        return draft

    def failed(self, call: StepCall, error: SuffixError) -> None:
        """A step did not succeed: decide where the next one goes on from."""
        with self._lock:
            self._last_draft_lost = True
            if self.phase is not Phase.LIVE or call.session_id != self._session_id:
                return
            # a gap is what a lost message leaves; otherwise the service holds another session than we do
            confused = isinstance(error, (AppendConflict, StepSequenceError)) or (
                isinstance(error, AppendGap) and call.from_acknowledged
            )
            if isinstance(error, (UnknownSessionError, SessionClosedError)) or confused:
                self._forget_service_side(error)
            elif isinstance(error, REFUSALS):
                self._refuse(error)
            else:
                self._sent = self._acked

    def skipped(self) -> None:
        """A step was not even sent: its caller decodes plainly."""
        self._last_draft_lost = True

    # ------------------------------------------------------------------------------------------- context

    def accept_context(self, token_ids: TokenIds) -> None:
        self._require_open()
        tokens = as_token_array(token_ids)
        with self._lock:
            self._journal.append(tokens, output=False)

    def post_failed(self) -> None:
        """Messages that were posted never left: the next step sends them again."""
        with self._lock:
            self._sent = self._acked

    def unsent(self) -> list[pb.StreamRequest]:
        """Messages for everything not yet sent, to be posted without waiting for their answers."""
        with self._lock:
            requests = [self._stream_request(p) for p in self._journal.pieces(self._sent, len(self._journal))]
            self._sent = len(self._journal)
            return requests

    # ------------------------------------------------------------------------------------------- opening

    def begin_opening(self) -> OpeningPlan | None:
        """Start an attempt to open; None when that is not what the session needs (any more).

        The id stays until an attempt succeeds, so that a retry is idempotent.
        """
        with self._lock:
            if self.phase is not Phase.UNOPENED:
                return None
            self.phase = Phase.OPENING
            self._session_id = self._session_id or str(uuid.uuid4())
            prompt = len(self._journal.prompt)
            first = next(self._journal.pieces(prompt, len(self._journal)), None)
            output = first if first is not None and first.output else None
            request = pb.OpenSessionRequest(
                namespace=self._namespace,
                tokenizer=self._tokenizer,
                prompt_token_ids=wire.pack_tokens(self._journal.prompt),
                output_token_ids=wire.pack_tokens(output.tokens) if output else b"",
                labels=self._labels,
                reads=self._reads,
                session_id=self._session_id,
            )
            return OpeningPlan(request, len(self._journal))

    def to_replay(
        self, plan: OpeningPlan, reply: pb.OpenSessionReply
    ) -> list[pb.StepRequest | pb.AppendContextRequest]:
        """What the service misses after it opened the session: later runs, in order."""
        if reply.session_id != plan.request.session_id or not 0 <= reply.length <= plan.end:
            raise ProtocolError(
                "an answer does not belong to its request",
                expected=f"session {plan.request.session_id}, length <= {plan.end}",
                got=f"session {reply.session_id}, length {reply.length}",
            )
        with self._lock:
            return [self._unary_request(piece) for piece in self._journal.pieces(reply.length, plan.end)]

    def opened(self, plan: OpeningPlan) -> None:
        with self._lock:
            self.phase, self.refusal, self.was_live = Phase.LIVE, None, True
            self._acked = self._sent = plan.end
            self._acked_cost = b""

    def opening_failed(self, error: SuffixError, retry_at: float, *, passing: bool = False) -> None:
        """An attempt did not succeed; the next one is due at ``retry_at``, unless the session is refused.

        Args:
            passing: what stands in the way may be over later, whatever the error is. A session that was
                refused before stays so.
        """
        with self._lock:
            self.phase = Phase.UNOPENED
            self.retry_at = retry_at
            if passing and self.refusal is None:
                return
            if isinstance(error, (SessionClosedError, AppendError, StepSequenceError)):
                self._session_id = ""
            elif isinstance(error, REFUSALS):
                self._refuse(error)

    def reconsider(self) -> None:
        """Let a refused session be opened once more: its output is worth another question."""
        with self._lock:
            if self.phase is Phase.REFUSED:
                self.phase = Phase.UNOPENED

    # ------------------------------------------------------------------------------------------- closing

    def to_flush(self) -> list[pb.StepRequest | pb.AppendContextRequest]:
        """What the service has not acknowledged, as calls that are waited for."""
        with self._lock:
            return [self._unary_request(p) for p in self._journal.pieces(self._acked, len(self._journal))]

    def flushed(self, reply: pb.StepReply | pb.AppendContextReply) -> None:
        """The service has answered one of these calls. ProtocolError: with another session or length."""
        with self._lock:
            if reply.session_id != self._session_id or not 0 <= reply.length <= len(self._journal):
                raise ProtocolError(
                    "an answer does not belong to its request",
                    expected=f"session {self._session_id}, length <= {len(self._journal)}",
                    got=f"session {reply.session_id}, length {reply.length}",
                )
            self._acked = max(self._acked, reply.length)
            self._sent = max(self._sent, self._acked)

    def close_request(self, how: Closing) -> pb.CloseSessionRequest:
        if how.commit:
            self._closing_at = self._acked
        return pb.CloseSessionRequest(
            session_id=self._session_id,
            discard=not how.commit,
            incomplete=how.incomplete,
            no_wait=not how.wait,
        )

    @property
    def known_to_service(self) -> bool:
        """Whether the service may hold a session of ours."""
        return bool(self._session_id)

    def lost(self, error: SuffixError) -> None:
        """The service does not hold this session, ``error`` says why: it has to be opened again."""
        with self._lock:
            self._forget_service_side(error)

    def closed(self, output_id: OutputId | None) -> None:
        with self._lock:
            self.phase = Phase.CLOSED
            self.output_id = output_id

    # ------------------------------------------------------------------------------------------- helpers

    def _require_open(self) -> None:
        if self.phase is Phase.CLOSED:
            raise SessionClosedError(
                "the session is closed", expected="an open session", remedy="Open a new session."
            )

    def _refuse(self, error: SuffixError) -> None:
        self.phase, self.refusal = Phase.REFUSED, error

    def _forget_service_side(self, error: SuffixError) -> None:
        """An id the service does not know is kept: it may have expired, and left an incomplete output
        that the session replaces when it is opened again. Any other id is of no use any more, except that of
        a session closed with all of its text, whose close was not answered."""
        if isinstance(error, SessionClosedError) and self._closing_at == len(self._journal):
            return  # as it was asked to be: the close is repeated, and answered with the same output
        self.phase = Phase.UNOPENED
        if not isinstance(error, UnknownSessionError):
            self._session_id = ""
        self._acked = self._sent = 0
        self._closing_at = None

    def _next_seq(self) -> int:
        self._seq += 1
        return self._seq

    def _unary_request(self, piece: Piece) -> pb.StepRequest | pb.AppendContextRequest:
        data, seq = wire.pack_tokens(piece.tokens), self._next_seq()
        if piece.output:
            return pb.StepRequest(session_id=self._session_id, seq=seq, new_token_ids=data, at=piece.at)
        return pb.AppendContextRequest(session_id=self._session_id, seq=seq, token_ids=data, at=piece.at)

    def _stream_request(self, piece: Piece) -> pb.StreamRequest:
        request = self._unary_request(piece)
        if isinstance(request, pb.StepRequest):
            return pb.StreamRequest(steps=pb.StepBatch(items=[request]))
        return pb.StreamRequest(append_context=request)


def _draft_width(max_draft_tokens: int) -> int:
    if type(max_draft_tokens) is int and 0 <= max_draft_tokens <= MAX_TOKEN_ID:
        return max_draft_tokens
    integral = isinstance(max_draft_tokens, (int, np.integer)) and not isinstance(max_draft_tokens, bool)
    if not integral or max_draft_tokens < 0:
        raise InvalidInputError(
            "max_draft_tokens makes no sense", expected="an int >= 0", got=repr(max_draft_tokens)[:80]
        )
    return min(int(max_draft_tokens), MAX_TOKEN_ID)
