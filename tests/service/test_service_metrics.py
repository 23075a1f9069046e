"""`suffixsvc serve --metrics`: what is scraped is what clients did, bounded in size, and read by GET only."""

from __future__ import annotations

import http.client
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.control import AccessControl
from suffixsvc.errors import ListenError
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.metrics import http_server
from suffixsvc.service.metrics.collector import service_registry
from suffixsvc.service.metrics.http_server import MetricsServer, metrics_address
from suffixsvc.service.metrics.namespace_series import OTHER
from suffixsvc_client import ClientConfig, SuffixClient
from support.scraping import Scrape, address_of, request
from support.serving import PATIENCE_S, ServeProcess, eventually, socket_dir

PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)
TEXT = list(range(100, 160))


@pytest.fixture
def folder() -> Iterator[Path]:
    with socket_dir() as folder:
        yield folder


def test_metrics_of_a_service(folder: Path) -> None:
    with ServeProcess(folder, "--metrics", "127.0.0.1:0").start() as serve:
        address = address_of(serve)
        empty = Scrape(address)
        assert empty("namespaces") == 0
        with SuffixClient(serve.address, PATIENT) as client:
            namespace = client.namespace("acme/sql")
            namespace.add_output(TEXT)
            session = namespace.open_session(TEXT[:8])
            drafted = session.step(TEXT[8:9])
            session.step([*drafted.token_ids.tolist(), 7])
            other = client.namespace("acme/json").open_session([1, 2])
            assert not len(other.step([3]))
            stats = client.stats()
            found = Scrape(address)
        assert found("spec_decode_num_steps_total", namespace="acme/sql") == 2
        assert found("spec_decode_num_steps_total") == stats.num_steps == 3
        assert found("spec_decode_num_drafts_total") == stats.num_drafts >= 1
        assert found("spec_decode_num_draft_tokens_total") == stats.num_draft_tokens
        assert found("spec_decode_num_accepted_tokens_total") == len(drafted)
        assert found("spec_decode_num_accepted_tokens_by_source_total", source="suffix") == len(drafted)
        assert found("spec_decode_num_misses_total", reason="no_context", namespace="acme/json") == 1
        assert found("spec_decode_num_misses_total") == stats.num_steps - stats.num_drafts
        assert found("spec_decode_expected_tokens_total") == pytest.approx(stats.expected_tokens)
        assert found("spec_decode_verify_steps_total") == pytest.approx(stats.verify_steps)
        assert found("spec_decode_avoided_seconds_total") == pytest.approx(stats.avoided_seconds)
        assert stats.avoided_seconds > 0
        assert found("namespaces") == 2
        assert found("outputs", namespace="acme/sql") == 1
        assert found("output_tokens") == len(TEXT)
        assert found("hot_tokens") + found("segment_tokens") == len(TEXT)
        assert found("sessions") == 2
        assert found("last_lsn") > 10**15
        assert found("store_failing") == found("store_queue_operations") == found("lost_sessions_total") == 0
        assert found("threads") > 5
        assert found.values("task") >= {"evict", "maintenance", "live-text", "expire-sessions"}
        assert found("task_alive", task="evict") == 1
        process = {
            sample.name: sample.value for sample in found.samples if sample.name.startswith("process_")
        }
        assert process["process_resident_memory_bytes"] > 1 << 20
        assert process["process_open_fds"] > 5
        assert serve.terminate() == 0
    with pytest.raises(OSError, match="refused"):
        request(address)


def test_series_are_bounded(folder: Path) -> None:
    options = ("--metrics", "127.0.0.1:0", "--metrics-namespaces", "3")
    with ServeProcess(folder, *options).start() as serve, SuffixClient(serve.address, PATIENT) as client:
        for number in range(9):
            namespace = client.namespace(f"n/{number}")
            namespace.add_output(TEXT)
            session = namespace.open_session([1, 2, 3])
            for token in range(number + 1):
                session.step([token])
            session.close(commit=False)
        found = Scrape(address_of(serve))
        assert found.values("namespace") == {"n/6", "n/7", "n/8", OTHER}
        assert found("spec_decode_num_steps_total", namespace=OTHER) == sum(range(1, 7))
        assert found("spec_decode_num_steps_total") == sum(range(1, 10))
        assert found("outputs", namespace=OTHER) == 6
        assert found("namespaces") == 9


