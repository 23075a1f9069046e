"""Helpers of the tests of namespaces."""

from __future__ import annotations

from suffixsvc import SuffixCache

TEXT = list(range(100, 140))


def paths(cache: SuffixCache) -> list[str]:
    """The paths of the cache's namespaces."""
    return [record.path for record in cache.namespaces()]
