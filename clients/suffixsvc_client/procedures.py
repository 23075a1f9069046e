"""What a client does, written once: generators that yield effects and are sent the answers.

The sync client carries the effects out with blocking calls, the asyncio one awaits them. Nothing here
waits, connects or looks at a clock of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import IO, Any, Final, NamedTuple

from suffixsvc import wire
from suffixsvc.errors import (
    LimitExceededError,
    ProtocolError,
    ServiceError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SessionClosedError,
    SuffixError,
    UnknownSessionError,
)
from suffixsvc.types import Draft, NewOutput, OutputId
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.breaker import Breaker
from suffixsvc_client.config import ClientConfig
from suffixsvc_client.counters import Counters, EmptyReason
from suffixsvc_client.effects import (
    ADD_OUTPUTS,
    APPEND,
    CLOSE,
    EXPORT,
    OPEN,
    SERVER_INFO,
    STEP,
    Background,
    Download,
    Exchange,
    Pause,
    Post,
    Procedure,
    Unary,
    Upload,
)
from suffixsvc_client.exporting import ExportSink, ExportSummary
from suffixsvc_client.questions import Question
from suffixsvc_client.state import REFUSALS, Closing, Phase, SessionState, StepArgs, StepCall

__all__ = ["Procedures"]

log = logging.getLogger(__name__)

#: how often a close looks whether an opening in the background is over
OPENING_POLL_S = 0.005
#: a close that finds its session gone opens it again; only a service that restarts all the time needs more
CLOSE_ATTEMPTS = 4
_DISCARD_NOT_ANSWERED: Final = (
    "session %s of namespace %s is discarded, but the service did not answer: an incomplete output of the"
    " session may stay; forget that output or delete the namespace: %s"
)
#: bytes of one AddOutputs message, about
UPLOAD_BYTES = 1 << 20
#: the namespace and the tokenizer of such a message
_HEAD_BYTES: Final = 1024
#: the tag and the length of an output
_ITEM_HEAD_BYTES: Final = 6


class _Asked(NamedTuple):
    """A step that is really sent, and its place among the drafts to answer."""

    place: int
    state: SessionState
    call: StepCall


class Procedures:
    """The procedures of one client, and what they share: breaker, counters, settings."""

    def __init__(self, config: ClientConfig, clock: Callable[[], float]) -> None:
        self.config = config
        self.counters = Counters()
        self.breaker = Breaker(config.breaker_failures, config.breaker_pause_s, config.breaker_max_pause_s)
        #: the client is closed
        self.closed = False
        self._clock = clock
        self._outages = threading.Lock()
        #: the service is out of reach, and the log says so
        self._outage = False

    # ------------------------------------------------------------------------------------------- opening

    def open(self, state: SessionState) -> Procedure[None]:
        """Open a session; raises when the service refuses it. A service that cannot be reached is no
        error: the session opens in the background as soon as it can, and drafts nothing until then.
        ServiceUnavailableError: the client is closed."""
        if self.closed:
            raise ServiceUnavailableError("the client is closed", remedy="Make a new client.")
        if not self.breaker.allows(self._clock()):
            return
        try:
            yield from self._open(state, self.config.open_timeout_s, again=False)
        except REFUSALS:
            raise
        except SuffixError:
            return

    def _reopen(self, state: SessionState) -> Procedure[None]:
        try:
            yield from self._open(state, self.config.call_timeout_s, again=True)
        except SuffixError:
            return  # counted by the breaker, kept by the state; the next step asks again

    def _open(self, state: SessionState, timeout_s: float, *, again: bool) -> Procedure[None]:
        plan = state.begin_opening()
        if plan is None:
            return
        accepted = False
        try:
            reply = yield Unary(OPEN, plan.request, timeout_s)
            accepted = True
            for request in state.to_replay(plan, reply):
                yield Unary(STEP if isinstance(request, pb.StepRequest) else APPEND, request, timeout_s)
        except SuffixError as error:
            # others may have taken the places of a service that came back: they will be free again
            full = again and not accepted and isinstance(error, LimitExceededError)
            state.opening_failed(error, self._clock() + self.config.breaker_pause_s, passing=full)
            self._note(error)
            raise
        except BaseException:  # a cancelled task, an interrupted thread: not opened
            state.opening_failed(ServiceUnavailableError("opening was interrupted"), self._clock())
            raise
        state.opened(plan)
        self._succeeded()
        if again:
            self.counters.reopened()

    # ------------------------------------------------------------------------------------------- stepping

    def steps(self, accepted: Sequence[tuple[SessionState, StepArgs]]) -> Procedure[list[Draft]]:
        """One step of each session, in one message; a draft for each, :meth:`Draft.unanswered` where
        anything went wrong."""
        drafts = [Draft.unanswered()] * len(accepted)
        asked: list[_Asked] = []
        message = pb.StreamRequest()
        batch = message.steps
        allowed: bool | None = None
        for index, (state, args) in enumerate(accepted):
            live = state.phase is Phase.LIVE
            if allowed is None and (live or self._may_reopen(state)):
                allowed = self.breaker.allows(self._clock())
            if live and allowed:
                asked.append(_Asked(index, state, state.step_call(args, batch)))
                continue
            state.skipped()
            self.counters.empty(self._why_not(state, allowed))
            if allowed and self._may_reopen(state):
                # once, however many steps there are until somebody gets to it
                state.retry_at = self._clock() + self.config.breaker_pause_s
                yield Background(self._reopen(state))
        if asked:
            yield from self._ask(asked, message, drafts)
        return drafts

    def _may_reopen(self, state: SessionState) -> bool:
        return state.phase is Phase.UNOPENED and self._clock() >= state.retry_at

    def _why_not(self, state: SessionState, allowed: bool | None) -> EmptyReason:
        if state.phase is Phase.REFUSED:
            return EmptyReason.REFUSED
        if allowed is False:
            return EmptyReason.BREAKER_OPEN
        return EmptyReason.SESSION_LOST if state.was_live else EmptyReason.UNAVAILABLE

    def _ask(self, asked: list[_Asked], message: pb.StreamRequest, drafts: list[Draft]) -> Procedure[None]:
        before = [request for one in asked for request in one.call.before]
        try:
            replies = yield Exchange([*before, message], self.config.step_timeout_s)
            items = _batch_items(replies, len(asked))
        except SuffixError as error:
            self._stream_failed(asked, error)
            return
        except BaseException:  # a cancelled task, an interrupted thread: what was sent is in doubt
            self._stream_failed(asked, ServiceUnavailableError("the step was interrupted"))
            raise
        self._succeeded()
        answers = iter(replies)
        drafted: list[int] = []
        for one, item in zip(asked, items, strict=True):
            earlier = _first_error([next(answers) for _ in one.call.before]) if before else None
            draft = self._settle(one, item, earlier)
            if draft is not None:
                drafts[one.place] = draft
                drafted.append(len(draft))
        self.counters.answered(drafted)

    def _stream_failed(self, asked: list[_Asked], error: SuffixError) -> None:
        """Nobody got an answer. Whatever the reason, it is the stream's and no verdict on a session."""
        if not isinstance(error, ServiceError):
            error = ServiceUnavailableError("the service refused the message", got=error)
        self._note(error)
        for one in asked:
            self._step_failed(one, error)

    def _settle(self, one: _Asked, item: pb.StepItem, earlier: SuffixError | None) -> Draft | None:
        """The draft of one answer, None where it is an error. ``earlier``: why the tokens sent before it
        failed, the real cause."""
        try:
            if earlier is not None:
                raise earlier
            return one.state.answered(one.call, item)
        except SuffixError as error:
            if isinstance(error, ProtocolError):
                self._note(error)
            self._step_failed(one, error)
            return None

    def _step_failed(self, one: _Asked, error: SuffixError) -> None:
        one.state.failed(one.call, error)
        self.counters.empty(_reason(error))

    def append_context(self, state: SessionState) -> Procedure[None]:
        """Send context that the state has accepted. Whether it arrived shows in the next step's answer."""
        if state.phase is not Phase.LIVE or self.breaker.open or not (requests := state.unsent()):
            return
        try:
            yield Post(requests)
        except SuffixError:
            state.post_failed()

    # ------------------------------------------------------------------------------------------- closing

    def close(self, state: SessionState, how: Closing) -> Procedure[OutputId | None]:
        """End a session. Raises until the service has acknowledged it: closing can be tried again."""
        for _ in range(CLOSE_ATTEMPTS):
            while state.phase is Phase.OPENING:
                yield Pause(OPENING_POLL_S)
            if state.phase is Phase.CLOSED:
                return state.output_id
            if state.phase is Phase.REFUSED and how.commit and state.has_output:
                state.reconsider()
            try:
                if state.phase is Phase.UNOPENED:
                    yield from self._open_to_close(state, how)
                if state.phase in (Phase.LIVE, Phase.REFUSED):
                    return (yield from self._close_known(state, how))
            except (UnknownSessionError, SessionClosedError) as error:
                state.lost(error)
                if not how.commit:
                    state.closed(None)
        raise ServiceUnavailableError("the service loses the session whenever it is opened")

    def _open_to_close(self, state: SessionState, how: Closing) -> Procedure[None]:
        """A session the service does not hold, as far as we know: its output is told again, or what it
        may have left there taken back. A discard succeeds while the service is away, and logs that it may not
        have taken effect."""
        if how.commit and state.has_output:
            yield from self._open(state, self.config.call_timeout_s, again=True)
            return
        if state.known_to_service:
            try:
                yield Unary(CLOSE, state.close_request(Closing(commit=False)), self.config.call_timeout_s)
            except ServiceError as error:
                if state.has_output:
                    log.warning(_DISCARD_NOT_ANSWERED, state.session_id, state.namespace, error)
        state.closed(None)

    def _close_known(self, state: SessionState, how: Closing) -> Procedure[OutputId | None]:
        timeout = self.config.call_timeout_s
        if not state.known_to_service:
            state.closed(None)
            return None
        if how.commit:
            for request in state.to_flush():
                flushed = yield Unary(
                    STEP if isinstance(request, pb.StepRequest) else APPEND, request, timeout
                )
                state.flushed(flushed)
        reply = yield Unary(CLOSE, state.close_request(how), timeout)
        output_id = reply.output_id if reply.HasField("output_id") else None
        state.closed(output_id)
        return output_id

    # ---------------------------------------------------------------------------------------------- bulk

    def add_outputs(
        self, namespace: str, tokenizer: str | None, outputs: Sequence[NewOutput]
    ) -> Procedure[list[OutputId]]:
        most = _UNLIMITED
        if len(outputs) > 1:  # one output is one message, whatever the service takes
            info = yield Unary(SERVER_INFO, pb.GetServerInfoRequest(), self.config.call_timeout_s)
            most = _most_per_message(info)
        requests = list(_upload_messages(namespace, tokenizer or "", outputs, most))
        reply = yield Upload(ADD_OUTPUTS, requests, self.config.call_timeout_s)
        if len(reply.output_ids) != len(outputs):
            raise ProtocolError(
                "an answer does not belong to its request",
                expected=f"{len(outputs)} output ids",
                got=len(reply.output_ids),
            )
        return list(reply.output_ids)

    def export(
        self, request: pb.ExportNgramsRequest, sinks: Sequence[IO[bytes]], timeout_s: float
    ) -> Procedure[ExportSummary]:
        sink = ExportSink(sinks)
        yield Download(EXPORT, request, sink.take, timeout_s)
        return sink.summary()

    def ask(self, question: Question) -> Procedure[Any]:
        """One call whose answer matters: it is waited for, and its errors are raised."""
        method, request = question
        return (yield Unary(method, request, self.config.call_timeout_s))

    def _note(self, error: SuffixError) -> None:
        """Tell the breaker: faults of the service count, its considered answers show that it lives."""
        if not isinstance(error, ServiceError):
            self._succeeded()
            return
        self.breaker.failed(self._clock())
        if self.breaker.open or isinstance(error, ServiceUnavailableError):
            self._warn_of_outage(error)

    def _succeeded(self) -> None:
        self.breaker.succeeded()
        self._outage = False

    def _warn_of_outage(self, error: ServiceError) -> None:
        """Once an outage, not once a step."""
        with self._outages:
            known, self._outage = self._outage or self.closed, True
        if not known:
            log.warning("no drafts until the service answers: %s", error)


