"""Followers whose service is gone for a while, and sizes that must stay bounded."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_service import FaultyService

from suffixsvc import Limits, SuffixCache
from suffixsvc.access.control import Peer
from suffixsvc.errors import LimitExceededError, ServiceUnavailableError, UnknownSessionError
from suffixsvc.policies import Policies
from suffixsvc.service import server, servicer
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc.v1.suffix_cache_pb2 import StreamRequest
from suffixsvc_client.transport.grpc_sync import GrpcTransport
from suffixsvc_follower import Follower
from suffixsvc_follower.stream import connection
from suffixsvc_follower.uplink import uplink
from support.following import CONFIG, Connect, followed, held, logged
from support.serving import eventually, socket_dir

PATH = "acme/sql"
TEXT = [7, 8, 9, 10, 11, 12]
QUICK = replace(
    CONFIG,
    client=replace(CONFIG.client, breaker_pause_s=0.01, breaker_max_pause_s=0.05),
)


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LONGEST_PAUSE", 0.1)
    monkeypatch.setattr(server, "STOP_GRACE_SECONDS", 0.05)


@pytest.fixture
def service() -> Iterator[FaultyService]:
    with socket_dir() as folder:
        service = FaultyService(folder, Limits(), Policies())
        yield service
        service.stop()


def texts(service: FaultyService) -> list[list[int]]:
    if not logged(service.cache, PATH):
        return []
    return sorted(each.output.token_ids.tolist() for each in service.cache._parts.store.scan(PATH))


@pytest.mark.parametrize("killed", [False, True])
def test_drafting_goes_on_and_what_was_written_arrives_later(service: FaultyService, killed: bool) -> None:
    service.cache.namespace(PATH).add_output(TEXT)
    with Follower(service.address, QUICK, [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        namespace = follower.namespace(PATH)
        before, waiting = namespace.open_session([1]), namespace.open_session([1])
        before.step([20, 21, 22])
        waiting.step([30, 31, 32])
        service.stop(killed=killed)

        assert before.step(TEXT[:3], max_draft_tokens=3).token_ids.tolist() == TEXT[3:]
        during = namespace.open_session([1])
        assert during.step(TEXT[:3], max_draft_tokens=3).token_ids.tolist() == TEXT[3:]
        for session in (before, during):
            for _ in range(2):
                with pytest.raises(ServiceUnavailableError) as raised:
                    session.close()
                assert raised.value.remedy
        waiting.step([33])
        assert waiting.close(wait=False) is None
        during.step([40])  # is open

        service.start()
        ids = {before.close(), during.close()}
        assert None not in ids
        wanted = sorted([TEXT, [20, 21, 22, *TEXT[:3]], [30, 31, 32, 33], [*TEXT[:3], 40]])
        eventually(lambda: texts(service) == wanted, "all is stored once")
        eventually(lambda: held(follower, PATH) == logged(service.cache, PATH), "and followed")
        eventually(lambda: follower._parts.uplink.idle, "nothing is left to be sent")


def test_the_journal_has_a_limit(
    service: FaultyService, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of more closes than fit, the oldest are lost, and logged, once."""
    caplog.set_level(logging.ERROR, "suffixsvc_follower")
    with Follower(service.address, replace(QUICK, max_unsent_tokens=500), [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        sessions = [follower.namespace(PATH).open_session([1]) for _ in range(10)]
        service.stop(killed=True)
        for number, session in enumerate(sessions):
            session.step(list(range(1000 * number, 1000 * number + 99)))
            session.close(wait=False)
            assert follower._parts.uplink._unsent._tokens <= 500
        lost = [each for each in caplog.records if "too many tokens wait" in each.getMessage()]
        assert len(lost) == 5
        assert "could not be stored" not in capsys.readouterr().out
        service.start()
        eventually(lambda: len(texts(service)) == 5, "the others are stored")
        assert [tokens[0] for tokens in texts(service)] == [5000, 6000, 7000, 8000, 9000]
        assert followed(follower, PATH).copy.live_sessions == 0


def test_a_follower_is_closed_after_its_outputs_have_arrived(service: FaultyService) -> None:
    """Those of closes that did not wait, although the service is gone when it is closed."""
    with Follower(service.address, QUICK, [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        session, discarded = (follower.namespace(PATH).open_session([1]) for _ in range(2))
        service.stop(killed=True)
        session.step(TEXT)
        session.close(wait=False)
        discarded.close(commit=False)
        uplink = follower._parts.uplink
        eventually(lambda: uplink._unsent._paused, "an attempt has failed")
        starts = threading.Timer(0.3, service.start)
        starts.start()
    starts.join()
    assert texts(service) == [TEXT]


def test_text_that_did_not_arrive_is_sent_again(
    service: FaultyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages without a reply are lost; those whose reply is waited for show it."""
    monkeypatch.setattr(GrpcTransport, "post", lambda _self, _requests: None)
    with (
        Follower(service.address, QUICK, [(PATH, "")]) as follower,
        Follower(service.address, QUICK, [(PATH, "")]) as other,
    ):
        assert follower.wait(PATH, 60)
        assert other.wait(PATH, 60)
        session = follower.namespace(PATH).open_session([1])
        sent = session.sent
        assert sent is not None
        for number in range(40):
            session.step([100 + number])
            if number % 10 == 0:
                eventually(lambda: not sent.has_news and sent.arrived, "the service has it")
        eventually(
            lambda: followed(other, PATH).copy.index.count(np.arange(100, 140, dtype=np.int32)),
            "the other has it",
        )
        assert followed(follower, PATH).copy.mirrors.tokens == 0
        assert session.close() is not None


def test_a_message_is_of_bounded_size(service: FaultyService, monkeypatch: pytest.MonkeyPatch) -> None:
    """What many sessions wrote while nothing could be sent goes in several messages."""
    monkeypatch.setattr(uplink, "_MESSAGE_TOKENS", 100)
    sizes: list[int] = []
    send = GrpcTransport._send

    def counted(
        transport: GrpcTransport, requests: Sequence[StreamRequest], answers: Any, timeout_s: float
    ) -> list[int]:
        sizes.extend(
            sum(len(step.new_token_ids) // 4 for step in request.steps.items) for request in requests
        )
        return send(transport, requests, answers, timeout_s)

    with Follower(service.address, QUICK, [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        sessions = [follower.namespace(PATH).open_session([1]) for _ in range(10)]
        monkeypatch.setattr(GrpcTransport, "_send", counted)
        with follower._parts.uplink._lock:  # its thread looks at the sessions after all have written
            for number, session in enumerate(sessions):
                session.step(range(1000 * number, 1000 * number + 60))
        arrived = [session.sent for session in sessions]
        eventually(
            lambda: all(each is not None and not each.has_news and each.arrived for each in arrived),
            "the service has it",
        )
        assert max(sizes) <= 100
        assert sum(sizes) >= 10 * 60
        for session in sessions:
            session.close(commit=False)


def test_a_session_that_cannot_be_opened_does_not_make_others_wait(
    service: FaultyService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its text cannot arrive; what others write is sent without replies all the same."""
    posted: list[int] = []
    post = GrpcTransport.post

    def counted(transport: GrpcTransport, requests: Sequence[StreamRequest]) -> None:
        posted.append(len(requests))
        post(transport, requests)

    monkeypatch.setattr(GrpcTransport, "post", counted)
    with Follower(service.address, QUICK, [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        namespace = follower.namespace(PATH)
        good, bad = namespace.open_session([1]), namespace.open_session([1])
        sent = bad.sent
        assert sent is not None
        state = sent.remote.verbs.state
        state.mark_lost(UnknownSessionError("for the test"))
        state.on_open_failure(LimitExceededError("for the test"), math.inf)
        bad.step([5])
        eventually(lambda: not sent.has_news, "it is recorded")
        eventually(lambda: good.step([6]) is not None and len(posted) > 3, "others are posted")
        assert not sent.arrived
        good.close(commit=False)
        bad.close(commit=False)


def test_a_full_segment_cache(
    cache: SuffixCache, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts go on from what is hot; the segment is missing."""
    monkeypatch.setattr(servicer, "peer_of", lambda _peer: Peer.NETWORK)
    sealed = [token + 100 for token in TEXT]
    for shift in range(20):
        cache.namespace(PATH).add_output([token + 50 * shift for token in sealed])
    cache.seal(PATH)
    cache.namespace(PATH).add_output(TEXT)
    config = replace(CONFIG, segment_cache=tmp_path / "cache", max_segment_cache_bytes=1000)
    with Follower(address, config, [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        entry = followed(follower, PATH)
        eventually((tmp_path / "cache").is_dir, "the fetch was attempted")
        with follower.namespace(PATH).open_session([1], private=True) as session:
            assert session.step(TEXT[:3], max_draft_tokens=3).token_ids.tolist() == TEXT[3:]
            assert len(session.step(sealed[:3], max_draft_tokens=3)) == 0
        assert entry.copy.missing_segments()
        assert not entry.copy.sealed()
        eventually(lambda: not list((tmp_path / "cache").iterdir()), "nothing is left of it")
    with Follower(address, replace(config, max_segment_cache_bytes=1 << 20), [(PATH, "")]) as follower:
        assert follower.wait(PATH, 60)
        eventually(lambda: held(follower, PATH) == logged(cache, PATH), "with room, it is fetched")


def test_thousands_of_namespaces(cache: SuffixCache, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change costs a message, however many namespaces are followed."""
    paths = [f"many/{number}" for number in range(1000)]
    for path in paths[:5]:
        cache.namespace(path).add_output(TEXT)
    with Follower(address, CONFIG, [(path, "") for path in paths]) as follower:
        for path in paths:
            assert follower.wait(path, 300)
        received: list[pb.WatchReply] = []
        apply = follower._parts.applier.apply

        def counted(reply: pb.WatchReply, received_at: float) -> None:
            received.append(reply)
            apply(reply, received_at)

        monkeypatch.setattr(follower._parts.applier, "apply", counted)
        for number in range(5):
            cache.namespace(paths[number]).add_output([number, *TEXT])
        eventually(lambda: all(len(held(follower, path)) == 2 for path in paths[:5]), "they are followed")
        with_changes = [each for each in received if not each.HasField("changes") or each.changes.namespaces]
        assert len(with_changes) <= 5 + 1  # and the live text of the last one, which came with its contents
        assert sum(each.ByteSize() for each in received) < 5 * 1000


def test_a_session_of_a_million_tokens(follow: Connect) -> None:
    """Its text arrives at a sibling, which holds no more of it than its limit."""
    writer, reader = follow(PATH), follow(PATH)
    assert reader.wait(PATH, 60)
    session = writer.namespace(PATH).open_session([1])
    total = (1 << 20) - 1
    for first in range(0, total, 1 << 17):
        session.step(range(first, min(total, first + (1 << 17))), max_draft_tokens=0)
    mirrors = followed(reader, PATH).copy.mirrors

    def drafts() -> bool:
        with reader.namespace(PATH).open_session([1], private=True) as other:
            end = [total - 8, total - 7, total - 6]
            return other.step(end, max_draft_tokens=3).token_ids.tolist() == [total - 5, total - 4, total - 3]

    eventually(drafts, "its end is drafted by the sibling")
    assert mirrors.tokens <= 1 << 20
    assert session.close() is not None
    eventually(lambda: len(mirrors) == 0, "its mirror is gone")
    eventually(drafts, "the output is drafted")
