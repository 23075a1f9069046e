"""Fixtures of the service's tests: an embedded cache, and request handlers over it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from suffixsvc import SuffixCache
from suffixsvc.service.handlers import Handlers
from support.service_sessions import LIMITS


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache(limits=LIMITS) as cache:
        yield cache
        cache.check()


@pytest.fixture
def handlers(cache: SuffixCache) -> Handlers:
    return Handlers(cache, LIMITS, durable=False)
