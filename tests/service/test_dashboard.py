"""The Grafana dashboard and docs/metrics.md against the names that a real service exposes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families

from suffixsvc import Policies, Policy, PrincipalQuota, SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.service.metrics.collector import service_registry
from suffixsvc_client import ClientConfig
from suffixsvc_follower import FollowerConfig, connect
from support.serving import eventually, serving, socket_dir
from support.tls_files import TlsFiles

ROOT = Path(__file__).parents[2]
DASHBOARD = ROOT / "docs" / "dashboard.json"
REFERENCE = ROOT / "docs" / "metrics.md"
#: suffixes of the samples of a family, by its type
SUFFIXES = {
    "counter": ("_total",),
    "gauge": ("",),
    "histogram": ("_bucket", "_sum", "_count"),
    "info": ("_info",),
}
PATIENT = ClientConfig(step_timeout_s=300, open_timeout_s=300)


@pytest.fixture(scope="module")
def families(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Metric]]:
    """The families with a namespace that publishes runs, a follower, a principal with a quota, and TLS."""
    tls = TlsFiles(tmp_path_factory.mktemp("certificates")).server()
    policies = Policies({"a": Policy(min_principals=2)}, principals={"x": PrincipalQuota(max_outputs=10)})
    with SuffixCache(policies=policies) as cache, socket_dir() as folder:
        cache.namespace("a").add_output([1, 2, 3, 4], principal="x")
        with serving(cache, f"unix:{folder / 's.sock'}") as (server, address):
            server.handlers.sessions.probes.meter_of(replace(OPERATOR_CALLER, principal="x"))
            registry = service_registry(cache, server.handlers, tls=tls)

            def scraped() -> list[Metric]:
                return list(text_string_to_metric_families(generate_latest(registry).decode()))

            def follower_is_there() -> bool:
                return any("follower_id" in each.labels for family in scraped() for each in family.samples)

            with connect(address, mode="follow", config=FollowerConfig(client=PATIENT)) as backend:
                backend.namespace("a").open_session([1, 2, 3]).close(commit=False)
                eventually(follower_is_there, "the follower is connected")
                found = scraped()
        yield found


def names(families: list[Metric]) -> set[str]:
    # the parser names the family of suffixsvc_build_info after its sample, as a gauge
    return {family.name + suffix for family in families for suffix in SUFFIXES[family.type]}


def queries() -> Iterator[str]:
    board: dict[str, Any] = json.loads(DASHBOARD.read_text())
    for panel in board["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]
    for variable in board["templating"]["list"]:
        if variable["type"] == "query":
            yield variable["query"]["query"]


def metrics_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:suffixsvc|process)_[a-z_]+\b", text))


def test_every_name_on_the_dashboard_is_exposed(families: list[Metric]) -> None:
    asked = {name for query in queries() for name in metrics_in(query)}
    assert len(asked) > 40
    assert asked <= names(families)


def test_every_metric_is_on_the_dashboard(families: list[Metric]) -> None:
    asked = {name for query in queries() for name in metrics_in(query)}
    missing = {
        family.name
        for family in families
        if family.name.startswith("suffixsvc_")
        and not any(family.name + suffix in asked for suffix in SUFFIXES[family.type])
    }
    assert not missing


def test_labels_of_the_dashboard_exist(families: list[Metric]) -> None:
    labels: dict[str, set[str]] = {}
    for family in families:
        for sample in family.samples:
            labels.setdefault(sample.name, set()).update(sample.labels)
    scraped = {"instance", "job"}  # added by Prometheus
    for query in queries():
        for name, filters in re.findall(r"\b((?:suffixsvc|process)_[a-z_]+)\{([^}]*)\}", query):
            used = set(re.findall(r"(\w+)=", filters))
            assert used <= labels[name] | scraped, (name, used)
    for panel in json.loads(DASHBOARD.read_text())["panels"]:
        for target in panel.get("targets", ()):
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            known = {each for name in metrics_in(target["expr"]) for each in labels.get(name, ())}
            assert shown <= known | scraped, (panel["title"], shown)


def test_the_reference_has_every_metric(families: list[Metric]) -> None:
    text = REFERENCE.read_text()
    rows = dict(re.findall(r"^\| `(suffixsvc_[a-z_]+)` \|.*?\|([^|]*)\|$", text, re.MULTILINE))
    exposed: dict[str, set[str]] = {}
    for family in families:
        if family.name.startswith("suffixsvc_"):
            name = family.name + ("_total" if family.type == "counter" else "")
            exposed[name] = {label for sample in family.samples for label in sample.labels} - {"le"}
    assert rows.keys() == exposed.keys()
    for name, labels in exposed.items():
        assert set(re.findall(r"`(\w+)`", rows[name])) == labels, name


def test_the_dashboard_is_generated() -> None:
    checked = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "gen_dashboard.py"), "--check"], capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr
