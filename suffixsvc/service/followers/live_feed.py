"""Live text for followers: one thread polls the live sessions and hands what they wrote to all followers.

Sessions do nothing for it but tell the thread that they wrote. A message is made once per namespace and tick,
and shared by the followers of the namespace but those of which sessions wrote: theirs leaves out what they
have. The next tick follows after a window that is long enough for the
fan-out to take a twentieth of a core, and at most MAX_WINDOW_SECONDS.

    tick        sessions whose length changed ──> pieces ──> one message ──> the queue of every follower
    subscribe   present text, in place of a queue that is dropped
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import structlog

from suffixsvc.core import WriteSignal
from suffixsvc.index.live_text import TextPiece
from suffixsvc.service.followers.replies import ReplyWriter
from suffixsvc.service.sessions.table import SessionTable

if TYPE_CHECKING:
    from suffixsvc.engine import Session

log = structlog.get_logger(__name__)

MIN_WINDOW_SECONDS: Final = 0.002
#: also the time until sessions are looked at again that wrote nothing: they may have ended
MAX_WINDOW_SECONDS: Final = 0.02
_IDLE_SECONDS: Final = 1.0
#: a window is this many times the cost of the last fan-out: 5 % of a core
_WINDOW_PER_COST: Final = 20
#: estimated time of gRPC's threads for one message to one follower
_SENDING_SECONDS: Final = 300e-6
#: live text that waits for a follower; beyond it, all of it is dropped
MAX_QUEUED_BYTES: Final = 1 << 20
#: output tokens of the live sessions of a namespace that a new subscriber gets; beyond it, the ends of each
_PRESENT_TOKENS: Final = 2 << 20


class Subscriber:
    """The queue of live text for one follower. Thread-safe.

    Args:
        wake: called when there is something to take.
        on_lost: called when live text was dropped.
        follower_id: of the follower, which has the text of its own sessions.
    """

    def __init__(self, wake: Callable[[], None], on_lost: Callable[[], None], follower_id: str) -> None:
        self._wake, self._on_lost = wake, on_lost
        self.follower_id = follower_id
        self._lock = threading.Lock()
        self._queue: list[tuple[str, bytes]] = []
        self._bytes = 0
        #: live text was dropped: the follower has to begin again
        self.lost = False

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait to be taken."""
        return self._bytes

    def offer(self, path: str, messages: list[bytes]) -> None:
        """Queue messages of a namespace, or drop all that waits where they are too many."""
        size = sum(map(len, messages))
        with self._lock:
            if self.lost:
                return
            fits = self._bytes + size <= MAX_QUEUED_BYTES
            if fits:
                self._queue += [(path, message) for message in messages]
                self._bytes += size
        if fits:
            self._wake()
        else:
            self.lose()

    def lose(self) -> None:
        """Drop all that is queued, and queue nothing more before :meth:`begin_again`."""
        with self._lock:
            before, self.lost = self.lost, True
            self._queue, self._bytes = [], 0
        if not before:
            self._on_lost()
            self._wake()

    def take(self) -> list[tuple[str, bytes]]:
        """Take what is queued: namespaces and messages."""
        with self._lock:
            taken, self._queue, self._bytes = self._queue, [], 0
            return taken

    def drop(self, path: str) -> None:
        """Drop what is queued of a namespace."""
        with self._lock:
            self._queue = [each for each in self._queue if each[0] != path]
            self._bytes = sum(len(message) for _, message in self._queue)

    def begin_again(self) -> None:
        """Queue live text again, after :attr:`lost`; every namespace is subscribed anew."""
        with self._lock:
            self.lost = False


@dataclass(slots=True, eq=False)
class _Progress:
    """What the subscribers of a namespace have of one session."""

    session: Session
    #: the follower that has its text; "": none
    follower_id: str = ""
    #: length of its text at the last look
    length: int = 0
    #: end of the last piece; 0: no piece was sent
    end: int = 0
    #: its output was retracted
    retracted: bool = False


class _Change(NamedTuple):
    """What a session wrote; None: it is over, or retracted its output."""

    session_id: str
    piece: TextPiece | None
    #: the follower that has it already; "": none
    follower_id: str


#: sessions by id, and the ids of the followers that have their text
_Live: TypeAlias = dict[str, tuple["Session", str]]


@dataclass(slots=True, eq=False)
class _Namespace:
    subscribers: list[Subscriber] = field(default_factory=list)
    sessions: dict[str, _Progress] = field(default_factory=dict)


