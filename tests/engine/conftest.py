"""Fixtures of the tests of the engine: caches in memory and in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """None, or the path of a data folder."""
    return None if request.param == "memory" else tmp_path / "d"


@pytest.fixture
def cache(place: Path | None) -> Iterator[SuffixCache]:
    """A cache with default settings; checked at the end."""
    with SuffixCache(place) as cache:
        yield cache
        cache.check()
