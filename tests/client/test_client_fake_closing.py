"""Closing sessions on the shipped fake: failures, retries, expired sessions, the session limit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import (
    LimitExceededError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    StoreFullError,
    SuffixError,
    TokenizerMismatchError,
)
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import EmptyReason, SuffixClient
from suffixsvc_client.protocol.effects import Call
from suffixsvc_client.testing import FakeTransport
from support.engine_parts import parts_of
from support.fake_client import (
    LIMITS,
    WORDS,
    connected,
    down,
    drafts_again,
    opened_since,
    stored,
    warnings_of,
)
from support.serving import eventually


class LateCloses(FakeTransport):
    """Every close is executed, and the answer to the first one is late."""

    def call(self, call: Call) -> Any:
        if not isinstance(call.request, pb.CloseSessionRequest):
            return super().call(call)
        self.delay_s = 0.0 if self.late_replies else 1e9
        try:
            return super().call(call)
        finally:
            self.delay_s = 0.0


class TestExpired:
    @staticmethod
    def expire(fake: FakeTransport) -> None:
        assert fake.handlers.sessions.expire(time.monotonic() + 2 * LIMITS.session_idle_seconds) == 1

    @pytest.mark.parametrize("noticed", [False, True])
    @pytest.mark.parametrize("commit", [False, True])
    def test_an_expired_session_is_stored_once_or_discarded(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache, noticed: bool, commit: bool
    ) -> None:
        session = client.namespace("a").open_session([1, 2])
        session.step([11, 12])
        session.append_context([7])
        session.step([13])
        self.expire(fake)
        assert stored(cache) == [[11, 12, 13]]
        if noticed:
            session.step([])
        assert (session.close(commit=commit) is not None) == commit
        assert stored(cache) == ([[11, 12, 13]] if commit else [])
        assert not any(row.output.incomplete for row in parts_of(cache).store.scan())

    @pytest.mark.parametrize("kind", ["sync", "aio"])
    @pytest.mark.parametrize("written", [[11, 12], []])
    def test_a_discard_that_does_not_reach_the_service_is_logged(
        self,
        fake: FakeTransport,
        cache: SuffixCache,
        caplog: pytest.LogCaptureFixture,
        kind: str,
        written: list[int],
    ) -> None:
        """What happened: it returned as if the text were removed, without a log line, while the incomplete
        output that the service had committed stayed and could be drafted from."""
        with ExitStack() as stack:
            session = connected(kind, fake, stack).namespace("a").open_session([1, 2])
            session.step(written)
            fake.handlers.sessions.expire(time.monotonic() + 2 * LIMITS.session_idle_seconds)
            session.step([])  # finds that the session is lost
            fake.fail_with = down
            assert session.close(commit=False) is None
            assert session.close(commit=False) is None
            warnings = warnings_of(caplog)
            opened: Any = fake.requests[0]
            assert len(warnings) == bool(written)
            assert all("namespace a " in line and opened.session_id in line for line in warnings)
            fake.fail_with = None
        assert stored(cache) == ([written] if written else [])

    def test_an_expired_session_is_resumed(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        session = client.namespace("a").open_session([1, 2])
        session.step([11, 12])
        for _ in range(2):
            self.expire(fake)
            session.step([13])
            drafts_again(session)
        session.close()
        assert stored(cache) == [[11, 12, 13, 13]]

    def test_discarding_an_opening_whose_answer_was_lost(
        self, fake: FakeTransport, client: SuffixClient
    ) -> None:
        fake.delay_s = 1e9
        session = client.namespace("a").open_session([1])
        fake.delay_s = 0
        assert client.stats().sessions == 1
        assert session.close(commit=False) is None
        assert client.stats().sessions == 0


class TestClosing:
    @pytest.mark.parametrize("error", [ServiceUnavailableError, ServiceTimeoutError, StoreFullError])
    def test_close_raises_and_can_be_repeated(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache, error: type[SuffixError]
    ) -> None:
        session = client.namespace("a").open_session([1])
        session.step([11, 12])
        fake.fail_with = lambda: error("a failure")
        with pytest.raises(error):
            session.close()
        assert not session.closed
        fake.fail_with = None
        output_id = session.close()
        assert output_id is not None
        assert session.close() == output_id
        assert stored(cache) == [[11, 12]]

    def test_a_lost_acknowledgement(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        session = client.namespace("a").open_session([1])
        session.step([11, 12])
        fake.delay_s = 1e9
        with pytest.raises(ServiceTimeoutError):
            session.close()
        fake.delay_s = 0
        assert session.close() is not None
        assert stored(cache) == [[11, 12]], "stored twice"

    @pytest.mark.parametrize("kind", ["sync", "aio"])
    @pytest.mark.parametrize("late", ["nothing", "step", "context"])
    @pytest.mark.parametrize("between", ["nothing", "empty step"])
    def test_a_close_that_was_answered_late_is_repeated_under_the_same_id(
        self, cache: SuffixCache, kind: str, late: str, between: str
    ) -> None:
        """What happened: a close() first sent the unacknowledged step. When its own answer was late, the next
        close() sent that step again, took SESSION_CLOSED for a lost session, and stored the output twice."""
        fake = LateCloses(cache, LIMITS)
        with ExitStack() as stack:
            session = connected(kind, fake, stack).namespace("a").open_session([1, 2, 3])
            session.step([11, 12])
            if late == "step":
                fake.fail_with = down
                session.step([13])
                fake.fail_with = None
            elif late == "context":
                fake.fail_with = down
                session.append_context([13])
                fake.fail_with = None
            with pytest.raises(ServiceTimeoutError):
                session.close()
            [first] = [row.output_id for row in parts_of(cache).store.scan("a")][1:]
            if between == "empty step":
                assert len(session.step([])) == 0
            assert session.close() == first
        assert stored(cache) == [[11, 12, 13] if late == "step" else [11, 12]]

    @pytest.mark.parametrize("kind", ["sync", "aio"])
    def test_tokens_after_a_close_that_was_answered_late_are_stored(
        self, cache: SuffixCache, kind: str
    ) -> None:
        """The service has closed the session without them: they make another output, with those before."""
        with ExitStack() as stack:
            session = connected(kind, LateCloses(cache, LIMITS), stack).namespace("a").open_session([1, 2, 3])
            session.step([11, 12])
            with pytest.raises(ServiceTimeoutError):
                session.close()
            session.step([])
            session.step([13])
            assert session.close() is not None
        assert stored(cache) == [[11, 12], [11, 12, 13]]

    def test_unacknowledged_tokens_are_sent_first(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        session = client.namespace("a").open_session([1])
        fake.fail_with = down
        session.step([11, 12])
        fake.fail_with = None
        session.close()
        assert stored(cache) == [[11, 12]]

    def test_bulk_and_forget_raise(self, fake: FakeTransport, client: SuffixClient) -> None:
        fake.fail_with = down
        with pytest.raises(ServiceUnavailableError):
            client.namespace("a").add_output(WORDS)
        with pytest.raises(ServiceUnavailableError):
            client.namespace("a").delete(output_ids=[1])


class TestSessionLimit:
    """The service was restarted, and other sessions were opened first: it is at its session limit."""

    @pytest.fixture
    def fake(self) -> Iterator[FakeTransport]:
        limits = Limits(max_sessions=1)
        with SuffixCache(limits=limits) as cache:
            cache.namespace("a").add_output(WORDS * 4)
            yield FakeTransport(cache, limits)

    def test_opening_is_retried_until_there_is_room(self, fake: FakeTransport, client: SuffixClient) -> None:
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([11, 12])
        fake.restart()
        other = client.namespace("a").open_session([9])
        before = len(fake.requests)
        eventually(
            lambda: len(session.step([])) == 0 and opened_since(fake, before) > 1, "opening is retried"
        )
        other.close()
        drafts_again(session)
        assert EmptyReason.REFUSED not in client.counts.empty
        assert session.close() is not None
        assert stored(fake.cache) == [[11, 12]]

    def test_close_can_be_repeated_until_there_is_room(
        self, fake: FakeTransport, client: SuffixClient
    ) -> None:
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([11, 12])
        fake.restart()
        other = client.namespace("a").open_session([9])
        for _ in range(2):
            with pytest.raises(LimitExceededError, match="too many live sessions"):
                session.close()
        other.close()
        assert session.close() is not None
        assert stored(fake.cache) == [[11, 12]]


def test_close_retries_a_refused_session(
    fake: FakeTransport, client: SuffixClient, cache: SuffixCache
) -> None:
    """For example, the namespace has another tokenizer until an operator corrects it."""
    session = client.namespace("a").open_session([1])
    session.step([11, 12])
    fake.restart()
    session.step([13])  # finds that the session is lost
    fake.fail_with = lambda: TokenizerMismatchError("another tokenizer")
    with pytest.raises(TokenizerMismatchError):
        session.close()
    assert len(session.step([14])) == 0
    assert client.counts.empty == {EmptyReason.SESSION_LOST: 1, EmptyReason.REFUSED: 1}
    with pytest.raises(TokenizerMismatchError):
        session.close()
    fake.fail_with = None
    assert session.close() is not None
    assert stored(cache) == [[11, 12, 13, 14]]


def test_closing_while_the_session_is_being_opened(
    fake: FakeTransport, client: SuffixClient, cache: SuffixCache
) -> None:
    for i in range(20):
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([i, i])
        fake.restart()
        session.step([i])  # finds that the session is lost
        session.step([i])  # opens it in the background
        assert session.close() is not None
        assert session.closed
        assert len(session.verbs.state) == 3 + 4
    assert stored(cache) == [[i] * 4 for i in range(20)]
    assert client.stats().sessions == 0
