"""What the client does when things go wrong, on the shipped fake: exact, and without waiting for anything."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import Message
from suffixsvc_client import AsyncSuffixClient, ClientConfig, ClientSession, EmptyReason, SuffixClient
from suffixsvc_client.effects import CLOSE, Method
from suffixsvc_client.testing import AsyncFakeTransport, FakeTransport
from support.serving import Blocking, event_loop, eventually

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.errors import (
    InvalidInputError,
    InvalidTokensError,
    LimitExceededError,
    ServiceTimeoutError,
    ServiceUnavailableError,
    StoreFullError,
    SuffixError,
    TokenizerMismatchError,
)
from suffixsvc.v1 import suffix_cache_pb2 as pb

WORDS = [11, 12, 13, 14, 15, 16, 17, 18]
LIMITS = Limits(max_session_tokens=200)


def down() -> SuffixError:
    return ServiceUnavailableError("down")


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


def stored(cache: SuffixCache) -> list[list[int]]:
    return [row.output.token_ids.tolist() for row in cache._store.scan()][1:]


def steps_sent(fake: FakeTransport) -> list[pb.StepRequest]:
    streamed = [request for request in fake.requests if isinstance(request, pb.StreamRequest)]
    return [item for request in streamed for item in request.steps.items]


def drafts_again(session: ClientSession) -> None:
    eventually(lambda: len(session.step([])) > 0, "the session drafts again")


def connected(kind: str, fake: FakeTransport, stack: ExitStack) -> Any:
    """A client of either kind, with the same blocking face."""
    if kind == "sync":
        return stack.enter_context(SuffixClient(transport=fake))
    client = AsyncSuffixClient(transport=AsyncFakeTransport(fake))
    blocking = Blocking(client, stack.enter_context(event_loop()))
    stack.callback(blocking.close)
    return blocking


class LateCloses(FakeTransport):
    """Every close is carried out, and the answer to the first one comes too late."""

    def unary(self, method: Method[Any, Any], request: Message, timeout_s: float) -> Any:
        if method is not CLOSE:
            return super().unary(method, request, timeout_s)
        self.delay_s = 0.0 if self.late_replies else 1e9
        try:
            return super().unary(method, request, timeout_s)
        finally:
            self.delay_s = 0.0


class TestSteps:
    def test_tokens_of_a_failed_step_go_out_with_the_next(
        self, fake: FakeTransport, client: SuffixClient
    ) -> None:
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([11])
        fake.fail_with = down
        assert len(session.step([12])) == 0
        assert len(session.step([13, 14])) == 0
        fake.fail_with = None
        assert session.step([15]).token_ids.tolist()[:2] == [16, 17]
        last = steps_sent(fake)[-1]
        assert last.at == 4
        assert wire.unpack_tokens(last.new_token_ids).tolist() == [12, 13, 14, 15]
        assert client.counts.empty == {EmptyReason.UNAVAILABLE: 2}

    def test_a_late_step_counts_once(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        """The reply came too late, but the tokens had arrived: sent again, they are an equal overlap."""
        session = client.namespace("a").open_session([1, 2, 3])
        fake.delay_s = 1.0
        assert len(session.step([11, 12])) == 0
        fake.delay_s = 0.0
        assert session.step([13]).token_ids.tolist()[:2] == [14, 15]
        assert client.counts.empty == {EmptyReason.TIMEOUT: 1}
        assert client.counts.late_replies == 1
        session.close()
        assert stored(cache) == [[11, 12, 13]]

    def test_a_lost_draft_is_reported_as_not_verified(
        self, fake: FakeTransport, client: SuffixClient
    ) -> None:
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([11])
        fake.delay_s = 1.0
        session.step([12])
        fake.delay_s = 0.0
        session.step([13])
        session.step([14])
        told = [item.verified if item.HasField("verified") else None for item in steps_sent(fake)]
        assert told == [None, None, pb.Verified(width=1), None]

    def test_costs_are_sent_when_they_change(self, fake: FakeTransport, client: SuffixClient) -> None:
        curve = np.linspace(0, 8, 9, dtype=np.float32)
        session = client.namespace("a").open_session([1])
        for cost in (curve, curve, 0.5, 0.5, curve):
            session.step([11], verify_cost=cost)
        assert [item.HasField("verify_cost") for item in steps_sent(fake)] == [True, False, True, False, True]

    def test_a_cost_that_did_not_arrive_is_sent_again(
        self, fake: FakeTransport, client: SuffixClient
    ) -> None:
        session = client.namespace("a").open_session([1])
        fake.fail_with = down
        session.step([11], verify_cost=0.5)
        fake.fail_with = None
        session.step([12], verify_cost=0.5)
        session.step([13], verify_cost=0.5)
        assert [item.HasField("verify_cost") for item in steps_sent(fake)] == [True, True, False]

    def test_context_keeps_its_place_when_it_is_lost(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        session = client.namespace("a").open_session([1])
        session.step([11, 12])
        fake.fail_with = down
        session.step([13])
        session.append_context([7, 7])
        fake.fail_with = None
        session.step([14])
        session.close()
        _, row = cache._store.scan()
        assert row.output.token_ids.tolist() == [11, 12, 13, 14]
        assert row.output.segment_lens == (3, 1)

    def test_a_callers_mistake_raises_while_the_service_is_down(
        self, fake: FakeTransport, client: SuffixClient
    ) -> None:
        session = client.namespace("a").open_session([1])
        fake.fail_with = down
        with pytest.raises(InvalidTokensError):
            session.step([-1])
        assert session.length == 1

    def test_many_sessions_in_one_message(self, fake: FakeTransport, client: SuffixClient) -> None:
        namespace = client.namespace("a")
        one, other = namespace.open_session([1]), namespace.open_session([2])
        fake.restart()
        third = namespace.open_session([3])
        sent = len(steps_sent(fake))
        drafts = client.step_many(
            [
                (one, {"new_token_ids": [11]}),
                (third, {"new_token_ids": [11, 12]}),
                (other, {"new_token_ids": [1]}),
            ]
        )
        assert [len(draft) > 0 for draft in drafts] == [False, True, False]
        assert len(steps_sent(fake)) == sent + 3
        assert isinstance(fake.requests[-1], pb.StreamRequest)
        assert len(fake.requests[-1].steps.items) == 3
        assert client.counts.empty == {EmptyReason.SESSION_LOST: 2}


class TestBreakerInUse:
    def test_nobody_asks_a_dead_service(self, fake: FakeTransport, cache: SuffixCache) -> None:
        config = ClientConfig(breaker_failures=3, breaker_pause_s=1000, breaker_max_pause_s=1000)
        with SuffixClient(config=config, transport=fake) as client:
            session = client.namespace("a").open_session([1])
            fake.fail_with = down
            for _ in range(10):
                session.step([11])
            assert len(steps_sent(fake)) == 3
            other = client.namespace("a").open_session([1])  # not even this asks
            assert other.length == 1
            assert client.counts.empty == {EmptyReason.UNAVAILABLE: 3, EmptyReason.BREAKER_OPEN: 7}

    def test_it_notices_when_the_service_is_back(self, fake: FakeTransport, client: SuffixClient) -> None:
        session = client.namespace("a").open_session([1, 2, 3])
        fake.fail_with = down
        for word in WORDS:
            session.step([word])
        fake.fail_with = None
        drafts_again(session)
        assert client.counts.empty[EmptyReason.BREAKER_OPEN] > 0


class TestRestarts:
    def test_a_lost_session_is_opened_again(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        session = client.namespace("a").open_session([1, 2, 3], labels={"agent": "x"})
        session.step([11, 12])
        session.append_context([7, 7, 7])
        session.step([13])
        fake.restart()
        session.step([14])
        drafts_again(session)
        assert client.counts.reopened == 1
        assert client.counts.empty[EmptyReason.SESSION_LOST] >= 1
        session.close()
        _, row = cache._store.scan()
        assert row.output.token_ids.tolist() == [11, 12, 13, 14]
        assert row.output.segment_lens == (2, 2)
        assert row.output.prompt_tail.tolist() == [1, 2, 3]
        assert row.output.labels == {"agent": "x"}

    def test_a_session_opened_while_nobody_was_there(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        fake.fail_with = down
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([11, 12])
        fake.fail_with = None
        drafts_again(session)
        session.close()
        assert stored(cache) == [[11, 12]]

    def test_close_tells_everything_again_when_the_service_forgot(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        session = client.namespace("a").open_session([1])
        session.step([11, 12])
        fake.restart()
        assert session.close() is not None
        assert stored(cache) == [[11, 12]]

    def test_discarding_what_the_service_forgot(self, fake: FakeTransport, client: SuffixClient) -> None:
        session = client.namespace("a").open_session([1])
        session.step([11, 12])
        fake.restart()
        sent = len(fake.requests)
        assert session.close(commit=False) is None
        assert session.closed
        assert len(fake.requests) == sent + 1


class TestExpired:
    @staticmethod
    def expire(fake: FakeTransport) -> None:
        assert fake.handlers.sessions.expire(time.monotonic() + 2 * LIMITS.session_idle_seconds) == 1

    @pytest.mark.parametrize("noticed", [False, True])
    @pytest.mark.parametrize("commit", [False, True])
    def test_an_expired_session_is_kept_once_or_not_at_all(
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
        assert not any(row.output.incomplete for row in cache._store.scan())

    @pytest.mark.parametrize("kind", ["sync", "aio"])
    @pytest.mark.parametrize("written", [[11, 12], []])
    def test_a_discard_that_the_service_does_not_get_is_told(
        self,
        fake: FakeTransport,
        cache: SuffixCache,
        caplog: pytest.LogCaptureFixture,
        kind: str,
        written: list[int],
    ) -> None:
        """It returned as if the text were gone, without a word, while the incomplete output that the service
        had committed stayed and could be drafted from."""
        with ExitStack() as stack:
            session = connected(kind, fake, stack).namespace("a").open_session([1, 2])
            session.step(written)
            fake.handlers.sessions.expire(time.monotonic() + 2 * LIMITS.session_idle_seconds)
            session.step([])  # finds that the service knows it no more
            fake.fail_with = down
            assert session.close(commit=False) is None
            assert session.close(commit=False) is None
            told = warnings_of(caplog)
            assert len(told) == bool(written)
            assert all("namespace a " in line and fake.requests[0].session_id in line for line in told)
            fake.fail_with = None
        assert stored(cache) == ([written] if written else [])

    def test_an_expired_session_goes_on(
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
        fake.fail_with = lambda: error("in trouble")
        with pytest.raises(error):
            session.close()
        assert not session.closed
        fake.fail_with = None
        output_id = session.close()
        assert output_id is not None
        assert session.close() == output_id
        assert stored(cache) == [[11, 12]]

    def test_an_acknowledgement_that_got_lost(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        session = client.namespace("a").open_session([1])
        session.step([11, 12])
        fake.delay_s = 1e9
        with pytest.raises(ServiceTimeoutError):
            session.close()
        fake.delay_s = 0
        assert session.close() is not None
        assert stored(cache) == [[11, 12]], "kept twice"

    @pytest.mark.parametrize("kind", ["sync", "aio"])
    @pytest.mark.parametrize("late", ["nothing", "step", "context"])
    @pytest.mark.parametrize("between", ["nothing", "empty step"])
    def test_a_close_that_was_answered_late_is_repeated_under_the_same_id(
        self, cache: SuffixCache, kind: str, late: str, between: str
    ) -> None:
        """A close() first sent the step that was not acknowledged. When its own answer came late, the next
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
            [kept] = [row.output_id for row in cache._store.scan("a")][1:]
            if between == "empty step":
                assert len(session.step([])) == 0
            assert session.close() == kept
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

    def test_tokens_still_on_their_way_are_flushed_first(
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
            client.namespace("a").forget(1)


def test_a_session_that_grew_over_the_limit_is_refused_and_close_says_why(
    client: SuffixClient, cache: SuffixCache
) -> None:
    session = client.namespace("a").open_session([1])
    assert len(session.step([11] * (LIMITS.max_session_tokens + 1))) == 0
    assert len(session.step([11])) == 0
    assert client.counts.empty == {EmptyReason.REFUSED: 2}
    with pytest.raises(LimitExceededError):
        session.close()
    assert session.close(commit=False) is None
    assert client.stats().sessions == 0, "what was refused stays open on the service"


class TestPlacesTaken:
    """The service restarted, and others were quicker to come back: it holds all the sessions it may."""

    @pytest.fixture
    def fake(self) -> Iterator[FakeTransport]:
        limits = Limits(max_sessions=1)
        with SuffixCache(limits=limits) as cache:
            cache.namespace("a").add_output(WORDS * 4)
            yield FakeTransport(cache, limits)

    def test_a_session_waits_for_its_place(self, fake: FakeTransport, client: SuffixClient) -> None:
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([11, 12])
        fake.restart()
        other = client.namespace("a").open_session([9])
        asked = len(fake.requests)
        eventually(
            lambda: len(session.step([])) == 0 and opened_since(fake, asked) > 1, "it asks more than once"
        )
        other.close()
        drafts_again(session)
        assert EmptyReason.REFUSED not in client.counts.empty
        assert session.close() is not None
        assert stored(fake._cache) == [[11, 12]]

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
        assert stored(fake._cache) == [[11, 12]]


def opened_since(fake: FakeTransport, start: int) -> int:
    return sum(isinstance(request, pb.OpenSessionRequest) for request in fake.requests[start:])


def test_close_asks_again_for_a_session_that_was_refused(
    fake: FakeTransport, client: SuffixClient, cache: SuffixCache
) -> None:
    """Another tokenizer has the namespace, say, until somebody puts the service right."""
    session = client.namespace("a").open_session([1])
    session.step([11, 12])
    fake.restart()
    session.step([13])  # finds it gone
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


def test_a_session_that_waits_to_be_opened_is_opened_once(fake: FakeTransport, cache: SuffixCache) -> None:
    config = ClientConfig(breaker_failures=1000, breaker_pause_s=1e-9)
    with SuffixClient(config=config, transport=fake) as client:
        session = client.namespace("a").open_session([1, 2, 3])
        fake.restart()
        for word in WORDS * 8:
            session.step([word])
        drafts_again(session)
        assert client.counts.reopened == 1
        assert client.stats().sessions == 1


def test_closing_while_it_opens(fake: FakeTransport, client: SuffixClient, cache: SuffixCache) -> None:
    for i in range(20):
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([i, i])
        fake.restart()
        session.step([i])  # finds it gone
        session.step([i])  # has it opened in the background
        assert session.close() is not None
        assert session.closed
        assert len(session.state) == 3 + 4
    assert stored(cache) == [[i] * 4 for i in range(20)]
    assert client.stats().sessions == 0


@pytest.mark.parametrize("bad", [{"ttl_seconds": -1}, {"labels": {"a": 1}}, {"token_ids": [2**40]}])
def test_bulk_outputs_are_checked_before_they_are_sent(
    fake: FakeTransport, client: SuffixClient, bad: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError):
        client.namespace("a").add_output(**{"token_ids": WORDS, **bad})
    assert fake.requests == []


async def test_asyncio_the_same(fake: FakeTransport, cache: SuffixCache) -> None:
    config = ClientConfig(breaker_failures=3, breaker_pause_s=0.001)
    async with AsyncSuffixClient(config=config, transport=AsyncFakeTransport(fake)) as client:
        session = await client.namespace("a").open_session([1, 2, 3])
        await session.step([11])
        fake.fail_with = down
        assert len(await session.step([12])) == 0
        fake.fail_with = None
        assert len(await session.step([13])) > 0
        fake.restart()
        assert len(await session.step([14])) == 0
        while not len(await session.step([])):
            await asyncio.sleep(0)
        assert client.counts.reopened == 1
        await session.close()
        assert stored(cache) == [[11, 12, 13, 14]]


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [r.getMessage() for r in caplog.records if r.name.startswith("suffixsvc_client")]


def test_a_service_out_of_reach_is_told_once_an_outage(
    fake: FakeTransport, client: SuffixClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A mistyped address left no trace in the log, and its steps were counted as session-lost."""
    fake.fail_with = down
    session = client.namespace("a").open_session([1, 2, 3])
    for word in WORDS:
        session.step([word])
    reasons = {EmptyReason.UNAVAILABLE, EmptyReason.BREAKER_OPEN}
    assert set(client.counts.empty) <= reasons
    assert client.counts.empty[EmptyReason.UNAVAILABLE] > 0
    assert warnings_of(caplog) == ["no drafts until the service answers: down"]
    fake.fail_with = None
    drafts_again(session)
    fake.fail_with = down
    for word in WORDS:
        session.step([word])
    assert warnings_of(caplog) == ["no drafts until the service answers: down"] * 2


def test_a_service_that_does_not_answer_in_time_is_told_when_it_is_asked_no_more(
    fake: FakeTransport, client: SuffixClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A late answer is no outage; so many that the breaker opens are one."""
    session = client.namespace("a").open_session([1])
    fake.fail_with = lambda: ServiceTimeoutError("late")
    session.step([2])
    assert warnings_of(caplog) == []
    for word in WORDS:
        session.step([word])
    assert warnings_of(caplog) == ["no drafts until the service answers: late"]


def test_a_closed_client_opens_no_session(fake: FakeTransport, caplog: pytest.LogCaptureFixture) -> None:
    """It returned a session that never drafted."""
    client = SuffixClient(transport=fake)
    session = client.namespace("a").open_session([1])
    client.close()
    with pytest.raises(ServiceUnavailableError, match=r"^the client is closed\. Make a new client\.$"):
        client.namespace("a").open_session([1])
    fake.fail_with = down
    session.step([2])
    assert warnings_of(caplog) == []

    async def closed() -> None:
        later = AsyncSuffixClient(transport=AsyncFakeTransport(fake))
        await later.close()
        with pytest.raises(ServiceUnavailableError, match="the client is closed"):
            await later.namespace("a").open_session([1])

    asyncio.run(closed())
