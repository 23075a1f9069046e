"""Connections that end in time, whatever their clients do.

    connected ──> headers complete ──> response ──> idle ──> next headers ..
       └─ HEADER_SECONDS ─┘               │           └─ uvicorn's keep-alive, then HEADER_SECONDS
                          the system ends a connection whose data is not taken

uvicorn has no timer before the first response, nor from the first byte of a later request to the end of its
headers, and waits without limit until what it has written is taken.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

#: seconds for the headers of a request to arrive
HEADER_SECONDS: Final = 60.0


def end_stalled(listening: socket.socket, seconds: float) -> None:
    """Let the system end the connections of a socket when a client takes no data for ``seconds``.

    It also ends those that the server has closed with data to send. Connections inherit it; an idle one has
    nothing to send, and stays. Systems without this option (macOS) end them after a limit of their own.
    """
    option = getattr(socket, "TCP_USER_TIMEOUT", None)
    if option is not None:
        listening.setsockopt(socket.IPPROTO_TCP, option, round(seconds * 1000))


class TimedConnection(H11Protocol):
    """uvicorn's connection, closed unless the headers of a request arrive in time.

    From the end of a response to the next byte uvicorn's keep-alive timer runs instead.
    """

    _headers_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """Wait for headers."""
        super().connection_made(transport)
        self._time_headers()

    def data_received(self, data: bytes) -> None:
        """Wait for the rest of the headers, if they are incomplete."""
        super().data_received(data)
        self._time_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait for nothing."""
        self._stop()
        super().connection_lost(exc)

    def _time_headers(self) -> None:
        if self._in_request or self.transport.is_closing():
            self._stop()
        elif self._headers_timer is None:  # a byte now and then does not prolong it
            self._headers_timer = self.loop.call_later(HEADER_SECONDS, self._late)

    @property
    def _in_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _late(self) -> None:
        self._headers_timer = None
        if not self._in_request:  # else uvicorn has begun a request that had arrived before
            self.transport.abort()  # close() would wait for a client to take its last response

    def _stop(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None
