"""The metrics, which show rates of every namespace, are for administrators once access is controlled."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.service.metrics.collector import service_registry
from suffixsvc.service.metrics.http_server import MetricsServer, metrics_address
from support.access import ControlledService


def status(url: str, authorization: str | None) -> int:
    request = urllib.request.Request(url)  # noqa: S310 - http
    if authorization is not None:
        request.add_header("Authorization", authorization)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 - http
            assert b"suffixsvc_" in answer.read()
            return int(answer.status)
    except urllib.error.HTTPError as error:
        assert b"suffixsvc_" not in error.read()
        return error.code


@pytest.mark.parametrize("controlled", [True, False])
def test_metrics_are_for_administrators(tmp_path: Path, controlled: bool) -> None:
    policy = '[principals.monitor]\nadmin = ["*"]\n' if controlled else "[default]\n"
    service = ControlledService(tmp_path, ("alice", "monitor") if controlled else (), policy)
    with SuffixCache() as cache, service.run(cache):
        registry = service_registry(cache, service.server.handlers)
        with MetricsServer(registry, metrics_address("127.0.0.1:0"), service.access) as server:
            url = f"http://{server.address}/metrics"
            if not controlled:
                assert status(url, None) == 200
                return
            assert status(url, None) == 401
            assert status(url, "Basic x") == 401
            assert status(url, "Bearer sfx_aaaaaaaaaa_x") == 401
            assert status(url, f"Bearer {service.tokens['alice']}") == 403
            assert status(url, f"Bearer {service.tokens['monitor']}") == 200
            service.revoke("monitor")
            assert status(url, f"Bearer {service.tokens['monitor']}") == 401