def _batch_items(replies: Sequence[pb.StreamReply], count: int) -> Sequence[pb.StepItem]:
    """The items that answer a batch, the last of the messages sent."""
    answer = replies[-1]
    if answer.WhichOneof("reply") == "error":
        raise wire.error_from_detail(answer.error)
    items: Sequence[pb.StepItem] = answer.steps.items
    if len(items) != count:
        raise ProtocolError(
            "an answer does not belong to its batch", expected=f"{count} items", got=len(items)
        )
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
    if isinstance(error, ServiceTimeoutError):
        return EmptyReason.TIMEOUT
    if isinstance(error, ProtocolError):
        return EmptyReason.PROTOCOL
    if isinstance(error, ServiceError):
        return EmptyReason.UNAVAILABLE
    if isinstance(error, (UnknownSessionError, SessionClosedError)):
        return EmptyReason.SESSION_LOST
    return EmptyReason.REFUSED if isinstance(error, REFUSALS) else EmptyReason.ERROR


class _Most(NamedTuple):
    """What one message of a bulk load may have."""

    outputs: int
    segments: int
    size: int


_UNLIMITED: Final = _Most(1 << 62, 1 << 62, UPLOAD_BYTES)


def _most_per_message(info: pb.GetServerInfoReply) -> _Most:
    """What a service takes; one that tells nothing has no such limits."""
    return _Most(
        info.max_outputs_per_message or _UNLIMITED.outputs,
        info.max_segments_per_message or _UNLIMITED.segments,
        # names and the framing take some bytes as well
        min(UPLOAD_BYTES, max(1, info.max_message_bytes - _HEAD_BYTES))
        if info.max_message_bytes
        else UPLOAD_BYTES,
    )


def _upload_messages(
    namespace: str, tokenizer: str, outputs: Iterable[NewOutput], most: _Most
) -> Iterator[pb.AddOutputsRequest]:
    message = pb.AddOutputsRequest(namespace=namespace, tokenizer=tokenizer)
    size = segments = 0
    for output in outputs:
        item = pb.OutputItem(
            token_ids=wire.pack_tokens(output.token_ids),
            prompt_token_ids=wire.pack_tokens(output.prompt_tail),
            labels=dict(output.labels),
            ttl_seconds=output.ttl_seconds,
            segment_lens=output.segment_lens,
            incomplete=output.incomplete,
            corpus=output.corpus,
            uuid=output.uuid,
        )
        item_size = item.ByteSize() + _ITEM_HEAD_BYTES
        full = (
            size + item_size > most.size
            or segments + len(item.segment_lens) > most.segments
            or len(message.outputs) >= most.outputs
        )
        if message.outputs and full:
            yield message
            message, size, segments = pb.AddOutputsRequest(namespace=namespace, tokenizer=tokenizer), 0, 0
        message.outputs.append(item)
        size += item_size
        segments += len(item.segment_lens)
    yield message
