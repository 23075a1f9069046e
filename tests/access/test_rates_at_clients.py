"""What a client makes of a rate of its principal: an answer that says when to come back, not an outage."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from suffixsvc import SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.access.refusals import MAX_USERS, Refusals
from suffixsvc.errors import LimitExceededError
from suffixsvc.service.metrics.collector import service_registry
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import AsyncSuffixClient, EmptyReason
from suffixsvc_follower import Follower, FollowerConfig, connect
from suffixsvc_follower.session import FollowerSession
from support.access import ControlledService
from support.serving import Blocking, event_loop, eventually
from support.stored import stored_outputs

TEXT = list(range(100, 160))
PATH = "alice/a"
#: one message now, and then none that a test could wait for
ONE = '[principals."alice"]\nrequests_per_second = 0.0001\n'
FREE = "[principals]\n"
#: longer than a test
LONG_S = 3600.0
KINDS = pytest.mark.parametrize("kind", ["blocking", "asyncio"])


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    with SuffixCache() as cache, ControlledService(tmp_path, ("alice", "bob")).run(cache) as service:
        yield service


@contextlib.contextmanager
def client_of(service: ControlledService, kind: str, **config: Any) -> Iterator[Any]:
    """A client of alice."""
    if kind == "blocking":
        with service.client("alice", **config) as blocking:
            yield blocking
        return
    with event_loop() as loop:
        made = AsyncSuffixClient(service.address, service.config("alice", **config))
        client = Blocking(made, loop)
        try:
            yield client
        finally:
            asyncio.run_coroutine_threadsafe(made.close(), loop).result()


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Lines of the client at the level of a warning, or above."""
    found = [each for each in caplog.records if each.name.startswith("suffixsvc_client")]
    return [each.getMessage() for each in found if each.levelno >= logging.WARNING]


def outputs(service: ControlledService) -> list[list[int]]:
    return [each.output.token_ids.tolist() for each in stored_outputs(service.cache, PATH)]


