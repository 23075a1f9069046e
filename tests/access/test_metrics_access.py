"""The metrics, which show rates of every namespace, are for administrators once access is controlled."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from suffixsvc import SuffixCache
from suffixsvc.service.metrics.collector import service_registry
from suffixsvc.service.metrics.http_server import MetricsServer, metrics_address
from support.access import ControlledService


def status(url: str, authorization: str | None) -> int:
    headers = {} if authorization is None else {"Authorization": authorization}
    answer = httpx.get(url, headers=headers, timeout=60)
    assert (b"suffixsvc_" in answer.content) is (answer.status_code == 200)
    return answer.status_code


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
