"""Procedures of the client, shared by both clients: generators that yield effects and receive the results.

The blocking client performs the effects with blocking calls, the asyncio client awaits them. Nothing here
waits, connects or reads a clock; the clock is a parameter.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from google.protobuf.message import Message

from suffixsvc import wire
from suffixsvc.errors import (
    LimitExceededError,
    ProtocolError,
    ServiceError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SuffixError,
)
from suffixsvc.types import Draft, OutputId
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.protocol.breaker import CircuitBreaker
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.counters import Counters, EmptyReason
from suffixsvc_client.protocol.effects import Background, Call, Exchange, Pause, Post, Procedure
from suffixsvc_client.protocol.rate_pause import RatePause
from suffixsvc_client.protocol.session_state import SessionState
from suffixsvc_client.protocol.session_values import (
    LOST,
    REFUSALS,
    Phase,
    StepArguments,
    StepCall,
    is_refusal,
    mismatch,
    retry_after,
)

log = logging.getLogger(__name__)

#: polling interval of a close that waits for an opening in the background
OPENING_POLL_S = 0.005
#: attempts of a close, which reopens a lost session; only a service that restarts constantly needs more
CLOSE_ATTEMPTS = 4
_DISCARD_NOT_ANSWERED: Final = (
    "session %s of namespace %s is discarded, but the service did not answer: an incomplete output of the"
    " session may stay; delete that output or the namespace: %s"
)


class _SentStep(NamedTuple):
    """A step that is sent, and the position of its draft in the result."""

    position: int
    state: SessionState
    call: StepCall


class Procedures:
    """The procedures of one client with their shared circuit breaker, counters and settings.

    Args:
        clock: seconds, monotonic.
    """

    def __init__(self, config: ClientConfig, clock: Callable[[], float]) -> None:
        self.config = config
        self.counters = Counters()
        self.breaker = CircuitBreaker(
            config.breaker_failures, config.breaker_pause_s, config.breaker_max_pause_s
        )
        self.rate_pause = RatePause(config.breaker_max_pause_s)
        #: set when the client is closed
        self.closed = False
        self._clock = clock
        self._outages = threading.Lock()
        #: whether the current outage has been logged
        self._outage = False

    # ------------------------------------------------------------------------------------------- opening

    def open(self, state: SessionState) -> Procedure[None]:
        """Open a session. If the service cannot be reached, or a rate refuses the call, the session is opened
        in the background later.

        Raises:
            REFUSALS: the service refuses the session.
            ServiceUnavailableError: the client is closed.
        """
        if self.closed:
            raise ServiceUnavailableError("the client is closed", remedy="Make a new client.")
        if self._withheld() is not None:
            return
        try:
            yield from self._open(state, self.config.open_timeout_s, again=False)
        except SuffixError as error:
            if is_refusal(error):
                raise

    def _reopen(self, state: SessionState) -> Procedure[None]:
        try:
            yield from self._open(state, self.config.call_timeout_s, again=True)
        except SuffixError:
            return  # recorded by breaker and state; a later step opens it again

    def _open(self, state: SessionState, timeout_s: float, *, again: bool) -> Procedure[None]:
        opening = state.begin_opening()
        if opening is None:
            return
        accepted = False
        try:
            reply = yield Call(opening, timeout_s)
            accepted = True
            for request in state.replay_requests(reply):
                yield Call(request, timeout_s)
        except SuffixError as error:
            # a restarted service may be at its limit of live sessions for a while
            full = again and not accepted and isinstance(error, LimitExceededError)
            limited = retry_after(error)
            wait = self.config.breaker_pause_s if limited is None else self.rate_pause.bounded(limited)
            state.on_open_failure(error, self._clock() + wait, transient=full or limited is not None)
            self._record_failure(error)
            raise
        except BaseException:  # a cancelled task or an interrupted thread
            state.on_open_failure(ServiceUnavailableError("opening was interrupted"), self._clock())
            raise
        state.on_open()
        self._record_success()
        if again:
            self.counters.reopened()

    # ------------------------------------------------------------------------------------------- stepping

    def steps(
        self, accepted: Sequence[tuple[SessionState, StepArguments]], timeout_s: float | None = None
    ) -> Procedure[list[Draft]]:
        """Take one step of each session, in one message.

        Args:
            timeout_s: for the answer; None: that of a step.

        Returns:
            A draft for each, :meth:`Draft.unanswered` for a step that failed or was not sent.
        """
        drafts = [Draft.unanswered()] * len(accepted)
        sent: list[_SentStep] = []
        message = pb.StreamRequest()
        batch = message.steps
        checked, withheld = False, None
        for index, (state, args) in enumerate(accepted):
            live = state.phase is Phase.LIVE
            if live and state.limited_until and self._is_limited(state, args):
                state.on_skip()
                self.counters.empty(EmptyReason.LIMITED)
                continue
            if not checked and (live or self._may_reopen(state)):
                checked, withheld = True, self._withheld()
            if live and withheld is None:
                sent.append(_SentStep(index, state, state.step_call(args, batch)))
                continue
            state.on_skip()
            self.counters.empty(self._empty_reason(state, withheld))
            if withheld is None and self._may_reopen(state):
                # one attempt at a time, however many steps there are until it starts
                state.retry_at = self._clock() + self.config.breaker_pause_s
                yield Background(self._reopen(state))
        if sent:
            yield from self._send_steps(sent, message, drafts, timeout_s or self.config.step_timeout_s)
        return drafts

    def _may_reopen(self, state: SessionState) -> bool:
        return state.phase is Phase.UNOPENED and self._clock() >= state.retry_at

    def _withheld(self) -> EmptyReason | None:
        """Why no message may be sent now; None: one may."""
        now = self._clock()
        if not self.rate_pause.allows(now):
            return EmptyReason.LIMITED
        return None if self.breaker.allows(now) else EmptyReason.BREAKER_OPEN

    def _is_limited(self, state: SessionState, args: StepArguments) -> bool:
        """Whether the service would refuse a step of a live session."""
        if self._clock() >= state.limited_until:
            state.limited_until = 0.0
            return False
        return args.max_draft_tokens > 0

    def _empty_reason(self, state: SessionState, withheld: EmptyReason | None) -> EmptyReason:
        if state.phase is Phase.REFUSED:
            return EmptyReason.REFUSED
        if withheld is not None:
            return withheld
        if self.rate_pause.lasts(self._clock()):
            return EmptyReason.LIMITED
        return EmptyReason.SESSION_LOST if state.was_live else EmptyReason.UNAVAILABLE

    def _send_steps(
        self, sent: list[_SentStep], message: pb.StreamRequest, drafts: list[Draft], timeout_s: float
    ) -> Procedure[None]:
        preceding = [request for step in sent for request in step.call.preceding]
        try:
            replies = yield Exchange([*preceding, message], timeout_s)
            items = _batch_items(replies, len(sent))
        except SuffixError as error:
            self._stream_failed(sent, error)
            return
        except BaseException:  # a cancelled task or an interrupted thread: delivery is unknown
            self._stream_failed(sent, ServiceUnavailableError("the step was interrupted"))
            raise
        self._record_success()
        answers = iter(replies)
        lengths: list[int] = []
        for step, item in zip(sent, items, strict=True):
            # the error of the messages sent before a step is the cause of the step's own
            earlier = _first_error([next(answers) for _ in step.call.preceding]) if preceding else None
            try:
                draft = step.state.on_answer(step.call, item, earlier)
            except SuffixError as error:
                seconds = retry_after(error)
                if isinstance(error, ProtocolError) or (error is earlier and seconds is not None):
                    self._record_failure(error)
                elif seconds is not None:  # a limit of steps with a draft, not of all messages
                    step.state.limited_until = self._clock() + self.rate_pause.bounded(seconds)
                    self._warn_of_limit(error)
                self._step_failed(step, error)
            else:
                drafts[step.position] = draft
                lengths.append(len(draft))
        self.counters.on_answers(lengths)

    def _stream_failed(self, sent: list[_SentStep], error: SuffixError) -> None:
        """No step was answered: the error is the stream's, and says nothing about a session."""
        if not isinstance(error, ServiceError) and retry_after(error) is None:
            error = ServiceUnavailableError("the service refused the message", got=error)
        self._record_failure(error)
        for step in sent:
            self._step_failed(step, error)

    def _step_failed(self, step: _SentStep, error: SuffixError) -> None:
        step.state.on_failure(step.call, error)
        self.counters.empty(_reason(error))

    def post(self, states: Sequence[SessionState]) -> Procedure[None]:
        """Send what live sessions have recorded, without an answer: that of a later step shows whether it
        arrived. A later step sends it where a rate leaves room for steps only."""
        if self.breaker.open or not self.rate_pause.allows_early(self._clock()):
            return
        live = [state for state in states if state.phase is Phase.LIVE]
        message = pb.StreamRequest()
        requests = [request for state in live for request in state.post_unsent(message.steps)]
        if message.steps.items:
            requests.append(message)
        if not requests:
            return
        for request in requests:
            request.no_reply = True
        try:
            yield Post(requests)
        except SuffixError:
            for state in live:
                state.on_post_failure()

    # ------------------------------------------------------------------------------------------- closing

    def close(self, state: SessionState, options: pb.CloseSessionRequest) -> Procedure[OutputId | None]:
        """End a session. Raises unless the service has acknowledged it; closing can be repeated.

        What exceeds a rate is sent again when the service permits it, within the timeout of calls.
        """
        deadline = self._clock() + self.config.call_timeout_s
        while True:
            try:
                return (yield from self._close(state, options))
            except LimitExceededError as error:
                if error.retry_after_s is None or self._clock() + error.retry_after_s > deadline:
                    raise
                yield Pause(error.retry_after_s)

    def _close(self, state: SessionState, options: pb.CloseSessionRequest) -> Procedure[OutputId | None]:
        for _ in range(CLOSE_ATTEMPTS):
            while state.phase is Phase.OPENING:
                yield Pause(OPENING_POLL_S)
            if state.phase is Phase.CLOSED:
                return state.output_id
            if state.phase is Phase.REFUSED and not options.discard and state.has_output:
                state.retry_refused()
            try:
                if state.phase is Phase.UNOPENED:
                    yield from self._open_to_close(state, options)
                if state.phase in (Phase.LIVE, Phase.REFUSED):
                    return (yield from self._close_known(state, options))
            except LOST as error:
                state.mark_lost(error)
                if options.discard:
                    state.on_close(None)
        raise ServiceUnavailableError("the service lost the session after every attempt to open it")

    def _open_to_close(self, state: SessionState, options: pb.CloseSessionRequest) -> Procedure[None]:
        """Prepare to close a session that is not live on the service: open it again to commit its output, or
        discard an incomplete output that it may have left. If the service cannot be reached, a discard
        succeeds, and logs that it may not have taken effect."""
        if not options.discard and state.has_output:
            yield from self._open(state, self.config.call_timeout_s, again=True)
            return
        if state.session_id:
            try:
                yield self.call(state.close_request(pb.CloseSessionRequest(discard=True)))
            except ServiceError as error:
                if state.has_output and not state.private:
                    log.warning(_DISCARD_NOT_ANSWERED, state.session_id, state.namespace, error)
        state.on_close(None)

    def _close_known(
        self, state: SessionState, options: pb.CloseSessionRequest
    ) -> Procedure[OutputId | None]:
        if not state.session_id:
            state.on_close(None)
            return None
        if not options.discard:
            for request in state.flush_requests():
                state.on_flush((yield self.call(request)))
        reply = yield self.call(state.close_request(options))
        output_id = reply.output_id if reply.HasField("output_id") else None
        state.on_close(output_id)
        return output_id

    # ------------------------------------------------------------------------------------------- helpers

    def call(self, request: Message | Sequence[Message]) -> Call:
        """A call with the timeout of calls."""
        return Call(request, self.config.call_timeout_s)

    def _record_failure(self, error: SuffixError) -> None:
        """Update the breaker: a ServiceError is a failure; any other error is an answer, and so a success. A
        refusal by a rate begins a pause."""
        if not isinstance(error, ServiceError):
            self._record_success()
            if (seconds := retry_after(error)) is not None:
                self.rate_pause.on_refusal(self._clock(), seconds)
                self._warn_of_limit(error)
            return
        self.breaker.on_failure(self._clock(), waited=not isinstance(error, ServiceUnavailableError))
        if self.breaker.open or isinstance(error, ServiceUnavailableError):
            self._warn_of_outage(error)

    def _record_success(self) -> None:
        self.breaker.on_success()
        self._outage = False
        if self.rate_pause.active:
            self.rate_pause.on_admitted(self._clock())

    def _warn_of_limit(self, error: SuffixError) -> None:
        """Log a limit that time ends once, until it has not been exceeded for a minute."""
        if self.rate_pause.begins_episode(self._clock()):
            log.warning("steps above a limit of the service have no drafts: %s", error.message)

    def _warn_of_outage(self, error: ServiceError) -> None:
        """Log once per outage, not once per step."""
        with self._outages:
            known, self._outage = self._outage or self.closed, True
        if not known:
            log.warning("no drafts from the service until it answers: %s", error)


