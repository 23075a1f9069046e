"""The choice of gRPC's poller."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from suffixsvc.runtime import grpc_poller as wakeups


@pytest.mark.parametrize(
    ("release", "chosen"), [("1.79.3", False), ("1.80.0rc1", True), ("1.85.1", True), ("2.0", False)]
)
def test_only_releases_with_both_pollers_are_told(
    release: str, chosen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeups, "version", lambda name: release)
    monkeypatch.setenv("GRPC_EXPERIMENTS", "")  # so that what the call sets is undone
    monkeypatch.delenv("GRPC_EXPERIMENTS")
    wakeups.use_low_latency_poller()
    assert ("GRPC_EXPERIMENTS" in os.environ) is chosen


def test_the_users_own_setting_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wakeups, "version", lambda name: "1.85.1")
    monkeypatch.setenv("GRPC_EXPERIMENTS", "something")
    wakeups.use_low_latency_poller()
    assert os.environ["GRPC_EXPERIMENTS"] == "something"


def test_the_installed_release_knows_the_names() -> None:
    """gRPC writes a line to stderr for every experiment that it does not know."""
    code = (
        "from suffixsvc.runtime.grpc_poller import use_low_latency_poller\n"
        "use_low_latency_poller()\n"
        "import grpc\n"
        "grpc.insecure_channel('unix:/nowhere').close()\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "experiment" not in result.stderr
