"""Fixtures of the client's tests: a cache with one output, a fake transport over it, and a client."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suffixsvc import SuffixCache
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.testing import FakeTransport
from support.fake_client import LIMITS, WORDS


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache(limits=LIMITS) as cache:
        cache.namespace("a").add_output(WORDS * 4)
        yield cache
        cache.check()


@pytest.fixture
def fake(cache: SuffixCache) -> FakeTransport:
    return FakeTransport(cache, LIMITS)


@pytest.fixture
def client(fake: FakeTransport) -> Iterator[SuffixClient]:
    with SuffixClient(
        config=ClientConfig(breaker_failures=3, breaker_pause_s=0.001), transport=fake
    ) as client:
        yield client