@KINDS
def test_steps_over_a_rate_are_counted_as_limited_and_not_sent_again(
    service: ControlledService, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Of many steps one is refused; the others are not sent, whatever the session, and nothing is lost."""
    with client_of(service, kind, breaker_max_pause_s=LONG_S, breaker_failures=3) as client:
        sessions = [client.namespace(PATH).open_session([1]) for _ in range(3)]
        service.set_policy(ONE)
        sessions[0].step(TEXT[:1])  # all that the rate admits
        for token in TEXT[1:20]:
            for session in sessions:
                assert not len(session.step([token]))
        sessions[0].append_context([5])  # not sent either
        assert client.counts.empty == {EmptyReason.LIMITED: 19 * 3}
        assert service.server.handlers.refusals.stats() == [("alice", "requests_per_second", 1)]
        [line] = warnings(caplog)
        assert "requests of the principal 'alice' must be at most 0.0001 per second" in line
        service.set_policy(FREE)
        for session in sessions:
            session.close()
    assert outputs(service) == [TEXT[:20], TEXT[1:20], TEXT[1:20]]


@KINDS
def test_steps_are_sent_again_once_the_rate_permits_it(service: ControlledService, kind: str) -> None:
    with client_of(service, kind, breaker_max_pause_s=0.1) as client:
        client.namespace(PATH).add_output(TEXT)
        session = client.namespace(PATH).open_session([1])
        service.set_policy(ONE)
        session.step(TEXT[:1])
        assert not len(session.step(TEXT[1:2]))
        session.append_context([7, 7])
        assert not len(session.step(TEXT[2:3]))
        assert client.counts.empty == {EmptyReason.LIMITED: 2}
        service.set_policy(FREE)
        answered = client.counts.drafts
        session.step(TEXT[3:4])

        def drafts() -> bool:
            session.step([])
            return bool(client.counts.drafts > answered)

        eventually(drafts, "the pause ends")
        assert client.counts.empty.keys() == {EmptyReason.LIMITED}
        session.close()
    assert outputs(service) == [TEXT, TEXT[:4]]


def test_a_burst_is_no_outage(service: ControlledService, caplog: pytest.LogCaptureFixture) -> None:
    """Many sessions at once, whose messages are refused together: the breaker stays closed."""
    service.set_policy('[principals."alice"]\nrequests_per_second = 30\n')
    with client_of(service, "blocking", breaker_failures=1) as client, ThreadPoolExecutor(16) as pool:
        sessions = [client.namespace(PATH).open_session([number]) for number in range(16)]

        def write(number: int) -> None:
            for token in TEXT:
                sessions[number].step([token])

        service.set_policy(ONE)
        list(pool.map(write, range(16)))
        counts = client.counts
        assert not client.verbs.procedures.breaker.open
        assert EmptyReason.BREAKER_OPEN not in counts.empty
        assert counts.empty[EmptyReason.LIMITED] >= 16 * len(TEXT) - 2
        assert len(warnings(caplog)) == 1
        service.set_policy(FREE)
        for session in sessions:
            session.close()
    assert outputs(service) == [TEXT] * 16


@KINDS
def test_a_session_over_a_rate_is_opened_later(service: ControlledService, kind: str) -> None:
    """``open_session`` does not raise: the session has no drafts until the rate permits it."""
    service.set_policy(ONE)
    with client_of(service, kind, breaker_max_pause_s=0.1) as client:
        client.namespaces()  # all that the rate admits
        session = client.namespace(PATH).open_session([1])
        assert not len(session.step(TEXT[:5]))
        assert client.counts.empty == {EmptyReason.LIMITED: 1}
        service.set_policy(FREE)

        def opened() -> bool:
            session.step([])
            return bool(client.counts.steps > sum(client.counts.empty.values()))

        eventually(opened, "the session is opened")
        session.step(TEXT[5:9])
        session.close()
    assert outputs(service) == [TEXT[:9]]


def test_a_follower_sends_what_a_rate_refused(tmp_path: Path) -> None:
    """Its sessions draft on, their closes are sent until the rate admits them, and the log says no loss."""
    granted = '[principals."alice"]\nfollow = ["shared"]\n'
    with (
        SuffixCache(tmp_path / "data") as cache,
        ControlledService(tmp_path, ("alice",), granted).run(cache) as service,
    ):
        timers = service.config("alice", call_timeout_s=0.5, breaker_max_pause_s=0.1)
        config = FollowerConfig(client=timers, connect_seconds=60.0)
        with connect(service.address, mode="follow", config=config) as follower:
            assert isinstance(follower, Follower)
            follower.namespace(PATH).wait(60)
            session = follower.namespace(PATH).open_session([1])
            assert isinstance(session, FollowerSession)
            session.step(TEXT[:8])
            service.set_policy(ONE)
            for token in TEXT[8:]:
                session.step([token])
            assert session.close(wait=False) is None
            refusals = service.server.handlers.refusals

            def refused() -> int:
                return sum(each.refused for each in refusals.stats())

            eventually(lambda: refused() > 3, "the rate refuses what the follower sends")
            time.sleep(1.0)  # longer than a close tries; nothing is lost whether or not it has ended
            assert outputs(service) == []
            service.set_policy(granted)
            eventually(lambda: outputs(service) == [TEXT], "the output arrives")


def test_the_log_names_a_refused_principal_once_a_minute(service: ControlledService) -> None:
    service.set_policy(ONE + "max_sessions = 1\n")
    handlers = service.server.handlers
    with service.client("alice") as alice, capture_logs() as logs:
        alice.namespace(PATH).open_session([1])
        for _ in range(3):
            with pytest.raises(LimitExceededError, match="requests of the principal"):
                alice.namespaces()
        eventually(lambda: [each for each in logs if "were refused" in each["event"]], "the line")
        service.set_policy('[principals."alice"]\nmax_sessions = 1\n')
        with pytest.raises(LimitExceededError, match="live sessions of the principal"):
            alice.namespace(PATH).open_session([1])
        with service.client("bob") as bob:
            assert bob.namespaces() == []
    lines = [each for each in logs if "were refused" in each["event"]]
    assert {line["principal"] for line in lines} == {"alice"}
    assert [line["log_level"] for line in lines] == ["warning"]
    assert lines[0]["limits"] == "requests_per_second"
    reply = handlers.get_stats(pb.GetStatsRequest(), OPERATOR_CALLER)
    found = {(each.principal, each.limit): each.refused for each in reply.refusals}
    assert found == {("alice", "max_sessions"): 1, ("alice", "requests_per_second"): 3}
    assert not reply.principals, "none has a quota"
    registry = service_registry(service.cache, handlers)
    for (principal, limit), refused in found.items():
        labels = {"principal": principal, "limit": limit}
        assert registry.get_sample_value("suffixsvc_principal_refused_total", labels) == refused


def test_lines_have_the_number_since_the_last_one() -> None:
    now = [0.0]
    refusals = Refusals(lambda: now[0])

    def reported() -> list[tuple[object, int]]:
        with capture_logs() as logs:
            refusals.report()
        return [
            (line.get("principal", line.get("uid")), line.get("refused", line.get("connections")))
            for line in logs
        ]

    assert reported() == []
    refusals.count("a", "tokens_per_second")
    assert reported() == [("a", 1)]
    for _ in range(4):
        refusals.count("a", "requests_per_second")
    refusals.count("b", "max_message_bytes")
    refusals.count_user(1001)
    now[0] = 59.0
    assert reported() == [("b", 1), (1001, 1)]
    now[0] = 60.0
    assert reported() == [("a", 4)]
    now[0] = 300.0
    assert reported() == []
    for uid in range(5000):  # a user can have many ids
        refusals.count_user(uid)
        refusals.count_user(uid)
    assert reported() == [(uid, 2) for uid in range(MAX_USERS)]
    refusals.count_user(6000)
    now[0] = 359.0
    assert reported() == []
    now[0] = 361.0
    refusals.count_user(6000)
    assert reported() == []  # they are forgotten only now
    refusals.count_user(6000)
    assert reported() == [(6000, 1)]
