"""A channel to one worker: a thread of its own, one request at a time, replies delivered when they arrive.

A caller waits on a condition, up to its own timeout, and then goes on without the reply. A gRPC deadline
covers a whole stream and a socket's timeout one read: neither can bound one reply.
"""

from __future__ import annotations

import queue
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

from suffixsvc.errors import ServiceUnavailableError, SuffixError
from suffixsvc.runtime.signal_guard import AtomicCondition
from suffixsvc.types import Draft

_JOIN_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class WorkerRequest:
    """A request of a session.

    Attributes:
        number: increases with every request of a session.
        context: the text, and drafted tokens to continue from.
        keep: context tokens that the worker should hold already.
        max_draft_tokens: 0 only computes the context.
        wait_seconds: how long it may wait for its start; 0 = the worker's own limit.
        timeout_seconds: how long the caller waits for the reply; 0 = it does not wait.
        forget: free the session's state instead.
        suggested: tokens that may follow the context.
        principal: owner of the session; the worker reuses KV between sessions of one principal only.
    """

    number: int
    session_id: str
    timeout_seconds: float
    p_min: float = 0.4
    top_k: int = 10
    wait_seconds: float = 0.0
    context: list[int] = field(default_factory=list)
    keep: int = 0
    max_draft_tokens: int = 0
    forget: bool = False
    suggested: tuple[int, ...] = ()
    principal: str = ""


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """A worker's reply.

    Attributes:
        draft: unvalidated: any values that a Draft can hold.
        length: context tokens that the worker holds now.
        busy: the worker was busy and did nothing.
        error: the reason if there is no draft.
    """

    draft: Draft
    length: int = 0
    busy: bool = False
    error: SuffixError | None = None


class WorkerChannel(ABC):
    """A request-reply channel. Used by one thread at a time; requests are processed on the channel's own.

    Call :meth:`start` first. A channel that failed stays failed: open another one.
    """

    def __init__(self, name: str) -> None:
        self._requests: queue.SimpleQueue[WorkerRequest | None] = queue.SimpleQueue()
        self._changed = AtomicCondition()
        self._pending = 0  # number of the request whose reply was not taken yet; 0 = none
        self._reply: WorkerReply | None = None
        #: why it failed; None while it works
        self.error: SuffixError | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def failed(self) -> bool:
        """Whether the channel has ended."""
        return self.error is not None

    @property
    def outstanding(self) -> bool:
        """Whether the last request has no reply yet."""
        with self._changed:
            return self._pending > 0 and self._reply is None

    def start(self) -> None:
        """Start the thread. Never blocks."""
        self._thread.start()

    def send(self, request: WorkerRequest) -> None:
        """Send a request; only when none is outstanding and the last reply was taken. Never blocks."""
        with self._changed:
            self._pending = request.number
            self._reply = None
        self._requests.put(request)

    def wait(self, seconds: float) -> bool:
        """Wait for the reply to the last request, up to ``seconds``; return whether it arrived."""
        with self._changed:
            self._changed.wait_for(lambda: self.failed or self._reply is not None, timeout=seconds)
            return self._reply is not None

    def take_reply(self) -> WorkerReply | None:
        """Return the reply to the last request if it has arrived, and clear it."""
        with self._changed:
            reply, self._reply = self._reply, None
            if reply is not None:
                self._pending = 0
            return reply

    def abandon(self) -> None:  # noqa: B027 - a worker of ours has the timeout and stops by itself
        """Give up the outstanding request, because the caller has the next one. Never blocks."""

    def end(self) -> None:
        """Signal the channel to end. Never blocks."""
        self._requests.put(None)
        self._abort()

    def close(self) -> None:
        """End the channel and its thread."""
        self.end()
        if self._thread.is_alive():
            self._thread.join(_JOIN_SECONDS)

    @abstractmethod
    def _serve(self) -> None:
        """Process requests and deliver replies until the next request is None. Raises SuffixError."""

    @abstractmethod
    def _abort(self) -> None:
        """Make :meth:`_serve` return soon. Any thread, at any time, more than once."""

    def _deliver(self, number: int, reply: WorkerReply) -> None:
        """Deliver the reply to a request; it is dropped if another request was sent since."""
        with self._changed:
            if number == self._pending:
                self._reply = reply
                self._changed.notify_all()

    def _fail(self, error: SuffixError) -> None:
        with self._changed:
            self.error = self.error or error
            self._changed.notify_all()

    def _run(self) -> None:
        error: SuffixError = ServiceUnavailableError("the channel to the draft worker has ended")
        try:
            self._serve()
        except SuffixError as err:
            error = err
        except Exception as err:  # a bug in here may cost drafts, never a generation
            error = SuffixError("the channel to a draft worker failed", got=repr(err)[:200])
        finally:
            self._fail(error)
