"""Adapter for TensorRT-LLM: an HTTP endpoint from which its APIDrafter gets drafts.

    python -m suffixsvc_adapters.trtllm_endpoint --listen 127.0.0.1:8089 --namespace acme/model

The drafter sends one request per sequence and step and waits for the reply, 10 s at most:

    POST /draft   {"prefix": [ids], "request_id": 7, "end_id": 2, "max_sequence_length": 2048, ...}
    200           {"draft_tokens": [ids]}

``prefix`` is all tokens so far. Other fields, which the configuration's ``template`` may add, are ignored
except "max_draft_tokens". A :class:`SessionTracker` finds the sequence; the request's id is a hint. The reply
to an invalid request is 400 with the reason; after a failure of the cache it is 200 without tokens.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import structlog

from suffixsvc.errors import InvalidInputError, ListenError, SuffixError
from suffixsvc.runtime.server_lifecycle import (
    remove_ready_file,
    report_ready,
    require_writable_ready_file,
    stop_signal,
)
from suffixsvc.transport.loopback import require_loopback
from suffixsvc.values import as_token_array
from suffixsvc_adapters.backends import AdapterSettings, open_tracker, read_settings
from suffixsvc_adapters.tracking.adapter_base import AdapterBase
from suffixsvc_adapters.tracking.session_tracker import SessionTracker
from suffixsvc_adapters.tracking.tracker_types import TrackerConfig

_log = structlog.get_logger(__name__)

#: limit of a request: a million tokens in decimal, with separators
MAX_BODY_BYTES: Final = 8 << 20
#: an idle connection is closed after this time
_IDLE_SECONDS: Final = 10.0
#: interval at which the listening thread checks whether it has to stop
_POLL_SECONDS: Final = 0.05
#: concurrent connections; TensorRT-LLM sends its requests one after the other
_MAX_CONNECTIONS: Final = 64
#: TensorRT-LLM pads every draft to its own max_draft_len, which is unknown here, and verifies that width
#: whatever is drafted
TRTLLM_CONFIG: Final = TrackerConfig(max_draft_tokens=32, verify_cost=0.0)


class DraftEndpoint(AdapterBase):
    """Answers draft requests over HTTP until it is closed.

    Args:
        tracker: source of the drafts; closed with the endpoint.
        host, port: where to listen; port 0 takes a free one. Only loopback addresses, unless
            ``insecure_network``: there is no authentication.

    Raises:
        ListenError: the address is in use, malformed, or reachable from other machines.
    """

    def __init__(
        self,
        tracker: SessionTracker,
        host: str = "127.0.0.1",
        port: int = 0,
        *,
        insecure_network: bool = False,
        max_connections: int = _MAX_CONNECTIONS,
    ) -> None:
        self.tracker: SessionTracker = tracker
        if not insecure_network:
            require_loopback(host, port, "read stored outputs", socket.AF_INET)
        try:
            self._server = _Server((host, port), tracker, max_connections)
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host}:{port}",
                expected="a free port of this machine",
                got=error.strerror or str(error),
                remedy="Stop what listens there or choose another port (0 takes a free one).",
            ) from None
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(_POLL_SECONDS,), name="suffixsvc-http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """URL for APIDrafter's ``endpoint``."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/draft"

    def close(self) -> None:
        """Stop serving and store all outputs. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        super().close()


class _Server(ThreadingHTTPServer):
    """A server with one thread per connection and a bounded number of connections."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], tracker: SessionTracker, max_connections: int) -> None:
        self.tracker = tracker
        self._free = threading.BoundedSemaphore(max_connections)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection, or close it if there are too many: a drafter without a reply has no draft."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection on its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a broken connection."""
        _log.debug("a connection broke", error=repr(sys.exc_info()[1])[:200])


