"""TensorRT-LLM: the HTTP endpoint that its APIDrafter asks for drafts.

    python -m suffixsvc_driver.adapters.trtllm_endpoint --listen 127.0.0.1:8089 --namespace acme/model

The drafter posts a request a sequence a step and waits for the answer (10 s at most, then it has none):

    POST /draft   {"prefix": [ids], "request_id": 7, "end_id": 2, "max_sequence_length": 2048, ...}
    200           {"draft_tokens": [ids]}

``prefix`` is all tokens so far. What else its configuration's ``template`` adds is ignored, but for
"max_draft_tokens". Which sequence it is, a :class:`SessionTracker` finds out; the request's id is a hint. A
request that makes no sense gets 400 and says why; a cache that fails gets 200 and no tokens.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import socket
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import structlog

from suffixsvc.errors import InvalidInputError, ListenError, SuffixError
from suffixsvc.lifecycle import announce_ready, require_ready_file, stop_signal, withdraw_ready
from suffixsvc.values import as_token_array
from suffixsvc_driver.adapters.backends import AdapterSettings, open_tracker, read_settings
from suffixsvc_driver.adapters.session_tracker import SessionTracker
from suffixsvc_driver.adapters.tracker_types import TrackerConfig

__all__ = ["TRTLLM_CONFIG", "DraftEndpoint", "main"]

_log = structlog.get_logger(__name__)

#: of a request: a million tokens in decimal and what stands around them
MAX_BODY_BYTES: Final = 8 << 20
#: a connection that says nothing for so long is closed
_PATIENCE_SECONDS: Final = 10.0
#: how soon the listening thread notices that it shall stop
_LOOK_UP_SECONDS: Final = 0.05
#: connections at a time; TensorRT-LLM asks for one request after the other
_MAX_CONNECTIONS: Final = 64
#: TensorRT-LLM pads every draft to its own max_draft_len: what is verified is as wide whatever is drafted
TRTLLM_CONFIG: Final = TrackerConfig(max_draft_tokens=32, verify_cost=0.0)


class DraftEndpoint:
    """Answers draft requests over HTTP until it is closed.

    Args:
        tracker: what drafts; closed with the endpoint.
        host, port: where to listen; 0 takes a free port. Only addresses of this machine, unless
            ``insecure_network``: there is no authentication.

    Raises:
        ListenError: the address is taken, is none, or can be reached by others.
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
        self.tracker = tracker
        if not insecure_network:
            _require_loopback(host, port)
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
            target=self._server.serve_forever, args=(_LOOK_UP_SECONDS,), name="suffixsvc-http", daemon=True
        )
        self._thread.start()

    @property
    def url(self) -> str:
        """What to write into APIDrafter's ``endpoint``."""
        host, port = self._server.server_address[:2]
        return f"http://{host!s}:{port}/draft"

    def close(self) -> None:
        """Stop answering, keep what was written. Idempotent."""
        self._server.shutdown()
        self._server.server_close()
        self.tracker.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Server(ThreadingHTTPServer):
    """A thread a connection, a bounded number of them."""

    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], tracker: SessionTracker, max_connections: int) -> None:
        self.tracker = tracker
        self._free = threading.BoundedSemaphore(max_connections)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)  # a drafter that hears nothing goes on without a draft
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._free.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is its caller's affair."""
        _log.debug("a connection broke", error=repr(sys.exc_info()[1])[:200])


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = _PATIENCE_SECONDS
    disable_nagle_algorithm = True  # a small answer must not wait for an acknowledgement
    server: _Server

    def do_POST(self) -> None:
        try:
            reply = {"draft_tokens": self._draft(self._read())}
        except _RefusedError as refused:
            self._answer(refused.status, {"error": str(refused)}, close=True)
        except SuffixError as error:
            self._answer(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        else:
            self._answer(HTTPStatus.OK, reply)

    def do_GET(self) -> None:
        """How it is."""
        if self.path.partition("?")[0] not in ("/", "/health", "/draft"):
            self._answer(HTTPStatus.NOT_FOUND, {"error": "there is /health and POST /draft"})
            return
        self._answer(HTTPStatus.OK, {"status": "ok", "stats": asdict(self.server.tracker.stats)})

    def _read(self) -> Any:
        kind = self.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # which a page in a browser cannot send here without asking first
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "a request is application/json")
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdigit():
            raise _RefusedError(HTTPStatus.LENGTH_REQUIRED, "a request needs a Content-Length")
        if len(length) > 10 or int(length) > MAX_BODY_BYTES:
            raise _RefusedError(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"a request has at most {MAX_BODY_BYTES} bytes"
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "the request ended early")
        try:
            return json.loads(body)
        except (ValueError, RecursionError) as error:
            raise InvalidInputError("the request is no JSON", got=str(error)[:80]) from None

    def _draft(self, asked: Any) -> list[int]:
        if not isinstance(asked, dict):
            raise InvalidInputError(
                "the request is no object", expected="a JSON object", got=type(asked).__name__
            )
        if not isinstance(asked.get("prefix"), list):
            raise InvalidInputError(
                '"prefix" is missing', expected="a list of token ids", got=repr(asked)[:80]
            )
        tokens = as_token_array(asked["prefix"], '"prefix"')
        end_id = _whole(asked, "end_id", None, -1)
        length = _whole(asked, "max_sequence_length", None, 0)
        most = _whole(asked, "max_draft_tokens", None, 0)
        if length is not None:  # one token is always the model's own
            most = min(
                length - len(tokens) - 1,
                self.server.tracker.config.max_draft_tokens if most is None else most,
            )
        draft = self.server.tracker.draft(
            tokens,
            hint=_hint(asked.get("request_id")),
            written=1,
            max_draft_tokens=most,
            stop_before=frozenset() if end_id is None else frozenset({end_id}),
        )
        drafted: list[int] = draft.token_ids.tolist()
        return drafted

    def _answer(self, status: HTTPStatus, reply: dict[str, Any], *, close: bool = False) -> None:
        body = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if close:  # what is left of the request was not read
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """A line a step would be too many."""


