"""Progress of a service that rebuilds its indexes."""

from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from suffixsvc import SuffixCache
from suffixsvc.service.recovery import recovery_progress


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with SuffixCache(tmp_path / "data") as cache:
        namespace = cache.namespace("a")
        for i in range(1, 70):
            namespace.add_output([i, i + 1])
    return tmp_path / "data"


def test_log_lines_without_a_terminal(data: Path) -> None:
    with (
        capture_logs() as lines,
        recovery_progress() as progress,
        SuffixCache(data, progress=progress) as cache,
    ):
        assert cache.stats().outputs == 69
    assert [(line["event"], line["outputs"], line["of"]) for line in lines] == [("recovering", 69, 69)]


def test_a_bar_on_a_terminal(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        monkeypatch.setattr(sys, "stderr", terminal)
        monkeypatch.setenv("TERM", "xterm")
        with recovery_progress() as progress, SuffixCache(data, progress=progress):
            pass
        terminal.flush()
        shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "recovering outputs" in shown
