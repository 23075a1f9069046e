"""Fixtures of the tests of followers."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """None, or the path of the service's data folder."""
    return None if request.param == "memory" else tmp_path / "d"
