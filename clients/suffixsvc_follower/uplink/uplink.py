"""The thread that sends what local sessions write, and the closes of these sessions.

    session ──writes──> native text <──reads── thread ──one message per window──> service
    close ──> pool ──the rest of the text, then the close──> service ──output id──> the copy of the namespace

Nothing is queued per token: the thread compares the length of each session's text with what it has recorded.
The record is the journal (``suffixsvc_client.protocol.token_log``): a session that the service lost is opened
again from it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, Final

from suffixsvc.core import WriteSignal
from suffixsvc.errors import ServiceError, ServiceUnavailableError, SuffixError
from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import OutputId
from suffixsvc_client import SuffixClient
from suffixsvc_follower.uplink.sent_session import SentSession

log = logging.getLogger(__name__)

#: seconds between two messages: as many as sending takes a twentieth of a core
_SHORTEST_WINDOW: Final = 0.002
_LONGEST_WINDOW: Final = 0.02
_WINDOW_PER_COST: Final = 20
#: seconds after which sessions are looked at although none has told that it wrote
_IDLE_SECONDS: Final = 0.5
#: closes that wait for the service's disk concurrently: its group commit writes them together
_CLOSERS: Final = 16

#: receives the id of the stored output, None where nothing was stored, or the error of the close
OnClosed = Callable[[OutputId | None, SuffixError | None], None]


class Uplink(ClosedOnExit):
    """Sends the sessions of one follower to its service. Thread-safe.

    Args:
        client: of the service.
        max_unsent_tokens: see ``FollowerConfig``.
    """

    def __init__(self, client: SuffixClient, max_unsent_tokens: int) -> None:
        self._client = client
        self._max_unsent = max_unsent_tokens
        self._lock = threading.Lock()
        self._sessions: set[SentSession] = set()
        #: closes that are sent again: session, incomplete, receiver
        self._retries: deque[tuple[SentSession, bool, OnClosed]] = deque()
        self._unsent = 0
        #: sessions that were garbage-collected before they were closed
        self.abandoned: deque[SentSession] = deque()
        #: told when sessions write tokens
        self.written = WriteSignal()
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
        work = partial(self._close, session, incomplete=incomplete, waits=waits, on_closed=on_closed)
        if not self._submit(work):
            session.closing = False
            on_closed(None, ServiceUnavailableError("the follower is closed", remedy="Connect again."))

    def discard(self, session: SentSession) -> None:
        """End a session without its output, in the background. Any thread, without locks. Idempotent."""
        session.closing = True
        self._remove(session)
        if not self._submit(partial(self._discard, session)):
            log.warning("a session is left to the service, which ends it when it is idle")

    def close(self) -> None:
        """Wait for the closes that were begun, and end the threads. Idempotent."""
        self._closed = True
        self.written.notify()
        if self._thread is not threading.current_thread():
            self._thread.join()
        self._closers.shutdown()
        error = ServiceUnavailableError("the follower was closed before the service answered")
        while self._retries:
            session, _, on_closed = self._retries.popleft()
            log.error("the output of session %s is lost: the service did not answer", session.session_id)
            on_closed(None, error)

    # ------------------------------------------------------------------------------------------ sending

    def _run(self) -> None:
        while not self._closed:
            self.written.wait(_IDLE_SECONDS)
            with self._lock:
                sessions = [session for session in self._sessions if session.has_news]
            began = time.thread_time()
            try:
                self._send(sessions)
            except Exception:  # a defect must not end the thread
                log.exception("what sessions wrote could not be sent")
            window = _WINDOW_PER_COST * (time.thread_time() - began)
            time.sleep(min(max(window, _SHORTEST_WINDOW), _LONGEST_WINDOW))

    def _send(self, sessions: list[SentSession]) -> None:
        """Send what was written, in one message."""
        held: list[SentSession] = []
        steps: list[tuple[Any, dict[str, Any]]] = []
        try:
            for session in sessions:
                if not session.lock.acquire(blocking=False):
                    continue  # it is being closed, which sends the rest
                held.append(session)
                if not session.closing and session.record():
                    steps.append((session.remote, {"new_token_ids": (), "max_draft_tokens": 0}))
            if steps:
                self._client.step_many(steps)
        finally:
            for session in held:
                session.lock.release()

    # ------------------------------------------------------------------------------------------ closing

    def _close(self, session: SentSession, *, incomplete: bool, waits: bool, on_closed: OnClosed) -> None:
        try:
            with session.lock:
                output_id = session.close(commit=True, incomplete=incomplete)
        except SuffixError as error:
            if not waits and isinstance(error, ServiceError) and self._keep(session, incomplete, on_closed):
                return
            session.closing = False
            on_closed(None, error)
        except BaseException as error:
            session.closing = False
            on_closed(None, ServiceUnavailableError("a close failed", got=repr(error)[:200]))
            raise
        else:
            self._remove(session)
            on_closed(output_id, None)

    def _keep(self, session: SentSession, incomplete: bool, on_closed: OnClosed) -> bool:
        """Keep a close to be sent again; whether there was room, that of older ones included."""
        lost: list[tuple[SentSession, bool, OnClosed]] = []
        with self._lock:
            self._sessions.discard(session)
            if self._closed or len(session) > self._max_unsent:
                return False
            self._retries.append((session, incomplete, on_closed))
            self._unsent += len(session)
            while self._unsent > self._max_unsent:
                lost.append(self._retries.popleft())
                self._unsent -= len(lost[-1][0])
        for oldest, _, receive in lost:
            log.error("the output of session %s is lost: too much waits for the service", oldest.session_id)
            receive(None, ServiceUnavailableError("too many tokens wait for the service"))
        return True

    def retry(self) -> None:
        """Send the closes again that the service did not answer, and end the sessions that were
        garbage-collected; to be called about once a second."""
        while self.abandoned:
            session = self.abandoned.popleft()
            if not session.closing:
                self.discard(session)
        with self._lock:
            due, self._retries = self._retries, deque()
            self._unsent = 0
        for session, incomplete, on_closed in due:
            self.close_session(session, incomplete=incomplete, waits=False, on_closed=on_closed)

    def _discard(self, session: SentSession) -> None:
        try:
            with session.lock:
                session.close(commit=False)
        except SuffixError as error:
            log.warning("session %s ends at the service when it is idle: %s", session.session_id, error)

    def _remove(self, session: SentSession) -> None:
        with self._lock:
            self._sessions.discard(session)

    def _submit(self, work: Callable[[], None]) -> bool:
        """Run work on the pool; False after :meth:`close`."""
        try:
            self._closers.submit(work)
        except RuntimeError:
            return False
        return True