def test_reuse_and_eviction_are_measured(folder: Path) -> None:
    policies = folder / "policies.toml"
    policies.write_text('[namespaces."full"]\nmax_bytes = 200_000\n')
    options = ("--metrics", "127.0.0.1:0", "--policies", str(policies))
    constants = {"suffixsvc.service.server.LONGEST_EXPIRY_PERIOD_SECONDS": 0.05}
    with (
        ServeProcess(folder, *options, constants=constants).start() as serve,
        SuffixClient(serve.address, PATIENT) as client,
    ):
        address = address_of(serve)
        free = client.namespace("free")
        began = time.monotonic()
        free.add_output(TEXT)
        assert len(free.open_session(TEXT[:8]).step(TEXT[8:9]))
        eventually(lambda: Scrape(address)("reuse_age_seconds_count") >= 1, "the use is noted")
        found = Scrape(address)
        assert 0 < found("reuse_age_seconds_sum") <= time.monotonic() - began
        assert found("idle_before_evict_seconds_count") == 0
        full = client.namespace("full")
        for seed in range(100):
            full.add_output([5000 + 200 * seed + k for k in range(200)])
        eventually(lambda: Scrape(address)("evicted_outputs_total", namespace="full") > 0, "outputs go")

        def agree() -> bool:
            """Evictions go on, also between the parts of one reply."""
            found = Scrape(address)
            evicted = found("evicted_outputs_total")
            counted = found("idle_before_evict_seconds_count")
            return evicted == counted == found("idle_before_evict_seconds_bucket", le="+Inf")

        eventually(agree, "each is counted once")


@pytest.fixture
def server(cache: SuffixCache, handlers: Handlers) -> Iterator[MetricsServer]:
    with MetricsServer(
        service_registry(cache, handlers), metrics_address("127.0.0.1:0"), AccessControl()
    ) as server:
        yield server


def test_only_get_of_metrics_is_answered(server: MetricsServer) -> None:
    assert request(server.address)[0] == 200
    assert request(server.address, path="/metrics?name[]=suffixsvc_namespaces")[0] == 200
    for path in ("/", "/metrics/", "/favicon.ico", "/../metrics", "/metrics/x"):
        assert request(server.address, path=path)[0] == 404, path
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "HEAD"):
        status, _, headers = request(server.address, method)
        assert (status, headers["Allow"]) == (405, "GET"), method


def test_a_collector_that_fails_is_an_error_of_that_scrape(
    server: MetricsServer, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as broken:
        broken.setattr(type(cache), "namespace_stats", lambda _: 1 / 0)
        assert request(server.address)[0] == 500
    assert request(server.address)[0] == 200


def test_connections_are_bounded_and_end(server: MetricsServer, monkeypatch: pytest.MonkeyPatch) -> None:
    host, _, port = server.address.rpartition(":")

    def connect(held: ExitStack) -> socket.socket:
        return held.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))

    def refused(address: str) -> bool:
        try:
            return request(address)[0] != 200
        except (http.client.HTTPException, OSError):
            return True

    with ExitStack() as held:
        for _ in range(http_server._MAX_CONNECTIONS):
            connect(held).sendall(b"GET /metrics HTTP/1.1\r\n")
        eventually(lambda: refused(server.address), "all places are taken")
    eventually(lambda: not refused(server.address), "clients that are gone leave their places")
    monkeypatch.setattr(http_server._Request, "timeout", 0.2)
    with ExitStack() as held:
        for _ in range(http_server._MAX_CONNECTIONS):
            connect(held).sendall(b"GET /metrics HTTP/1.1\r\n")
        eventually(lambda: not refused(server.address), "clients that send nothing lose them")


def test_addresses_that_are_refused(
    cache: SuffixCache, handlers: Handlers, server: MetricsServer, folder: Path
) -> None:
    registry = service_registry(cache, handlers)
    for address, why in (
        ("0.0.0.0:0", "read the metrics"),
        (server.address, "free port"),
        ("192.0.2.1:0", "read the metrics"),
    ):
        with pytest.raises(ListenError, match=why):
            MetricsServer(registry, metrics_address(address), AccessControl())
    with pytest.raises(ListenError, match="--metrics must be HOST:PORT"):
        metrics_address(f"unix:{folder}/m.sock")
    everywhere = metrics_address("0.0.0.0:0")
    with MetricsServer(registry, everywhere, AccessControl(), insecure_network=True) as anywhere:
        port = anywhere.address.rpartition(":")[2]
        assert request(f"127.0.0.1:{port}")[0] == 200
    serve = ServeProcess(folder, "--metrics", "0.0.0.0:9")
    process: Any = serve.launch()
    _, said = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "every host that reaches it could read the metrics" in said
