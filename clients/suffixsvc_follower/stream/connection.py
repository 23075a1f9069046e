"""The thread that keeps a stream from the service, and begins another one when it ends."""

from __future__ import annotations

import enum
import logging
import os
import socket
import threading
import time
from typing import Final

from suffixsvc.errors import (
    AccessError,
    ProtocolError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    SuffixError,
)
from suffixsvc.log_wire import WATCH_PROTOCOL, position_to_proto
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_client.protocol.session_values import retry_after
from suffixsvc_follower.stream.applier import Applier
from suffixsvc_follower.stream.followed import Followed, FollowedTable
from suffixsvc_follower.stream.watch_call import WatchCall, WatchChannel

log = logging.getLogger(__name__)

#: pauses between attempts
_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 2.0
#: time for the service to read what was sent before the end
_FAREWELL_SECONDS: Final = 1.0
#: pause after a refusal: too many followers may become fewer, and a service may be replaced by a later one
_REFUSED_PAUSE: Final = 10.0
#: errors of a stream that say nothing about whether the service lets it follow
_OUTAGES: Final = (ServiceUnavailableError, ServiceTimeoutError)


class FollowState(enum.StrEnum):
    """What a follower does at present."""

    #: no stream yet, or it was lost less than a lease ago; what is held is drafted from
    CONNECTING = "connecting"
    #: the log is read on
    FOLLOWING = "following"
    #: the service was silent for longer than its lease: only a session's own text is drafted from
    LAPSED = "lapsed"
    #: the service does not let it follow
    REFUSED = "refused"
    CLOSED = "closed"


