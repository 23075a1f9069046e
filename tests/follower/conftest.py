"""Fixtures of the followers' tests: a service in this process, and followers of it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import Limits, SuffixCache
from suffixsvc_follower import Follower
from support.following import CONFIG, Connect
from support.serving import serving, socket_dir


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[SuffixCache]:
    """The service's cache, with a folder and segments of few tokens, which only the test makes."""
    with SuffixCache(tmp_path / "data", limits=Limits(seal_tokens=64), background=False) as cache:
        yield cache
        cache.check()


@pytest.fixture
def address(cache: SuffixCache) -> Iterator[str]:
    """Address of a service over the cache."""
    with socket_dir() as folder, serving(cache, f"unix:{folder / 's.sock'}") as (_, bound):
        yield bound


@pytest.fixture
def follow(address: str, tmp_path: Path) -> Iterator[Connect]:
    """Opens followers of the service, and closes them."""
    with contextlib.ExitStack() as stack:

        def open_follower(*namespaces: str, **changes: Any) -> Follower:
            follower = Follower(address, CONFIG, [(path, "") for path in namespaces], **changes)
            return stack.enter_context(follower)

        yield open_follower


@pytest.fixture(params=["memory", "folder"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path | None:
    """None, or the path of the service's data folder."""
    return None if request.param == "memory" else tmp_path / "d"