class LiveFeed:
    """The live text of one service's sessions. Thread-safe.

    Args:
        sessions: the live sessions.
        writer: makes the messages.
        written: is told when sessions write tokens.
    """

    def __init__(self, sessions: SessionTable, writer: ReplyWriter, written: WriteSignal) -> None:
        self._table, self._writer, self._written = sessions, writer, written
        self._lock = threading.Lock()
        self._namespaces: dict[str, _Namespace] = {}
        #: of these, those with a session that subscribers know
        self._active: set[str] = set()
        self._subscribed = threading.Event()
        self._closing = threading.Event()

    # ------------------------------------------------------------------------------------ subscriptions

    def subscribe(self, subscriber: Subscriber, path: str, *, reset: bool) -> list[bytes]:
        """Subscribe to a namespace; the messages of its present text, which come before those of the queue.

        Args:
            reset: the follower may have live text of the namespace, which it has to discard.
        """
        with self._lock:
            namespace = self._namespaces.setdefault(path, _Namespace())
            # what was written since the last tick: the others get it now, and the present text includes it
            if namespace.subscribers:
                self._hand_out(path, namespace, self._live_of(path))
            else:
                for _ in _changes(namespace, self._live_of(path)):
                    pass
                self._note_active(path, namespace)
            subscriber.drop(path)
            if subscriber not in namespace.subscribers:
                namespace.subscribers.append(subscriber)
            messages = self._messages(path, _present(namespace), subscriber.follower_id, reset=reset)
            self._subscribed.set()
            return messages

    def unsubscribe(self, subscriber: Subscriber, path: str) -> None:
        """End a subscription; what is queued of it is dropped."""
        with self._lock:
            self._unsubscribe(subscriber, path)
            subscriber.drop(path)

    def leave(self, subscriber: Subscriber) -> None:
        """End all subscriptions of a follower."""
        with self._lock:
            for path in list(self._namespaces):
                self._unsubscribe(subscriber, path)

    def _unsubscribe(self, subscriber: Subscriber, path: str) -> None:
        namespace = self._namespaces.get(path)
        if namespace is None or subscriber not in namespace.subscribers:
            return
        namespace.subscribers.remove(subscriber)
        if not namespace.subscribers:
            del self._namespaces[path]
            self._active.discard(path)
            if not self._namespaces:
                self._subscribed.clear()

    # ------------------------------------------------------------------------------------------- ticks

    def run_window(self) -> None:
        """Wait until something is written, tick, and wait for the rest of the window.

        Without subscribers, wait for one, at most a second.

        The work of a background task whose period is MIN_WINDOW_SECONDS.
        """
        if not self._subscribed.wait(_IDLE_SECONDS) or self._closing.is_set():
            return
        self._written.wait(MAX_WINDOW_SECONDS if self._active else _IDLE_SECONDS)
        began = time.thread_time()
        try:
            sent = self.tick()
        except BaseException:
            self._begin_again()
            raise
        cost = time.thread_time() - began + sent * _SENDING_SECONDS
        self._closing.wait(min(MAX_WINDOW_SECONDS, _WINDOW_PER_COST * cost) - MIN_WINDOW_SECONDS)

    def close(self) -> None:
        """End the present and all later calls of :meth:`run_window`."""
        self._closing.set()
        self._subscribed.set()
        self._written.notify()

    def tick(self) -> int:
        """Hand out what was written since the last tick; the number of messages to followers."""
        with self._lock:
            live: dict[str, _Live] = {path: {} for path in self._active}
            for entry in self._table.entries():
                path, session = entry.identity[0], entry.session
                if session is not None and path in self._namespaces:
                    live.setdefault(path, {})[entry.name.stored] = session, entry.follower
            return sum(
                self._hand_out(path, self._namespaces[path], sessions) for path, sessions in live.items()
            )

    def _live_of(self, path: str) -> _Live:
        return {
            entry.name.stored: (session, entry.follower)
            for entry in self._table.entries()
            if entry.identity[0] == path and (session := entry.session) is not None
        }

    def _hand_out(self, path: str, namespace: _Namespace, live: _Live) -> int:
        changes = list(_changes(namespace, live))
        self._note_active(path, namespace)
        if not changes:
            return 0
        writers = {change.follower_id for change in changes}
        shared: list[bytes] | None = None
        sent = 0
        for subscriber in namespace.subscribers:
            if subscriber.follower_id in writers:
                messages = self._messages(path, changes, subscriber.follower_id)
            else:
                messages = shared = self._messages(path, changes, "") if shared is None else shared
            if messages:
                subscriber.offer(path, messages)
                sent += len(messages)
        return sent

    def _messages(
        self, path: str, changes: Iterable[_Change], follower_id: str, *, reset: bool = False
    ) -> list[bytes]:
        """Messages of the changes that a follower does not have; "": of all."""
        pieces = (
            (change.session_id, change.piece)
            for change in changes
            if not follower_id or change.follower_id != follower_id
        )
        return self._writer.live(path, pieces, reset=reset)

    def _note_active(self, path: str, namespace: _Namespace) -> None:
        if namespace.sessions:
            self._active.add(path)
        else:
            self._active.discard(path)

    def _begin_again(self) -> None:
        """After a failure within a tick: subscribers may have missed something."""
        with self._lock:
            for namespace in self._namespaces.values():
                for subscriber in namespace.subscribers:
                    subscriber.lose()


def _changes(namespace: _Namespace, live: _Live) -> Iterator[_Change]:
    """Yield what changed in the sessions of a namespace, and record it."""
    known = namespace.sessions
    for session_id, progress in list(known.items()):
        session, _ = live.get(session_id, (None, ""))
        # the store has decided on the output of a closed session before its live text is discarded
        if session is progress.session or (session is None and not progress.session.settled):
            continue
        del known[session_id]
        if progress.end and not progress.retracted:
            yield _Change(session_id, None, progress.follower_id)
    for session_id, (session, follower_id) in live.items():
        progress = known.get(session_id) or known.setdefault(session_id, _Progress(session, follower_id))
        if progress.retracted:
            continue
        if not session.visible:
            progress.retracted = True
            if progress.end:
                yield _Change(session_id, None, progress.follower_id)
            continue
        length = session.length
        if length == progress.length:
            continue
        progress.length = length
        for piece in session.live_pieces(progress.end, length):
            progress.end = piece.end
            yield _Change(session_id, piece, progress.follower_id)


def _present(namespace: _Namespace) -> Iterator[_Change]:
    """Yield the text of the sessions of a namespace as far as subscribers have it."""
    shown = {key: each for key, each in namespace.sessions.items() if each.end and not each.retracted}
    most = _PRESENT_TOKENS // max(1, len(shown))
    for session_id, progress in shown.items():
        first = max(0, progress.end - most)
        for piece in progress.session.live_pieces(0, progress.end, first=first):
            yield _Change(session_id, piece, progress.follower_id)
