"""Private sessions of the engine and of both clients: never stored, and no other session drafts from them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import SuffixClient
from suffixsvc_client.testing import FakeTransport
from support.fake_client import connected, down, drafts_again, stored, warnings_of

#: what only the private session writes
SECRET = list(range(90, 100))


@pytest.fixture(params=["engine", "sync", "async"])
def backend(request: pytest.FixtureRequest, cache: SuffixCache, fake: FakeTransport) -> Iterator[Any]:
    with ExitStack() as stack:
        yield cache if request.param == "engine" else connected(request.param, fake, stack)


def drafted_by_others(backend: Any) -> int:
    other = backend.namespace("a").open_session([1])
    found = len(other.step(SECRET[:4]))
    other.close(commit=False)
    return found


def test_a_private_session_is_drafted_for_and_leaves_nothing(backend: Any, cache: SuffixCache) -> None:
    namespace = backend.namespace("a")
    session = namespace.open_session([1, 2], SECRET[:6], private=True)
    assert drafted_by_others(backend) == 0
    session.step(SECRET[6:])
    assert drafted_by_others(backend) == 0
    assert session.step([11, 12], max_draft_tokens=2).token_ids.tolist() == [13, 14]
    session.append_context([5])
    assert session.step(SECRET[:4], max_draft_tokens=2).token_ids.tolist() == SECRET[4:6], "its own text"
    assert session.close() is None
    assert drafted_by_others(backend) == 0
    assert stored(cache) == []
    assert cache.stats().sessions == 0


def test_one_that_is_not_private_is_seen_and_stored(backend: Any, cache: SuffixCache) -> None:
    """The opposite of the test above, which would pass too if nothing were ever drafted or stored."""
    session = backend.namespace("a").open_session([1, 2], SECRET[:6])
    assert drafted_by_others(backend) > 0
    session.step(SECRET[6:])
    assert session.close() is not None
    assert stored(cache) == [SECRET]


def test_a_service_that_ends_a_private_session_stores_nothing(
    fake: FakeTransport, client: SuffixClient, cache: SuffixCache
) -> None:
    idle, drained = (client.namespace("a").open_session([1, 2], private=True) for _ in range(2))
    for session in (idle, drained):
        session.step([*SECRET, 11, 12])
    assert fake.handlers.sessions.expire(math.inf) == 0
    assert stored(cache) == []
    drafts_again(idle)  # opened again
    assert idle.close() is None
    drafts_again(drained)
    assert fake.handlers.sessions.drain() == 0
    assert stored(cache) == []


def test_a_private_session_that_is_opened_again_stays_private(
    fake: FakeTransport, client: SuffixClient, cache: SuffixCache
) -> None:
    session = client.namespace("a").open_session([1, 2], private=True)
    session.step([*SECRET, 11, 12])
    fake.restart()
    drafts_again(session)
    assert drafted_by_others(client) == 0
    opened = [request for request in fake.requests if isinstance(request, pb.OpenSessionRequest)]
    assert [each.private for each in opened] == [True, True, False]
    session.close()
    assert stored(cache) == []


def test_a_private_session_is_closed_without_its_service(
    fake: FakeTransport, client: SuffixClient, caplog: pytest.LogCaptureFixture
) -> None:
    fake.fail_with = down
    session = client.namespace("a").open_session([1, 2], private=True)
    session.step(SECRET)
    assert session.close() is None
    # nothing about a discard
    assert warnings_of(caplog) == ["no drafts from the service until it answers: down"]


def test_a_service_that_does_not_know_private_sessions_is_told_to_discard(
    fake: FakeTransport, client: SuffixClient
) -> None:
    session = client.namespace("a").open_session([1, 2], private=True)
    session.step(SECRET)
    session.close()
    [closed] = [request for request in fake.requests if isinstance(request, pb.CloseSessionRequest)]
    assert closed.discard