class Connection(ClosedOnExit):
    """Keeps the copies of a follower up with the log. Thread-safe.

    Args:
        channel: to the service.
        table: the namespaces.
        applier: applies the replies.
        follower_id: of the follower.

    Attributes:
        refusal: why the service does not let it follow; None if it does.
        outage: what ended the last stream, or kept it from beginning; None before that.
    """

    def __init__(
        self, channel: WatchChannel, table: FollowedTable, applier: Applier, follower_id: str
    ) -> None:
        self._channel, self._table, self._applier = channel, table, applier
        self._follower_id = follower_id
        self._changed = threading.Condition()
        self._state = FollowState.CONNECTING
        self._call: WatchCall | None = None
        self.refusal: SuffixError | None = None
        self.outage: SuffixError | None = None
        self._thread = threading.Thread(target=self._run, name="suffixsvc-follower", daemon=True)
        self._thread.start()

    @property
    def state(self) -> FollowState:
        """The present state."""
        return self._state

    @property
    def _closed(self) -> bool:
        return self._state is FollowState.CLOSED

    def wait_for_answer(self, seconds: float) -> FollowState:
        """Wait until the service lets it follow, or does not; the state then, or after ``seconds``."""
        with self._changed:
            self._changed.wait_for(lambda: self._state is not FollowState.CONNECTING, seconds)
            return self._state

    def follow(self, entry: Followed) -> None:
        """Follow a namespace that was added to the table. Without a stream, the next one does."""
        with self._changed:
            if self._state is FollowState.FOLLOWING and self._call is not None:
                self._call.send(_follow(entry))

    def send(self, request: pb.WatchRequest) -> None:
        """Send a request, if there is a stream."""
        with self._changed:
            call = self._call if self._state is FollowState.FOLLOWING else None
        if call is not None:
            call.send(request)

    def end_lease(self) -> None:
        """Stop drafting from what others wrote if the service has been silent for its lease; to be called
        several times a second."""
        lease = self._applier.lease
        with self._applier.lock:
            if not lease.over or self._closed:
                return
            silent, held = lease.silent_seconds, self._applier.position is not None
            self._applier.clear()
            lease.end()
        with self._changed:
            if self._closed:
                return
            if self._state is not FollowState.REFUSED:
                self._set(FollowState.LAPSED)
            call = self._call
        if call is not None:
            call.cancel()  # what it may still bring assumes that the contents are held
        if held:
            log.warning(
                "the service has been silent for %.1f s, longer than its lease: drafts are taken from a"
                " session's own text only",
                silent,
            )

    def close(self) -> None:
        """End the stream after what was sent. Idempotent."""
        with self._changed:
            self._set(FollowState.CLOSED)
            call = self._call
        if self._thread is threading.current_thread():
            return
        if call is not None:
            call.finish()
            self._thread.join(_FAREWELL_SECONDS)
            call.cancel()
        self._thread.join()

    # -------------------------------------------------------------------------------------------- thread

    def _run(self) -> None:
        pause, logged = _FIRST_PAUSE, False
        while not self._closed:
            started = time.monotonic()
            try:
                self._read_stream()
                error: SuffixError = ProtocolError("the stream ended without an error")
            except SuffixError as failure:
                error = failure
            except Exception as failure:  # a defect must not end the thread
                log.exception("a stream from the service could not be applied")
                error = ProtocolError("a stream could not be applied", got=repr(failure)[:200])
            if self._closed:
                return
            if isinstance(error, ProtocolError):
                self._applier.clear()  # what was applied is not what the service sent
            if isinstance(error, AccessError):
                self._applier.discard()
            refused = self._ended(error)
            if time.monotonic() - started > _LONGEST_PAUSE:
                pause, logged = _FIRST_PAUSE, False
            if not logged:
                log.info("no stream from the service; it is tried again: %s", error)
                logged = True
            with self._changed:
                seconds = _REFUSED_PAUSE if refused else pause
                self._changed.wait_for(lambda: self._closed, seconds)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _read_stream(self) -> None:
        """Read one stream until it ends. Raises the error it ended with."""
        with self._channel.watch() as call:
            hello = pb.WatchHello(
                protocol=WATCH_PROTOCOL,
                follower_id=self._follower_id,
                description=f"pid {os.getpid()}, host {socket.gethostname()}"[:200],
            )
            position = self._applier.complete
            if position is not None:
                hello.position.CopyFrom(position_to_proto(position))
            call.send(pb.WatchRequest(hello=hello))
            for reply in call.replies():
                received_at = time.monotonic()
                if self._applier.lease.over:
                    # the process was stopped: what was received meanwhile may be as old as the stop
                    self.end_lease()
                    raise ServiceUnavailableError("the lease was over before the next message was read")
                self._applier.apply(reply, received_at)
                if reply.WhichOneof("reply") == "welcome":
                    self._welcomed(call, reply.welcome)
                    continue
                for entry in self._applier.take_to_load():
                    call.send(_follow(entry))
                if self._applier.report_due:
                    self._applier.report_due = False
                    self.report_position()

    def report_position(self) -> None:
        """Tell the service what is applied."""
        position = self._applier.applied
        if position is not None:
            self.send(pb.WatchRequest(report=pb.FollowerReport(applied=position_to_proto(position))))

    def _welcomed(self, call: WatchCall, welcome: pb.WatchWelcome) -> None:
        log.info("the service is followed (%s, version %s)", welcome.instance_id, welcome.version)
        with self._changed:
            if self._closed:
                call.cancel()
                return
            self._applier.begin_stream()
            self._call, self.refusal = call, None
            # added to the table after this: sent by follow()
            self._set(FollowState.FOLLOWING)
            for entry in self._table.values():
                call.send(_follow(entry))

    def _ended(self, error: SuffixError) -> bool:
        """Record the end of a stream; whether the service refused it."""
        with self._changed:
            was_welcome, self._call = self._call is not None, None
            self.outage = error
            if self._closed:
                return False
            if not was_welcome and not isinstance(error, _OUTAGES) and retry_after(error) is None:
                if self._state is not FollowState.REFUSED:
                    log.warning("the service does not let this process follow: %s", error)
                self.refusal = error
                self._set(FollowState.REFUSED)
                return True
            if self._state is FollowState.FOLLOWING:
                self._set(FollowState.CONNECTING)
            return False

    def _set(self, state: FollowState) -> None:
        self._state = state
        self._changed.notify_all()


def _follow(entry: Followed) -> pb.WatchRequest:
    # contents of which a part is missing have to be sent again
    generation = 0 if entry.loading is not None else entry.generation
    return pb.WatchRequest(
        follow=pb.FollowNamespace(
            namespace=entry.path,
            tokenizer=entry.tokenizer,
            generation=generation,
            drafting_off=not entry.copy.drafting,
        )
    )