class _RefusedError(Exception):
    def __init__(self, status: HTTPStatus, why: str) -> None:
        super().__init__(why)
        self.status = status


def _whole(asked: dict[str, Any], name: str, default: int | None, least: int) -> int | None:
    value = asked.get(name)
    if value is None:
        return default
    if type(value) is not int or value < least:
        raise InvalidInputError(
            f'"{name}" makes no sense', expected=f"an int >= {least}", got=repr(value)[:80]
        )
    return value


def _hint(request_id: Any) -> Any:
    return request_id if isinstance(request_id, (int, str)) else None


def _require_loopback(host: str, port: int) -> None:
    try:
        found = socket.getaddrinfo(host, port, family=socket.AF_INET, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ListenError(
            f"cannot listen on {host}:{port}", expected="a host of this machine", got=str(error)[:200]
        ) from None
    for *_, address in found:
        if not ipaddress.ip_address(address[0]).is_loopback:
            raise ListenError(
                f"refusing to listen on {host}:{port}: whoever reaches it could read what was written",
                expected="a loopback address such as 127.0.0.1",
                got=str(address[0]),
                remedy="Say --insecure-network if the network is trusted.",
            )


def main(arguments: Sequence[str] | None = None) -> int:
    """``python -m suffixsvc_driver.adapters.trtllm_endpoint``: serve until SIGTERM or Ctrl-C."""
    given = _parser().parse_args(arguments)
    try:
        host, port = _address(given.listen)
        require_ready_file(given.ready_file)
        own = {name: value for name in ("target", "data", "namespace") if (value := getattr(given, name))}
        settings: AdapterSettings = read_settings(own)
        with (
            stop_signal() as wait_for_stop,
            open_tracker(settings, TRTLLM_CONFIG) as tracker,
            DraftEndpoint(tracker, host, port, insecure_network=given.insecure_network) as endpoint,
        ):
            _log.info("answering draft requests", url=endpoint.url, namespace=settings.namespace)
            announce_ready(given.ready_file, url=endpoint.url)
            try:
                wait_for_stop()
            finally:
                withdraw_ready(given.ready_file)
    except SuffixError as error:
        print(f"suffixsvc: {error}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m suffixsvc_driver.adapters.trtllm_endpoint",
        description="Answer the draft requests of TensorRT-LLM's APIDrafter from a suffix cache.",
        epilog="Variables SUFFIXSVC_ADAPTER_... say what is not said here; see docs/adapters.md.",
    )
    parser.add_argument("--listen", default="127.0.0.1:8089", help="HOST:PORT (port 0 takes a free one)")
    parser.add_argument("--target", default="", help="unix:PATH or HOST:PORT of a suffixsvc service")
    parser.add_argument("--data", default="", help="a folder to keep outputs in, instead of a service")
    parser.add_argument("--namespace", default="", help="one per model and circle of readers")
    parser.add_argument(
        "--insecure-network",
        action="store_true",
        help="allow addresses that other machines can reach, without authentication or encryption",
    )
    parser.add_argument(
        "--ready-file", type=Path, help="written once it answers, as JSON; removed at the end"
    )
    return parser


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 65536):
        raise ListenError("not an address to listen on", expected="HOST:PORT", got=repr(text)[:80])
    return host, int(port)


if __name__ == "__main__":
    sys.exit(main())