class _Handler(BaseHTTPRequestHandler):
    """Handler of one connection's requests."""

    protocol_version = "HTTP/1.1"
    timeout = _IDLE_SECONDS
    disable_nagle_algorithm = True  # a small reply must not wait for an acknowledgement
    server: _Server

    def do_POST(self) -> None:
        """Reply to a draft request."""
        try:
            reply = {"draft_tokens": self._draft(self._read())}
        except _RefusedError as refused:
            self._answer(refused.status, {"error": str(refused)}, close=True)
        except SuffixError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        else:
            self._answer(HTTPStatus.OK, reply)

    def do_GET(self) -> None:
        """Reply to a health check."""
        if self.path.partition("?")[0] not in ("/", "/health", "/draft"):
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is /health and POST /draft"})
            return
        self._answer(HTTPStatus.OK, {"status": "ok", "stats": asdict(self.server.tracker.stats)})

    def _read(self) -> Any:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # a web page cannot send this type here without a CORS preflight
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "Content-Type must be application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "Content-Length must be set")
        if len(length) > 10 or int(length) > MAX_BODY_BYTES:
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must have at most {MAX_BODY_BYTES} bytes"
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the request ended early")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError("the request must be JSON", got=str(error)[:80]) from None

    def _draft(self, request: Any) -> list[int]:
        if not isinstance(request, dict):
            raise InvalidInputError("the request must be a JSON object", got=type(request).__name__)
        if not isinstance(request.get("prefix"), list):
            raise InvalidInputError('"prefix" must be a list of token ids', got=repr(request)[:80])
        tokens = as_token_array(request["prefix"], '"prefix"')
        end_id = _int_field(request, "end_id", -1)
        length = _int_field(request, "max_sequence_length", 0)
        limit = _int_field(request, "max_draft_tokens", 0)
        if length is not None:  # a step always emits one token of the model's own
            limit = min(
                length - len(tokens) - 1,
                self.server.tracker.config.max_draft_tokens if limit is None else limit,
            )
        request_id = request.get("request_id")
        draft = self.server.tracker.draft(
            tokens,
            hint=request_id if isinstance(request_id, (int, str)) else None,
            written=1,
            max_draft_tokens=limit,
            stop_before=frozenset() if end_id is None else frozenset({end_id}),
        )
        drafted: list[int] = draft.token_ids.tolist()
        return drafted

    def _answer(self, status: HTTPStatus, reply: dict[str, Any], *, close: bool = False) -> None:
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if close:  # the rest of the request was not read
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: a line per step would be too many."""


class _RefusedError(Exception):
    """A request that is refused before its body is read."""

    def __init__(self, status: HTTPStatus, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def _int_field(request: dict[str, Any], name: str, minimum: int) -> int | None:
    value = request.get(name)
    if value is not None and (type(value) is not int or value < minimum):
        raise InvalidInputError(f'"{name}" must be an int >= {minimum}', got=repr(value)[:80])
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """Run ``python -m suffixsvc_adapters.trtllm_endpoint``: serve until SIGTERM or Ctrl-C."""
    given = _parser().parse_args(arguments)
    try:
        host, port = _address(given.listen)
        require_writable_ready_file(given.ready_file)
        options = {name: value for name in ("target", "data", "namespace") if (value := getattr(given, name))}
        settings: AdapterSettings = read_settings(options)
        most = settings.max_draft_tokens or TRTLLM_CONFIG.max_draft_tokens
        with (
            stop_signal() as wait_for_stop,
            open_tracker(settings, replace(TRTLLM_CONFIG, max_draft_tokens=most)) as tracker,
            DraftEndpoint(tracker, host, port, insecure_network=given.insecure_network) as endpoint,
        ):
            _log.info("serving drafts", url=endpoint.url, namespace=settings.namespace)
            report_ready(given.ready_file, url=endpoint.url)
            try:
                wait_for_stop()
            finally:
                remove_ready_file(given.ready_file)
    except SuffixError as error:
        print(f"suffixsvc: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m suffixsvc_adapters.trtllm_endpoint",
        description="Serve drafts from a suffix cache to TensorRT-LLM's APIDrafter.",
        epilog="Variables SUFFIXSVC_ADAPTER_... set the options that are not given; see docs/adapters.md.",
    )
    parser.add_argument("--listen", default="127.0.0.1:8089", help="HOST:PORT (port 0 takes a free one)")
    parser.add_argument("--target", default="", help="unix:PATH or HOST:PORT of a suffixsvc service")
    parser.add_argument("--data", default="", help="a folder to store outputs in, instead of a service")
    parser.add_argument("--namespace", default="", help="one per model and group of readers")
    parser.add_argument(
        "--insecure-network",
        action="store_true",
        help="allow addresses that other machines can reach, without authentication or encryption",
    )
    parser.add_argument(
        "--ready-file", type=Path, help="JSON file, written once it serves and removed at the end"
    )
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise ListenError("the listen address must be HOST:PORT", got=repr(text)[:80])
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
