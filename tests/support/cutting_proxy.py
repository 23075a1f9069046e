"""A TCP proxy on loopback that cuts connections after a random number of bytes."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from random import Random
from typing import Self

__all__ = ["CuttingProxy"]


class CuttingProxy:
    """Forwards connections to an address, and cuts each of them: by a reset or an end, in either direction.

    Args:
        to: HOST:PORT.
        seed: of the numbers of bytes.
        most_bytes: of a connection, in both directions together.
    """

    def __init__(self, to: str, seed: object, most_bytes: int = 40_000) -> None:
        host, _, port = to.rpartition(":")
        self._to, self._rng, self._most = (host, int(port)), Random(str(seed)), most_bytes
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self.cutting = True
        self.cuts = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._to)
            except OSError:
                near.close()
                continue
            _Connection(self, near, far, self._rng.randrange(1, self._most), reset=self._rng.random() < 0.5)

    def count_cut(self) -> None:
        with self._lock:
            self.cuts += 1


class _Connection:
    """One connection: two threads, and the bytes that are left until it is cut."""

    def __init__(
        self, proxy: CuttingProxy, near: socket.socket, far: socket.socket, left: int, *, reset: bool
    ) -> None:
        self._proxy, self._sockets, self._left, self._reset = proxy, (near, far), left, reset
        self._lock = threading.Lock()
        self._ended = False
        for source, sink in ((near, far), (far, near)):
            threading.Thread(target=self._forward, args=(source, sink), daemon=True).start()

    def _forward(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                with self._lock:
                    sent = len(data) if not self._proxy.cutting else min(len(data), self._left)
                    self._left -= sent
                sink.sendall(data[:sent])
                if sent < len(data):
                    self._end(cut=True)
                    return
        self._end(cut=False)

    def _end(self, *, cut: bool) -> None:
        with self._lock:
            if self._ended:
                return
            self._ended = True
        if cut:
            self._proxy.count_cut()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                if cut and self._reset:
                    each.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    each.shutdown(socket.SHUT_RD)  # the other thread lets go of it
                else:
                    each.shutdown(socket.SHUT_RDWR)
            with contextlib.suppress(OSError):
                each.close()
