"""`suffixsvc health`: exit code 0 if a server serves, 1 if not."""

from __future__ import annotations

import http.server
import threading
from collections.abc import Iterator
from concurrent import futures
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2_grpc

from suffixsvc import SuffixCache
from suffixsvc.service.calls.health import HealthServicer
from suffixsvc.service.server import DURABILITY_NAME
from support.command_line import run_verb
from support.serving import ServeProcess, serving, socket_dir


def asked(*arguments: str) -> tuple[int, str]:
    run = run_verb("health", *arguments)
    assert run.stderr == ""
    return run.returncode, run.stdout.strip()


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def test_a_service_that_serves_and_one_that_is_gone(folder: Path) -> None:
    with ServeProcess(folder) as serve:
        serve.start()
        assert asked(serve.address) == (0, "serving")
        assert asked(serve.address, "--durability") == (0, "serving")
        serve.kill()
        code, said = asked(serve.address)
        assert code == 1
        assert said.startswith("not reachable: ")


def test_the_address_comes_from_the_environment_of_the_service(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with SuffixCache() as cache, serving(cache, "127.0.0.1:0") as (_, address):
        monkeypatch.setenv("SUFFIXSVC_SERVE_LISTEN", f"{address} unix:{folder}/other.sock")
        assert asked() == (0, "serving")
    assert asked()[0] == 1


@contextmanager
def health_service(address: str) -> Iterator[HealthServicer]:
    """The health service of a server that has nothing else."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    servicer = HealthServicer()
    health_pb2_grpc.add_HealthServicer_to_server(servicer, server)
    server.add_insecure_port(address)
    server.start()
    try:
        yield servicer
    finally:
        server.stop(None).wait()


def test_a_service_that_drains_or_cannot_store(folder: Path) -> None:
    address = f"unix:{folder}/s.sock"
    with health_service(address) as servicer:
        servicer.set("", serving=True)
        servicer.set(DURABILITY_NAME, serving=False)
        assert asked(address) == (0, "serving")
        assert asked(address, "--durability") == (1, f"not serving: {DURABILITY_NAME} is NOT_SERVING")
        servicer.set("", serving=False)
        assert asked(address) == (1, "not serving: the service is NOT_SERVING")


def test_a_server_over_http() -> None:
    codes = [200, 503]

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(codes.pop(0) if self.path == "/health" else 404)
            self.end_headers()
            self.wfile.write(b'{"status": "stopping"}')

        def log_message(self, format: str, *args: object) -> None:
            """No lines on stderr."""

    with http.server.HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert asked(url) == (0, "serving")
        assert asked(f"{url}/") == (1, 'not serving: {"status": "stopping"}')
        server.shutdown()
    code, said = asked(url)
    assert code == 1
    assert "refused" in said


@pytest.mark.parametrize("address", ["nowhere", "http://[", "http://127.0.0.1:x"])
def test_an_invalid_address(address: str) -> None:
    run = run_verb("health", address)
    assert run.returncode == 2
    assert "must be" in run.stderr
