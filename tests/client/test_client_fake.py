"""Behaviour of the client under failures, on the shipped fake: deterministic, and without waiting."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from suffixsvc import SuffixCache, wire
from suffixsvc.errors import (
    InvalidInputError,
    InvalidTokensError,
    LimitExceededError,
    ServiceTimeoutError,
    ServiceUnavailableError,
)
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import AsyncSuffixClient, ClientConfig, EmptyReason, SuffixClient
from suffixsvc_client.testing import AsyncFakeTransport, FakeTransport
from support.engine_parts import parts_of
from support.fake_client import LIMITS, WORDS, down, drafts_again, steps_sent, stored, warnings_of


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
        """The reply was late, but the tokens had arrived: sent again, they are an equal overlap."""
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
        sent = [item.verified if item.HasField("verified") else None for item in steps_sent(fake)]
        assert sent == [None, None, pb.Verified(width=1), None]

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

    def test_lost_context_is_sent_again_in_order(
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
        _, row = parts_of(cache).store.scan()
        assert row.output.token_ids.tolist() == [11, 12, 13, 14]
        assert row.output.segment_lens == (3, 1)

    def test_a_wrong_argument_raises_while_the_service_is_down(
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
    def test_a_dead_service_is_not_queried(self, fake: FakeTransport, cache: SuffixCache) -> None:
        config = ClientConfig(breaker_failures=3, breaker_pause_s=1000, breaker_max_pause_s=1000)
        with SuffixClient(config=config, transport=fake) as client:
            session = client.namespace("a").open_session([1])
            fake.fail_with = down
            for _ in range(10):
                session.step([11])
            assert len(steps_sent(fake)) == 3
            other = client.namespace("a").open_session([1])  # this sends nothing, either
            assert other.length == 1
            assert client.counts.empty == {EmptyReason.UNAVAILABLE: 3, EmptyReason.BREAKER_OPEN: 7}

    def test_it_detects_that_the_service_is_back(self, fake: FakeTransport, client: SuffixClient) -> None:
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
        _, row = parts_of(cache).store.scan()
        assert row.output.token_ids.tolist() == [11, 12, 13, 14]
        assert row.output.segment_lens == (2, 2)
        assert row.output.prompt_tail.tolist() == [1, 2, 3]
        assert row.output.labels == {"agent": "x"}

    def test_a_session_opened_while_the_service_was_down(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        fake.fail_with = down
        session = client.namespace("a").open_session([1, 2, 3])
        session.step([11, 12])
        fake.fail_with = None
        drafts_again(session)
        session.close()
        assert stored(cache) == [[11, 12]]

    def test_close_sends_everything_again_to_a_restarted_service(
        self, fake: FakeTransport, client: SuffixClient, cache: SuffixCache
    ) -> None:
        session = client.namespace("a").open_session([1])
        session.step([11, 12])
        fake.restart()
        assert session.close() is not None
        assert stored(cache) == [[11, 12]]

    def test_discarding_a_lost_session(self, fake: FakeTransport, client: SuffixClient) -> None:
        session = client.namespace("a").open_session([1])
        session.step([11, 12])
        fake.restart()
        sent = len(fake.requests)
        assert session.close(commit=False) is None
        assert session.closed
        assert len(fake.requests) == sent + 1


def test_a_session_over_the_limit_is_refused_and_close_raises(
    client: SuffixClient, cache: SuffixCache
) -> None:
    session = client.namespace("a").open_session([1])
    assert len(session.step([11] * (LIMITS.max_session_tokens + 1))) == 0
    assert len(session.step([11])) == 0
    assert client.counts.empty == {EmptyReason.REFUSED: 2}
    with pytest.raises(LimitExceededError):
        session.close()
    assert session.close(commit=False) is None
    assert client.stats().sessions == 0, "a refused session stays open on the service"


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


@pytest.mark.parametrize("bad", [{"ttl_seconds": -1}, {"labels": {"a": 1}}, {"token_ids": [2**40]}])
def test_bulk_outputs_are_checked_before_they_are_sent(
    fake: FakeTransport, client: SuffixClient, bad: dict[str, Any]
) -> None:
    with pytest.raises(InvalidInputError):
        client.namespace("a").add_output(**{"token_ids": WORDS, **bad})
    assert fake.requests == []


async def test_the_asyncio_client_behaves_alike(fake: FakeTransport, cache: SuffixCache) -> None:
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


def test_an_outage_is_logged_once(
    fake: FakeTransport, client: SuffixClient, caplog: pytest.LogCaptureFixture
) -> None:
    """What happened: a mistyped address left no log line, and its steps were counted as session-lost."""
    fake.fail_with = down
    session = client.namespace("a").open_session([1, 2, 3])
    for word in WORDS:
        session.step([word])
    reasons = {EmptyReason.UNAVAILABLE, EmptyReason.BREAKER_OPEN}
    assert set(client.counts.empty) <= reasons
    assert client.counts.empty[EmptyReason.UNAVAILABLE] > 0
    assert warnings_of(caplog) == ["no drafts from the service until it answers: down"]
    fake.fail_with = None
    drafts_again(session)
    fake.fail_with = down
    for word in WORDS:
        session.step([word])
    assert warnings_of(caplog) == ["no drafts from the service until it answers: down"] * 2


def test_a_draft_longer_than_requested_is_refused(cache: SuffixCache) -> None:
    class Generous(FakeTransport):
        def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
            replies = super().exchange(requests, timeout_s)
            for reply in replies:
                for item in reply.steps.items:
                    draft = item.reply.draft
                    draft.token_ids = np.full(600, 3, np.int32).tobytes()
                    draft.probs = np.full(600, 0.9, np.float32).tobytes()
                    draft.sources = b"\1" * 600
                    draft.match_lens = np.full(600, 9, np.int32).tobytes()
                    draft.parents = b""
            return replies

    with SuffixClient(transport=Generous(cache)) as client:
        session = client.namespace("a").open_session([1, 2])
        assert len(session.step([5], 4)) == 0
        assert client.counts.empty, "and it is counted"


def test_late_answers_are_logged_when_the_breaker_opens(
    fake: FakeTransport, client: SuffixClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A single late answer is not an outage; enough to open the breaker are."""
    session = client.namespace("a").open_session([1])
    fake.fail_with = lambda: ServiceTimeoutError("late")
    session.step([2])
    assert warnings_of(caplog) == []
    for word in WORDS:
        session.step([word])
    assert warnings_of(caplog) == ["no drafts from the service until it answers: late"]


def test_a_closed_client_opens_no_session(fake: FakeTransport, caplog: pytest.LogCaptureFixture) -> None:
    """What happened: it returned a session that never drafted."""
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
