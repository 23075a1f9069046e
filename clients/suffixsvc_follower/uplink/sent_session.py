"""A local session and its session at the service, to which the text is sent."""

from __future__ import annotations

import threading

from suffixsvc import core
from suffixsvc.types import OutputId
from suffixsvc_client import ClientSession
from suffixsvc_client.protocol.session_values import Phase
from suffixsvc_follower.uplink.text_reader import pieces_from


class SentSession:
    """Records the text of a local session for its session at the service.

    Args:
        native: the local session.
        remote: the session at the service, opened with the text so far.

    Attributes:
        lock: held around every call but those of properties.
        closing: a close was begun, which sends the text from then on.
    """

    def __init__(self, native: core.Session, remote: ClientSession) -> None:
        self._native = native
        self.remote = remote
        self._recorded = len(native)
        self.lock = threading.Lock()
        self.closing = False

    def __len__(self) -> int:
        return len(self._native)

    @property
    def session_id(self) -> str:
        """The id at the service; "" while the service has not opened it."""
        return self.remote.verbs.state.session_id

    @property
    def has_news(self) -> bool:
        """Whether tokens were written since the last call of :meth:`record`."""
        return len(self._native) != self._recorded

    @property
    def unacknowledged(self) -> int:
        """Number of tokens that the service has not acknowledged."""
        return max(0, len(self._native) - self._recorded) + self.remote.verbs.state.unacknowledged

    @property
    def arrived(self) -> bool:
        """Whether the service has acknowledged what was recorded."""
        return self.remote.verbs.state.acknowledged

    @property
    def live(self) -> bool:
        """Whether the service has opened the session, and has not lost it since as far as is known."""
        return self.remote.verbs.state.phase is Phase.LIVE

    def record(self) -> bool:
        """Record what was written since the last call, to be sent with the next step; whether there was
        anything."""
        end, state = len(self._native), self.remote.verbs.state
        if end == self._recorded:
            return False
        for piece in pieces_from(self._native, self._recorded, end):
            if piece.output:
                state.record_step(piece.tokens, 0, at=piece.at)
            else:
                state.record_context(piece.tokens)
            self._recorded = piece.at + len(piece.tokens)
        return True

    def close(self, *, commit: bool, incomplete: bool = False) -> OutputId | None:
        """Send the rest and close the session at the service.

        Raises:
            What ``ClientSession.close`` raises; it can be closed again.
        """
        if commit:
            self.record()
        return self.remote.close(commit, incomplete=incomplete)
