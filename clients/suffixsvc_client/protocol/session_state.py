"""Client-side state of one session: its tokens, what the service has acknowledged, what to send next.

Free of I/O and clocks: it creates requests and consumes replies and errors. Both clients use it.

    UNOPENED ──begin_opening──> OPENING ──on_open──> LIVE ──on_close──> CLOSED
        ^ └─────on_open_failure──────┘                │
        └────────────unknown to the service───────────┘      REFUSED: the service refuses the session
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence

from suffixsvc import wire
from suffixsvc.config import validate_labels, validate_namespace, validate_reads
from suffixsvc.errors import (
    AppendConflict,
    AppendError,
    AppendGap,
    ProtocolError,
    SessionClosedError,
    StepSequenceError,
    SuffixError,
    UnknownSessionError,
)
from suffixsvc.types import Draft, Labels, OutputId, TokenIds, Verified, VerifyCost
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.values import as_token_array
from suffixsvc_client.protocol.costs import CostEncoder
from suffixsvc_client.protocol.session_values import (
    REFUSALS,
    CloseOptions,
    OpeningPlan,
    Phase,
    StepArgs,
    StepCall,
    draft_width,
)
from suffixsvc_client.protocol.token_log import Piece, TokenLog

__all__ = ["SessionState"]

#: feedback for a step whose draft never reached its caller, who decoded plainly
NOTHING_VERIFIED = pb.Verified(width=1, accepted=0)


class SessionState:
    """State of one session. Thread-safe: a background thread may open it while the caller steps."""

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
        self._tokens = TokenLog(as_token_array(prompt, "prompt_token_ids"))
        if output is not None:
            self._tokens.append(as_token_array(output, "output_token_ids"), output=True)
        self._session_id = ""
        self._seq = 0
        self._acked = 0  # everything before this position is acknowledged
        self._sent = 0  # everything before this position is sent; >= _acked
        #: acknowledged length when a committing close was last sent
        self._closing_at: int | None = None
        self._acked_cost = b""
        self._costs = CostEncoder()
        self._last_draft_lost = False
        self.phase = Phase.UNOPENED
        #: whether the service has ever opened it
        self.was_live = False
        self.refusal: SuffixError | None = None
        self.output_id: OutputId | None = None
        #: a failed attempt to open is not repeated before this time
        self.retry_at = 0.0

    def __len__(self) -> int:
        return len(self._tokens)

    @property
    def namespace(self) -> str:
        """Path of the session's namespace."""
        return self._namespace

    @property
    def session_id(self) -> str:
        """The id, chosen when the session is first opened; empty before."""
        return self._session_id

    @property
    def has_output(self) -> bool:
        """Whether the model has written any tokens."""
        return self._tokens.has_output

    # ------------------------------------------------------------------------------------------ stepping

    def record_step(
        self,
        new_token_ids: TokenIds,
        max_draft_tokens: int,
        verify_cost: VerifyCost,
        tree: bool | str,
        at: int | None,
        verified: Verified | tuple[int, int, int] | None,
    ) -> StepArgs:
        """Check a step and record its tokens, which cannot be lost from then on.

        Raises:
            InvalidInputError, AppendError, SessionClosedError: an argument is wrong; nothing was recorded.
        """
        self._require_open()
        tokens = as_token_array(new_token_ids, "new_token_ids")
        width = draft_width(max_draft_tokens)
        mode = pb.TREE_MODE_CHAIN if tree is False else wire.tree_to_proto(tree)
        feedback = None if verified is None else wire.verified_to_proto(verified)
        with self._lock:
            cost = self._costs.encode(verify_cost)
            self._tokens.append(self._tokens.new_part(tokens, at), output=True)
        return StepArgs(width, cost, mode, feedback)

    def step_call(self, args: StepArgs, batch: pb.StepBatch) -> StepCall:
        """Add a step of a live session to a batch, with all tokens that are not sent yet."""
        with self._lock:
            preceding, at, data = self._unsent_step()
            seq = self._next_seq()
            end = len(self._tokens)
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
            width = args.max_draft_tokens
            return StepCall(preceding, self._session_id, seq, from_acknowledged, end, args.cost.data, width)

    def _unsent_step(self) -> tuple[Sequence[pb.StreamRequest], int, bytes]:
        """Unsent tokens: messages for those that cannot be part of a step, then its position and tokens."""
        data = self._tokens.last_output(self._sent)
        if data is not None:
            return (), self._sent, data
        pieces = list(self._tokens.pieces(self._sent, len(self._tokens)))
        last = pieces.pop() if pieces and pieces[-1].output else None
        preceding = [self._stream_request(piece) for piece in pieces]
        if last is None:
            return preceding, len(self._tokens), b""
        return preceding, last.at, wire.pack_tokens(last.tokens)

    def on_answer(self, call: StepCall, item: pb.StepItem) -> Draft:
        """Return the draft of a step's answer. Raise ProtocolError or the service's error."""
        if item.HasField("error"):
            raise wire.error_from_detail(item.error.error)
        reply = item.reply
        if reply.seq != call.seq or reply.length != call.end or reply.session_id != call.session_id:
            raise ProtocolError(
                "a reply does not match its step",
                expected=f"session {call.session_id}, step {call.seq}, length {call.end}",
                got=f"session {reply.session_id}, step {reply.seq}, length {reply.length}",
            )
        draft = wire.draft_from_proto(reply.draft)
        if len(draft) > call.max_draft_tokens:
            raise ProtocolError(
                "a draft is longer than requested",
                expected=f"at most {call.max_draft_tokens} tokens",
                got=len(draft),
            )
        with self._lock:
            if call.session_id == self._session_id:
                self._acked = max(self._acked, call.end)
                self._acked_cost = call.cost
            self._last_draft_lost = False
        return draft

    def on_failure(self, call: StepCall, error: SuffixError) -> None:
        """Process a step's error: choose the position from which the next step sends."""
        with self._lock:
            self._last_draft_lost = True
            if self.phase is not Phase.LIVE or call.session_id != self._session_id:
                return
            # A lost message leaves a gap. Any other gap or conflict means that the service's text differs.
            diverged = isinstance(error, (AppendConflict, StepSequenceError)) or (
                isinstance(error, AppendGap) and call.from_acknowledged
            )
            if isinstance(error, (UnknownSessionError, SessionClosedError)) or diverged:
                self._reset_service_state(error)
            elif isinstance(error, REFUSALS):
                self._refuse(error)
            else:
                self._sent = self._acked

    def on_skip(self) -> None:
        """Record that a step was not sent and its caller decodes plainly."""
        self._last_draft_lost = True

    # ------------------------------------------------------------------------------------------- context

    def record_context(self, token_ids: TokenIds) -> None:
        """Check and record tokens that the model did not write.

        Raises:
            InvalidTokensError, SessionClosedError: nothing was recorded.
        """
        self._require_open()
        tokens = as_token_array(token_ids)
        with self._lock:
            self._tokens.append(tokens, output=False)

    def on_post_failure(self) -> None:
        """Record that posted messages were not sent: the next step sends them again."""
        with self._lock:
            self._sent = self._acked

    def unsent_requests(self) -> list[pb.StreamRequest]:
        """Messages for all unsent tokens, to be posted without waiting for replies."""
        with self._lock:
            requests = [self._stream_request(p) for p in self._tokens.pieces(self._sent, len(self._tokens))]
            self._sent = len(self._tokens)
            return requests

    # ------------------------------------------------------------------------------------------- opening

    def begin_opening(self) -> OpeningPlan | None:
        """Start an attempt to open; None unless the session is UNOPENED.

        The id stays the same until an attempt succeeds, so that retries are idempotent.
        """
        with self._lock:
            if self.phase is not Phase.UNOPENED:
                return None
            self.phase = Phase.OPENING
            self._session_id = self._session_id or str(uuid.uuid4())
            prompt = len(self._tokens.prompt)
            first = next(self._tokens.pieces(prompt, len(self._tokens)), None)
            output = first if first is not None and first.output else None
            request = pb.OpenSessionRequest(
                namespace=self._namespace,
                tokenizer=self._tokenizer,
                prompt_token_ids=wire.pack_tokens(self._tokens.prompt),
                output_token_ids=wire.pack_tokens(output.tokens) if output else b"",
                labels=self._labels,
                reads=self._reads,
                session_id=self._session_id,
            )
            return OpeningPlan(request, len(self._tokens))

    def replay_requests(
        self, plan: OpeningPlan, reply: pb.OpenSessionReply
    ) -> list[pb.StepRequest | pb.AppendContextRequest]:
        """Requests for the tokens that the service's session lacks, in order. Raises ProtocolError."""
        if reply.session_id != plan.request.session_id or not 0 <= reply.length <= plan.end:
            raise ProtocolError(
                "an answer does not belong to its request",
                expected=f"session {plan.request.session_id}, length <= {plan.end}",
                got=f"session {reply.session_id}, length {reply.length}",
            )
        with self._lock:
            return [self._unary_request(piece) for piece in self._tokens.pieces(reply.length, plan.end)]

    def on_open(self, plan: OpeningPlan) -> None:
        """Record that an attempt has succeeded, with all tokens up to the plan's end."""
        with self._lock:
            self.phase, self.refusal, self.was_live = Phase.LIVE, None, True
            self._acked = self._sent = plan.end
            self._acked_cost = b""

    def on_open_failure(self, error: SuffixError, retry_at: float, *, transient: bool = False) -> None:
        """Record a failed attempt; the next one is due at ``retry_at``, unless the session is refused.

        Args:
            transient: the cause may pass, even if the error is one of REFUSALS. A session that was refused
                before stays refused.
        """
        with self._lock:
            self.phase = Phase.UNOPENED
            self.retry_at = retry_at
            if transient and self.refusal is None:
                return
            if isinstance(error, (SessionClosedError, AppendError, StepSequenceError)):
                self._session_id = ""
            elif isinstance(error, REFUSALS):
                self._refuse(error)

    def retry_refused(self) -> None:
        """Allow one more attempt to open a refused session, because its output would be lost."""
        with self._lock:
            if self.phase is Phase.REFUSED:
                self.phase = Phase.UNOPENED

    # ------------------------------------------------------------------------------------------- closing

    def flush_requests(self) -> list[pb.StepRequest | pb.AppendContextRequest]:
        """Requests for all unacknowledged tokens, as unary calls."""
        with self._lock:
            return [self._unary_request(p) for p in self._tokens.pieces(self._acked, len(self._tokens))]

    def on_flush(self, reply: pb.StepReply | pb.AppendContextReply) -> None:
        """Process the reply to one of these calls. ProtocolError: it does not match the session."""
        with self._lock:
            if reply.session_id != self._session_id or not 0 <= reply.length <= len(self._tokens):
                raise ProtocolError(
                    "a reply does not match its request",
                    expected=f"session {self._session_id}, length <= {len(self._tokens)}",
                    got=f"session {reply.session_id}, length {reply.length}",
                )
            self._acked = max(self._acked, reply.length)
            self._sent = max(self._sent, self._acked)

    def close_request(self, options: CloseOptions) -> pb.CloseSessionRequest:
        """The request that ends the session."""
        if options.commit:
            self._closing_at = self._acked
        return pb.CloseSessionRequest(
            session_id=self._session_id,
            discard=not options.commit,
            incomplete=options.incomplete,
            no_wait=not options.wait,
        )

    @property
    def known_to_service(self) -> bool:
        """Whether the service may hold a session of this id."""
        return bool(self._session_id)

    def mark_lost(self, error: SuffixError) -> None:
        """Record that the service does not hold this session (``error``): it has to be opened again."""
        with self._lock:
            self._reset_service_state(error)

    def on_close(self, output_id: OutputId | None) -> None:
        """Record that the session has ended, and its output's id."""
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

    def _reset_service_state(self, error: SuffixError) -> None:
        """Forget what the service acknowledged.

        The id of an unknown session stays: the session may have expired and left an incomplete output, which
        the reopened session replaces. Any other id is dropped, unless the session was closed with all of its
        text and only the answer was lost."""
        if isinstance(error, SessionClosedError) and self._closing_at == len(self._tokens):
            return  # the close is repeated, and answered with the same output id
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
