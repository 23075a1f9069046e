"""Followers of services that tests start."""

from __future__ import annotations

from collections.abc import Callable

from suffixsvc import SuffixCache
from suffixsvc_client import ClientConfig
from suffixsvc_follower import Follower, FollowerConfig
from suffixsvc_follower.stream.followed import Followed

#: a service in this process, beside a loaded machine, may answer late
CONFIG = FollowerConfig(client=ClientConfig(step_timeout_s=60, open_timeout_s=60), connect_seconds=60)

#: opens a follower of namespaces
Connect = Callable[..., Follower]


def followed(follower: Follower, path: str) -> Followed:
    """A namespace that is followed."""
    entry = follower._parts.table.get(path)
    assert entry is not None
    return entry


def held(follower: Follower, path: str) -> set[int]:
    """Ids of the outputs that a follower holds."""
    return followed(follower, path).copy.outputs()


def logged(cache: SuffixCache, path: str) -> set[int]:
    """Ids of the outputs in the log."""
    if path not in {record.path for record in cache._parts.store.namespaces()}:
        return set()
    return {each.output_id for each in cache._parts.store.scan(path)}
