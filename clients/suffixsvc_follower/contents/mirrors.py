"""Live text of sessions of other processes, drafted from here as it is written.

A mirror is a native session that only writes: its text is in the namespace's index like that of a local
session. It is volatile. Text that the service does not send is missing in it:

    position    0 ...... 200   264 ...... 300   301        a session of the service
    piece                      context ...... | output     "at" = 200: context behind a gap
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from suffixsvc import core
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.index import NamespaceIndex
from suffixsvc.index.texts import next_writer
from suffixsvc.log_wire import live_tokens
from suffixsvc.types import TokenArray
from suffixsvc.v1 import watch_pb2 as pb


@dataclass(frozen=True, slots=True, eq=False)
class LivePiece:
    """Text of one session: context, then output.

    Attributes:
        session_id: id of the session.
        at: position of the first token in the session's text.
        context: int32[n], tokens that its model did not write.
        output: int32[n], tokens that it wrote.
        ended: the session is over, or retracted its output.
    """

    session_id: str
    at: int
    context: TokenArray
    output: TokenArray
    ended: bool = False

    @staticmethod
    def from_proto(message: pb.LivePiece) -> LivePiece:
        """A piece from the wire. ProtocolError: malformed."""
        return LivePiece(message.session_id, message.at, *live_tokens(message), message.ended)


@dataclass(slots=True, eq=False)
class _Mirror:
    """Text of one session; ``end`` is the position after it in the session's own text."""

    native: core.Session
    end: int


class Mirrors:
    """The mirrors of one namespace. Not thread-safe: the stream's thread calls it.

    Args:
        namespace: index that the texts are written to.
        limit_tokens: limit of the tokens of all mirrors; the oldest ones are dropped.

    Attributes:
        dropped: mirrors that were dropped because of the limit.
    """

    def __init__(self, namespace: NamespaceIndex, limit_tokens: int) -> None:
        self._namespace = namespace
        self._limit = limit_tokens
        self._mirrors: dict[str, _Mirror] = {}
        self._tokens = 0
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._mirrors)

    @property
    def tokens(self) -> int:
        """Tokens of all mirrors."""
        return self._tokens

    def ends(self) -> dict[str, int]:
        """The position after the text of each session, in the session's own text, by session id."""
        return {session_id: mirror.end for session_id, mirror in self._mirrors.items()}

    def apply(self, pieces: Iterable[LivePiece], *, reset: bool = False) -> None:
        """Append pieces to the mirrors of their sessions; parts that a mirror has are skipped.

        Args:
            reset: end all mirrors first.
        """
        if reset:
            self.clear()
        for piece in pieces:
            if piece.ended:
                self.end(piece.session_id)
            else:
                self._append(piece)

    def end(self, session_id: str) -> None:
        """Remove the text of a session. Nothing happens if there is none."""
        mirror = self._mirrors.pop(session_id, None)
        if mirror is not None:
            self._tokens -= len(mirror.native)
            mirror.native.retract()
            mirror.native.end()

    def clear(self) -> None:
        """Remove the text of all sessions."""
        for session_id in list(self._mirrors):
            self.end(session_id)

    def _append(self, piece: LivePiece) -> None:
        mirror = self._mirrors.get(piece.session_id)
        if mirror is not None and piece.at > mirror.end and not len(piece.context):
            # Output must not become adjacent to text that it does not follow.
            self.end(piece.session_id)
            mirror = None
        last = piece.at + len(piece.context) + len(piece.output)
        if last == piece.at:
            return
        if mirror is None:
            mirror = self._mirrors[piece.session_id] = _Mirror(self._new_session(), piece.at)
        skip = max(0, mirror.end - piece.at)
        context, output = piece.context[skip:], piece.output[max(0, skip - len(piece.context)) :]
        before = len(mirror.native)
        if len(context):
            mirror.native.append_context(context)
        if len(output):
            mirror.native.append(output, False)
        mirror.end = max(mirror.end, last)
        self._tokens += len(mirror.native) - before
        while self._tokens > self._limit:
            self.end(next(iter(self._mirrors)))
            self.dropped += 1

    def _new_session(self) -> core.Session:
        namespace = self._namespace
        return core.Session(namespace.index, [], namespace.learner, next_writer(), PROMPT_TAIL_TOKENS)
