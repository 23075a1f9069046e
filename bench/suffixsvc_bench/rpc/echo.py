"""Baseline of the benchmark of the wire: a gRPC server that replies with the requested number of bytes.

Threads, options and sockets are those of our service, so that a difference is the cost of our code.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from suffixsvc.config import Limits
from suffixsvc.runtime.server_lifecycle import SERVER_OPTIONS, report_ready, stop_signal
from suffixsvc.transport.tls import ServerTls

STREAM: Final = "/suffixsvc.bench.Echo/Stream"
UNARY: Final = "/suffixsvc.bench.Echo/Unary"
#: default of `suffixsvc serve`: streams and unary calls
THREADS: Final = 544
_SIZE_BYTES: Final = 4


def echo_request(request_bytes: int, reply_bytes: int) -> bytes:
    """A request of ``request_bytes`` for a reply of ``reply_bytes``."""
    return reply_bytes.to_bytes(_SIZE_BYTES, "little") + bytes(max(0, request_bytes - _SIZE_BYTES))


def echo_reply(request: bytes, _context: Any = None) -> bytes:
    """The reply of the requested size."""
    return bytes(int.from_bytes(request[:_SIZE_BYTES], "little"))


def _answers(requests: Iterator[bytes], _context: Any) -> Iterator[bytes]:
    for request in requests:
        yield echo_reply(request)


def serve_echo(ready_file: Path, addresses: Sequence[str], tls: ServerTls | None = None) -> None:
    """Serve until SIGTERM.

    Args:
        ready_file: written once the server listens, with the bound addresses.
        addresses: unix:PATH or HOST:0.
        tls: of TCP addresses; without it they are not encrypted.
    """
    most = Limits().max_message_bytes
    server = grpc.server(
        ThreadPoolExecutor(THREADS, thread_name_prefix="grpc"),
        maximum_concurrent_rpcs=THREADS,
        options=[
            *SERVER_OPTIONS,
            ("grpc.max_receive_message_length", most),
            ("grpc.max_send_message_length", most),
        ],
    )
    methods: dict[str, Any] = {
        STREAM.rpartition("/")[2]: grpc.stream_stream_rpc_method_handler(_answers),
        UNARY.rpartition("/")[2]: grpc.unary_unary_rpc_method_handler(echo_reply),
    }
    service = STREAM.split("/")[1]
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    bound = []
    for address in addresses:
        if tls is None or address.startswith("unix:"):
            port = server.add_insecure_port(address)
        else:
            port = server.add_secure_port(address, tls.credentials())
        bound.append(address if address.startswith("unix:") else f"{address.rpartition(':')[0]}:{port}")
    with stop_signal() as wait_for_stop:
        server.start()
        report_ready(ready_file, addresses=bound)
        wait_for_stop()
        server.stop(0).wait()


if __name__ == "__main__":
    ready, addresses, *files = sys.argv[1:]
    serve_echo(Path(ready), addresses.split(), ServerTls(*map(Path, files)) if files else None)
