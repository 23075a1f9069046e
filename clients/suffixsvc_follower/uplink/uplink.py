"""The thread that sends what local sessions write, and the closes of these sessions.

    session ──writes──> native text <──reads── thread ──one message per window──> service
    close ──> pool ──the rest of the text, then the close──> service ──output id──> the copy of the namespace

Nothing is queued per token: the thread compares the length of each session's text with what it has recorded.
The record is the journal (``suffixsvc_client.protocol.token_log``): a session that the service lost is opened
again from it. Closes without a waiting caller are in unsent_closes.py until the service has answered.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from more_itertools import constrained_batches

from suffixsvc.core import WriteSignal
from suffixsvc.errors import ServiceError, ServiceUnavailableError, SuffixError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc_client import ClientSession, SuffixClient
from suffixsvc_client.protocol.session_values import retry_after
from suffixsvc_follower.uplink.sent_session import SentSession
from suffixsvc_follower.uplink.unsent_closes import OnClosed, UnsentClose, UnsentCloses

log = logging.getLogger(__name__)

#: seconds between two messages: as many as sending takes a twentieth of a core
_SHORTEST_WINDOW: Final = 0.002
_LONGEST_WINDOW: Final = 0.02
_WINDOW_PER_COST: Final = 20
#: estimated time of gRPC's threads for one message
_SENDING_SECONDS: Final = 500e-6
#: seconds between two messages whose answer is waited for: what is lost is sent again then
_CONFIRM_SECONDS: Final = 0.25
#: tokens of the sessions of one message, unless a single one has more: after an outage, all of them could be
#: more than the service takes, or answers in time
_MESSAGE_TOKENS: Final = 1 << 16
#: no step waits for it, so that a service on a loaded machine may take long
_CONFIRM_TIMEOUT_SECONDS: Final = 5.0
#: seconds after which sessions are looked at although none has told that it wrote
_IDLE_SECONDS: Final = 0.5
#: pause between two attempts to send outputs at the end
_RETRY_SECONDS: Final = 0.25
#: closes that wait for the service's disk concurrently: its group commit writes them together. Half of them
#: are left to closes that are waited for
_CLOSERS: Final = 32


class Uplink(ClosedOnExit):
    """Sends the sessions of one follower to its service. Thread-safe.

    Args:
        client: of the service.
        max_unsent_tokens: see ``FollowerConfig``.
    """

    def __init__(self, client: SuffixClient, max_unsent_tokens: int) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._sessions: set[SentSession] = set()
        self._unsent = UnsentCloses(max_unsent_tokens)
        #: sessions that were garbage-collected before they were closed
        self.abandoned: deque[SentSession] = deque()
        #: told when sessions write tokens, later: a step must not wait for this thread's GIL
        self.written = WriteSignal(_SHORTEST_WINDOW)
        self._closed = False
        self._closers = ThreadPoolExecutor(_CLOSERS, thread_name_prefix="suffixsvc-closing")
        self._thread = threading.Thread(target=self._run, name="suffixsvc-uplink", daemon=True)
        self._thread.start()

    def add(self, session: SentSession) -> None:
        """Send what this session writes from now on."""
        with self._lock:
            self._sessions.add(session)

    def close_session(
        self, session: SentSession, *, incomplete: bool, waits: bool, on_closed: OnClosed
    ) -> None:
        """Close a session with its output, in the background.

        Args:
            waits: the caller waits for ``on_closed``; a failure then ends the attempt, and the session can be
                closed again. Otherwise the close is sent until the service answers.
            on_closed: called once, on another thread.
        """
        session.closing = True
        if not waits:
            self._add_unsent(UnsentClose(session, commit=True, incomplete=incomplete, on_closed=on_closed))
            return

        def refuse() -> None:
            session.closing = False
            on_closed(None, _closed_error())

        work = partial(self._close, session, incomplete=incomplete, on_closed=on_closed)
        if not self._submit(work, on_cancelled=refuse):
            refuse()

    def discard(self, session: SentSession) -> None:
        """End a session without its output, in the background. Idempotent."""
        session.closing = True
        self._add_unsent(UnsentClose(session, commit=False))

    def retry(self) -> None:
        """Send the closes again that the service did not answer, and end the sessions that were
        garbage-collected; to be called about once a second."""
        while self.abandoned:
            session = self.abandoned.popleft()
            if not session.closing:
                self.discard(session)
        self._send_again()

    @property
    def idle(self) -> bool:
        """Whether the service has everything: no session is open, and none is being closed."""
        with self._lock:
            return not (self._sessions or self.abandoned or len(self._unsent))

    @property
    def unacknowledged_tokens(self) -> int:
        """Tokens of sessions that the service has not acknowledged, and all of those sessions whose close it
        has not answered."""
        with self._lock:
            sessions = list(self._sessions)
        return sum(session.unacknowledged for session in sessions) + self._unsent.tokens

    def close(self, seconds: float = 0.0) -> None:
        """Wait for the closes that were begun, at most so long, and end the threads. Idempotent.

        Outputs are sent until the service answers; a failed discard is given up: its session ends at the
        service when it is idle.
        """
        if self._closed:
            return
        deadline = time.monotonic() + seconds
        self._unsent.wait(seconds)
        while self._unsent.outputs and (left := deadline - time.monotonic()) > 0:
            time.sleep(min(_RETRY_SECONDS, left))
            self._send_again()
            self._unsent.wait(deadline - time.monotonic())
        self._closed = True
        self.written.notify()
        if self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))
        self._closers.shutdown(wait=False, cancel_futures=True)
        for each in self._unsent.take_all():
            self._give_up(each, _closed_error())

    # ------------------------------------------------------------------------------------------ sending

    def _run(self) -> None:
        confirmed_at = -math.inf
        while not self._closed:
            self.written.wait(_IDLE_SECONDS)
            # an answer costs both processes as much as the message
            confirm = time.monotonic() >= confirmed_at + _CONFIRM_SECONDS
            with self._lock:
                sessions = [s for s in self._sessions if s.has_news or (confirm and not s.arrived)]
            began = time.thread_time()
            try:
                if self._send(sessions, confirm=confirm):
                    confirmed_at = time.monotonic()
            except Exception:  # a defect must not end the thread
                log.exception("what sessions wrote could not be sent")
                time.sleep(_IDLE_SECONDS)
            if sessions:
                cost = time.thread_time() - began + _SENDING_SECONDS
                time.sleep(min(_WINDOW_PER_COST * cost, _LONGEST_WINDOW))

    def _send(self, sessions: list[SentSession], *, confirm: bool) -> bool:
        """Send what was written, in one message unless it is very much.

        Args:
            confirm: wait for the answer.

        Returns:
            Whether everything is known to have arrived, but for sessions that the service does not have.
        """
        held: list[SentSession] = []
        try:
            for session in sessions:
                if session.lock.acquire(blocking=False):  # otherwise it is being closed, which sends the rest
                    held.append(session)
                    if not session.closing:
                        session.record()
            sent = [session.remote for session in held if not session.closing]
            for group in constrained_batches(sent, _MESSAGE_TOKENS, get_len=_unsent_tokens, strict=False):
                if confirm:
                    self._client.flush_many(group, _CONFIRM_TIMEOUT_SECONDS)
                else:
                    self._client.post_many(group)
            return confirm and all(session.arrived for session in held if session.live)
        finally:
            for session in held:
                session.lock.release()

    # ------------------------------------------------------------------------------------------ closing

    def _close(self, session: SentSession, *, incomplete: bool, on_closed: OnClosed) -> None:
        """A close that is waited for."""
        try:
            with session.lock:
                output_id = session.close(commit=True, incomplete=incomplete)
        except SuffixError as error:
            session.closing = False
            on_closed(None, error)
        except BaseException as error:
            session.closing = False
            on_closed(None, ServiceUnavailableError("a close failed", got=repr(error)[:200]))
            raise
        else:
            self._remove(session)
            on_closed(output_id, None)

    def _add_unsent(self, close: UnsentClose) -> None:
        self._remove(close.session)
        if self._closed:
            self._give_up(close, _closed_error())
            return
        for each in self._unsent.add(close):
            self._give_up(each, ServiceUnavailableError("too many tokens wait for the service"))
        self._send_unsent()

    def _send_again(self) -> None:
        self._unsent.retry()
        self._send_unsent()

    def _send_unsent(self) -> None:
        while (close := self._unsent.next()) is not None:
            if not self._submit(partial(self._attempt, close)):
                self._unsent.failed(close)
                return

    def _attempt(self, close: UnsentClose) -> None:
        """A close without a waiting caller."""
        try:
            with close.session.lock:
                output_id = close.session.close(commit=close.commit, incomplete=close.incomplete)
        except SuffixError as error:
            if isinstance(error, ServiceError) or retry_after(error) is not None:
                self._unsent.failed(close)
            elif self._unsent.remove(close):
                self._give_up(close, error)
        except BaseException as error:
            if self._unsent.remove(close):
                self._give_up(close, ServiceUnavailableError("a close failed", got=repr(error)[:200]))
            raise
        else:
            if self._unsent.remove(close):
                close.on_closed(output_id, None)
        self._send_unsent()

    def _give_up(self, close: UnsentClose, error: SuffixError) -> None:
        session_id = close.session.session_id
        if close.commit:
            log.error("the output of session %s is lost: %s", session_id, error)
        else:
            log.warning("session %s ends at the service when it is idle: %s", session_id, error)
        close.on_closed(None, error)

    def _remove(self, session: SentSession) -> None:
        with self._lock:
            self._sessions.discard(session)

    def _submit(self, work: Callable[[], None], on_cancelled: Callable[[], None] = lambda: None) -> bool:
        """Run work on the pool; False after :meth:`close`, and at the end of the interpreter.

        Args:
            on_cancelled: called if :meth:`close` comes before the work begins.
        """
        try:
            future = self._closers.submit(work)
        except RuntimeError:
            return False
        future.add_done_callback(lambda done: on_cancelled() if done.cancelled() else None)
        return True


def _unsent_tokens(session: ClientSession) -> int:
    return session.verbs.state.unsent


def _closed_error() -> ServiceUnavailableError:
    return ServiceUnavailableError(
        "the follower was closed before the service answered",
        remedy="Close sessions with wait=True, which raises, or the follower when the service is back.",
    )
