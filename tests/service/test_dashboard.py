"""The Grafana dashboard and docs/metrics.md against the names that a real service exposes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.metrics_core import Metric

from suffixsvc_client import ClientConfig
from suffixsvc_follower import FollowerConfig, connect
from support.scraping import Scrape, address_of
from support.serving import ServeProcess, eventually, socket_dir

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
def families() -> Iterator[list[Metric]]:
    """The families of a service with a namespace, which publishes runs, and a follower."""
    with socket_dir() as folder:
        policies = folder / "policies.toml"
        policies.write_text('[namespaces."a"]\nmin_principals = 2\n')
        options = "--metrics", "127.0.0.1:0", "--policies", str(policies)
        with ServeProcess(folder, *options).start() as serve:
            yield _families(serve)


def _families(serve: ServeProcess) -> list[Metric]:
    with connect(serve.address, mode="follow", config=FollowerConfig(client=PATIENT)) as backend:
        namespace = backend.namespace("a")
        namespace.add_output([1, 2, 3, 4])
        namespace.open_session([1, 2, 3]).close(commit=False)
        eventually(lambda: Scrape(address_of(serve)).values("follower_id"), "the follower is connected")
        return Scrape(address_of(serve)).families


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
