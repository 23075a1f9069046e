"""Fixtures of the tests of limits: caches with limits, compared with the log when they are closed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from limits_testing import KIB, index_is_log

from suffixsvc import Policies, Policy, SuffixCache


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """None, or the path of a data folder."""
    return None if request.param == "memory" else tmp_path / "data"


@pytest.fixture
def opened() -> Iterator[list[SuffixCache]]:
    """A list of caches, which are compared with the log and closed at the end."""
    caches: list[SuffixCache] = []
    yield caches
    for cache in caches:
        with cache:
            index_is_log(cache)


@pytest.fixture
def small(place: Path | None, opened: list[SuffixCache]) -> SuffixCache:
    """A cache with a limit of 100 KiB for `small` and each namespace below it, and none for others."""
    opened.append(SuffixCache(place, policies=Policies({"small": Policy(max_bytes=100 * KIB)})))
    return opened[0]
