"""HTTP/2 frames written by hand, for connections that no client library would make (RFC 9113, RFC 7541)."""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from typing import Final, Self

__all__ = [
    "PREFACE",
    "Raw",
    "call_headers",
    "field",
    "frame",
    "grpc_message",
    "noise_frames",
    "settings",
]

PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PUSH, PING, GOAWAY, WINDOW_UPDATE, CONTINUATION = range(10)
END_STREAM, END_HEADERS = 0x1, 0x4
INITIAL_WINDOW_SIZE: Final = 4


def frame(kind: int, flags: int, stream: int, payload: bytes = b"", length: int | None = None) -> bytes:
    """A frame; ``length`` is what its header says, by default the truth."""
    size = len(payload) if length is None else length
    return (
        struct.pack(">I", size)[1:] + bytes([kind & 255, flags & 255]) + struct.pack(">I", stream) + payload
    )


def settings(**values: int) -> bytes:
    """SETTINGS of the given identifiers, as in ``i4=0``."""
    pairs = (struct.pack(">HI", int(name[1:]), value) for name, value in values.items())
    return frame(SETTINGS, 0, 0, b"".join(pairs))


def field(name: bytes, value: bytes) -> bytes:
    """A header field, literal without indexing and without Huffman codes."""
    return b"\0" + _text(name) + _text(value)


def _text(value: bytes) -> bytes:
    if len(value) < 127:
        return bytes([len(value)]) + value
    rest, parts = len(value) - 127, bytearray([127])
    while rest >= 128:
        parts.append(rest % 128 + 128)
        rest //= 128
    return bytes([*parts, rest]) + value


def call_headers(path: bytes, *more: tuple[bytes, bytes]) -> bytes:
    """The header block of a gRPC call."""
    fields: list[tuple[bytes, bytes]] = [
        (b":method", b"POST"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"localhost"),
        (b"te", b"trailers"),
        (b"content-type", b"application/grpc"),
        *more,
    ]
    return b"".join(field(*each) for each in fields)


def grpc_message(data: bytes, compressed: int = 0, length: int | None = None) -> bytes:
    """A message with gRPC's prefix; ``length`` is what the prefix says, by default the truth."""
    return struct.pack(">BI", compressed, len(data) if length is None else length) + data


_SIZES: Final = (0, 1, 3, 4, 5, 6, 8, 9, 16, 17, 255, 4000)
_STREAMS: Final = (0, 1, 1, 1, 2, 3, 3, 5, 2**31 - 1, 2**31 + 1)
_BROKEN_BLOCKS: Final = (
    b"\x80",  # index 0
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",  # an integer without end
    b"\x3f\xff\xff\xff\xff\x0f",  # a table of 4 GiB
    b"\x00\x85\xff\xff\xff\xff\xff\x01a",  # Huffman codes of nothing
    b"\x00\x7f\xff\xff\xff\x07",  # a name of 256 MiB
    b"\xbe" * 64,  # entries that the table does not have
    b"\x40\x01a\x7f\xff\xff\x03" + b"a" * 64,
)


def noise_frames(choice: random.Random, count: int, path: bytes) -> list[bytes]:
    """Frames that are malformed in one way or another; some belong to a call that was begun properly."""
    return [_noise(choice, path) for _ in range(count)]


def _noise(choice: random.Random, path: bytes) -> bytes:
    stream = choice.choice(_STREAMS)
    match choice.randrange(8):
        case 0:  # any header, any payload
            size = choice.choice(_SIZES)
            said = choice.choice((None, None, size + 1, 2**24 - 1, 0))
            return frame(
                choice.choice((*range(10), 10, 66, 255)),
                choice.randrange(256),
                stream,
                choice.randbytes(size),
                said,
            )
        case 1:
            return frame(
                HEADERS, choice.choice((4, 5, 0x24, 0x2C)), stream | 1, choice.choice(_BROKEN_BLOCKS)
            )
        case 2:  # a call whose fields are wrong
            wrong = choice.choice(
                (
                    (b":path", b"/other"),
                    (b"Upper", b"case"),
                    (b"grpc-timeout", b"99999999999H"),
                    (b"grpc-timeout", b"-1S"),
                    (b"grpc-encoding", b"gzip"),
                    (b"grpc-encoding", b"\xff"),
                    (b"x-bin", b"===not base64==="),
                    (b"authorization", b"Bearer " + b"x" * 9000),
                    (b"x-request-id", choice.randbytes(130)),
                    (b"content-length", b"-5"),
                    (b"connection", b"close"),
                    (b"suffixsvc-error-bin", choice.randbytes(64)),
                )
            )
            return frame(HEADERS, END_HEADERS, 1, call_headers(path, wrong)) + frame(
                DATA, END_STREAM, 1, grpc_message(choice.randbytes(20), compressed=choice.choice((0, 1)))
            )
        case 3:  # a call whose message is cut, too long, or compressed by nothing
            message = grpc_message(
                choice.randbytes(choice.choice(_SIZES)),
                compressed=choice.choice((0, 1, 7)),
                length=choice.choice((0, 1, 100, 2**31, 2**32 - 1)),
            )
            return frame(HEADERS, END_HEADERS, 3, call_headers(path)) + frame(
                DATA, choice.choice((0, END_STREAM)), 3, message
            )
        case 4:
            return frame(WINDOW_UPDATE, 0, stream, struct.pack(">I", choice.choice((0, 1, 2**31 - 1))))
        case 5:
            setting = choice.choice(((1, 0), (2, 7), (4, 2**31), (5, 1), (5, 2**31), (6, 0), (99, 1)))
            return frame(SETTINGS, choice.choice((0, 0, 1)), 0, struct.pack(">HI", *setting))
        case 6:
            return frame(CONTINUATION, choice.choice((0, 4)), stream, choice.randbytes(30))
        case _:  # a call that is begun and never finished
            return frame(HEADERS, 0, 5, call_headers(path)[: choice.randrange(1, 60)])


class Raw:
    """A TCP connection of bytes.

    Args:
        port: of 127.0.0.1.
        window: receive buffer in bytes; None: the system's.
    """

    def __init__(self, port: int, window: int | None = None) -> None:
        self.socket = socket.socket()
        if window is not None:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        self.socket.settimeout(30.0)
        self.socket.connect(("127.0.0.1", port))

    def send(self, *parts: bytes) -> bool:
        """Send; False if the other side has closed."""
        try:
            self.socket.sendall(b"".join(parts))
        except (BrokenPipeError, ConnectionResetError):
            return False
        return True

    def take(self, seconds: float) -> bytes:
        """Read what comes until the other side closes, or nothing came for ``seconds`` (0: do not wait)."""
        self.socket.settimeout(seconds)
        parts: list[bytes] = []
        with contextlib.suppress(TimeoutError, BlockingIOError, ConnectionResetError):
            while data := self.socket.recv(1 << 16):
                parts.append(data)
        return b"".join(parts)

    def close(self, *, reset: bool = False) -> None:
        """Close, by a TCP reset if wanted."""
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