def _batch_items(replies: Sequence[pb.StreamReply], count: int) -> Sequence[pb.StepItem]:
    """The items that answer a batch, which is the last message sent."""
    answer = replies[-1]
    if answer.WhichOneof("reply") == "error":
        raise wire.error_from_detail(answer.error)
    items: Sequence[pb.StepItem] = answer.steps.items
    if len(items) != count:
        raise mismatch(f"{count} items", len(items))
    return items


def _first_error(replies: Sequence[pb.StreamReply]) -> SuffixError | None:
    for reply in replies:
        if reply.WhichOneof("reply") == "error":
            return wire.error_from_detail(reply.error)
        for item in reply.steps.items:
            if item.WhichOneof("result") == "error":
                return wire.error_from_detail(item.error.error)
    return None


def _reason(error: SuffixError) -> EmptyReason:
    if retry_after(error) is not None:
        return EmptyReason.LIMITED
    if isinstance(error, ServiceTimeoutError):
        return EmptyReason.TIMEOUT
    if isinstance(error, ProtocolError):
        return EmptyReason.PROTOCOL
    if isinstance(error, ServiceError):
        return EmptyReason.UNAVAILABLE
    if isinstance(error, LOST):
        return EmptyReason.SESSION_LOST
    return EmptyReason.REFUSED if isinstance(error, REFUSALS) else EmptyReason.ERROR
