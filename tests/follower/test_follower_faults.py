"""Followers of services that are broken, hostile, older, later, or do not let them follow."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from suffixsvc import SuffixCache, log_wire
from suffixsvc.errors import (
    LimitExceededError,
    ProtocolError,
    ServiceError,
    ServiceUnavailableError,
    TokenizerMismatchError,
    UnsupportedVersionError,
)
from suffixsvc.service.followers import requests
from suffixsvc.service.listeners.listen import parse_address
from suffixsvc.service.server import SuffixServer
from suffixsvc.v1 import watch_pb2 as pb
from suffixsvc_client import ClientSession
from suffixsvc_follower import Follower, FollowState, connect
from suffixsvc_follower.stream import connection
from support.following import CONFIG, Connect, followed, held
from support.hostile_service import HostileService
from support.scripted_log import PATH, BrokenOffError, ScriptedLog, changes, contents, output, scripted_log
from support.serving import eventually, socket_dir

TEXT = [7, 8, 9, 10, 11, 12]
OTHER = [21, 22, 23, 24, 25, 26]


@pytest.fixture(autouse=True)
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_LONGEST_PAUSE", 0.1)


def drafted(follower: Follower, tokens: list[int]) -> list[int]:
    """What follows the first three of these tokens."""
    with follower.namespace(PATH).open_session([1], private=True) as session:
        found: list[int] = session.step(tokens[:3], max_draft_tokens=3).token_ids.tolist()
    return found


def sealed(**changed: Any) -> pb.WatchReply:
    fields = {"name": "a.seg", "first_lsn": 1, "last_lsn": 9, "header_digest": bytes(16)} | changed
    segments = [pb.SealedSegment(**fields)]
    return pb.WatchReply(sealed=pb.SealedContents(namespace=PATH, segments=segments))


MALFORMED = {
    "torn tokens": changes(output(2, TEXT, token_ids=b"abc"), lsn=2),
    "negative tokens": changes(output(2, TEXT, token_ids=b"\xff" * 8), lsn=2),
    "no tokens": changes(output(2, []), lsn=2),
    "id 0": changes(output(0, TEXT), lsn=2),
    "short uuid": changes(output(2, TEXT, uuid=b"abc"), lsn=2),
    "runs of other tokens": changes(output(2, TEXT, segment_lens=[4, 4]), lsn=2),
    "an empty run": changes(output(2, TEXT, segment_lens=[6, 0]), lsn=2),
    "torn tail": changes(output(2, TEXT, prompt_tail=b"abc"), lsn=2),
    "long tail": changes(output(2, TEXT, prompt_tail=bytes(4 * 65)), lsn=2),
    "the second output": changes(output(2, TEXT), output(3, TEXT, uuid=b""), lsn=3),
    "live text": pb.WatchReply(
        live=pb.LiveText(namespace=PATH, pieces=[pb.LivePiece(session_id="s", output=b"abc")])
    ),
    "a path as a name": sealed(name="../a.seg"),
    "a range that ends before it begins": sealed(last_lsn=0),
    "a short digest": sealed(header_digest=b"abc"),
    "torn ids": pb.WatchReply(sealed=pb.SealedContents(namespace=PATH, deleted=b"abc")),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_reply_ends_the_stream_and_what_it_brought(what: str) -> None:
    """The next stream begins with nothing: no position, no generation, nothing of the one before is held."""

    def script(number: int) -> Iterator[pb.WatchReply]:
        if number == 0:
            yield from contents(output(1, TEXT))
            yield MALFORMED[what]
        else:
            yield from contents(output(5, OTHER), lsn=5)

    service = ScriptedLog(script)
    with scripted_log(service) as address, Follower(address, CONFIG, [(PATH, "")]) as follower:
        eventually(lambda: held(follower, PATH) == {5}, "the second stream is followed")
        assert not service.hellos[1].HasField("position")
        assert service.follows[1].generation == 0
        eventually(lambda: drafted(follower, OTHER) == OTHER[3:], "its text is drafted")
        assert drafted(follower, TEXT) == []
        assert len(followed(follower, PATH).copy.mirrors) == 0
        followed(follower, PATH).copy.check()
        assert follower.state is FollowState.FOLLOWING


def test_what_was_not_asked_for_is_left_out() -> None:
    """Other namespaces, outputs before contents, a kind of a later version, a position that goes back."""
    elsewhere = "not/followed"

    def script(_number: int) -> Iterator[pb.WatchReply]:
        yield pb.WatchReply()
        yield pb.WatchReply(outputs=pb.HotOutputs(namespace=PATH, outputs=[output(9, OTHER)], last=True))
        yield changes(output(9, OTHER), lsn=9)
        yield from contents(output(1, TEXT), lsn=4)
        yield from contents(output(1, TEXT), path=elsewhere)
        yield changes(output(7, OTHER), lsn=7, path=elsewhere)
        yield changes(output(3, OTHER), lsn=3)  # before the contents, which did not hold it
        yield changes(output(8, [31, 32, 33, 34, 35]), lsn=8)
        yield changes(lsn=2)

    service = ScriptedLog(script)
    with scripted_log(service) as address, Follower(address, CONFIG, [(PATH, "")]) as follower:
        eventually(lambda: held(follower, PATH) == {1, 8}, "it is followed")
        eventually(lambda: follower._parts.applier.position.lsn == 2, "all is applied")  # type: ignore[union-attr]
        assert held(follower, PATH) == {1, 8}
        assert drafted(follower, OTHER) == []
        assert follower._parts.table.get(elsewhere) is None
        assert len(service.hellos) == 1


def test_contents_that_break_off_are_sent_again() -> None:
    def script(number: int) -> Iterator[pb.WatchReply]:
        if number == 0:
            yield from contents(output(1, TEXT), lsn=4, last=False)
            raise BrokenOffError
        yield from contents(output(1, TEXT), output(2, OTHER), lsn=4)

    service = ScriptedLog(script)
    with scripted_log(service) as address, Follower(address, CONFIG, [(PATH, "")]) as follower:
        eventually(lambda: held(follower, PATH) == {1, 2}, "it is followed")
        assert follower.wait(PATH, 60)
        assert service.follows[1].generation == 0, "the first contents were not complete"


def test_a_position_is_reported_when_it_holds_for_every_namespace() -> None:
    """A stream tells positions before it has continued all namespaces: receipts must not rest on them."""
    other, go = "acme/other", threading.Event()

    def script(number: int) -> Iterator[pb.WatchReply]:
        if number == 0:
            yield from contents(output(1, TEXT))
            yield from contents(output(1, TEXT), path=other)
            eventually(lambda: service.reported == 1, "the contents are reported")
            raise BrokenOffError
        yield pb.WatchReply(live=pb.LiveText(namespace=PATH, reset=True))
        yield changes(output(9, OTHER), lsn=9)
        go.wait()
        yield pb.WatchReply(live=pb.LiveText(namespace=other, reset=True))

    service = ScriptedLog(script)
    with (
        scripted_log(service) as address,
        Follower(address, CONFIG, [(PATH, ""), (other, "")]) as follower,
    ):
        eventually(lambda: held(follower, PATH) == {1, 9}, "the second stream is followed")
        ticks = follower._parts._ticks
        eventually(lambda: follower._parts._ticks > ticks + 8, "it has had time to report")
        assert service.reported == 1
        assert follower._parts.applier.complete.lsn == 1, "another stream would begin there"  # type: ignore[union-attr]
        go.set()
        eventually(lambda: service.reported == 9, "it is reported")


def test_a_large_message_is_applied() -> None:
    rows = [output(number, range(1000 * number, 1000 * number + 900)) for number in range(1, 1500)]

    service = ScriptedLog(lambda _number: contents(*rows, lsn=1500))
    with scripted_log(service) as address, Follower(address, CONFIG, [(PATH, "")]) as follower:
        assert follower.wait(PATH, 300)
        assert len(held(follower, PATH)) == len(rows)


@pytest.mark.parametrize(
    ("welcome", "error"),
    [
        (pb.WatchWelcome(protocol=2, lease_seconds=15), UnsupportedVersionError),
        (pb.WatchWelcome(protocol=0, lease_seconds=15), UnsupportedVersionError),
        (pb.WatchWelcome(protocol=1, lease_seconds=0), ProtocolError),
        (pb.WatchWelcome(protocol=1, lease_seconds=float("nan")), ProtocolError),
    ],
)
def test_a_welcome_that_cannot_be_followed(welcome: pb.WatchWelcome, error: type[Exception]) -> None:
    with scripted_log(ScriptedLog(lambda _number: [], welcome)) as address, pytest.raises(error):
        connect(address, [PATH], mode="follow", config=CONFIG)


def draft_by_the_service(address: str, cache: SuffixCache) -> None:
    """With mode="auto", the service drafts, and nothing private can be drafted for."""
    cache.namespace(PATH).add_output(TEXT)
    with connect(address, [PATH], config=CONFIG) as follower:
        assert isinstance(follower, Follower)
        assert follower.state is FollowState.REFUSED
        with follower.namespace(PATH).open_session([1]) as session:
            assert isinstance(session, ClientSession)
            assert session.step(TEXT[:3], max_draft_tokens=3).token_ids.tolist() == TEXT[3:]
            session.close(commit=False)
        with pytest.raises(ServiceUnavailableError, match="private"):
            follower.namespace(PATH).open_session([1], private=True)


def test_a_service_of_a_later_version(
    cache: SuffixCache, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "WATCH_PROTOCOL", 2)
    with pytest.raises(UnsupportedVersionError, match="Upgrade the follower"):
        connect(address, mode="follow", config=CONFIG)
    draft_by_the_service(address, cache)


def test_a_service_of_an_earlier_version(
    cache: SuffixCache, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "WATCH_PROTOCOL", 2)
    with pytest.raises(UnsupportedVersionError, match="Upgrade the service"):
        connect(address, mode="follow", config=CONFIG)
    draft_by_the_service(address, cache)
    assert log_wire.WATCH_PROTOCOL == 1


def test_a_service_without_watch() -> None:
    service = HostileService(0, 1000)
    service.truth = [1, *TEXT]
    with scripted_log(service) as address:
        with pytest.raises(UnsupportedVersionError, match="Upgrade the service, or connect"):
            connect(address, mode="follow", config=CONFIG)
        with connect(address, config=CONFIG) as follower:
            assert isinstance(follower, Follower)
            assert isinstance(follower.refusal, UnsupportedVersionError)
            with follower.namespace(PATH).open_session([1]) as session:
                assert isinstance(session, ClientSession)
                session.step(TEXT[:3])
            assert service.answers == 1


def test_a_service_that_allows_no_followers(tmp_path: Path) -> None:
    with SuffixCache(tmp_path / "data") as cache, socket_dir() as folder:
        server = SuffixServer(cache, [parse_address(f"unix:{folder / 's.sock'}")], max_followers=0)
        [address] = server.start()
        try:
            with pytest.raises(LimitExceededError, match="max-followers"):
                connect(address, mode="follow", config=CONFIG)
            draft_by_the_service(address, cache)
        finally:
            server.drain()


def test_another_tokenizer_is_refused(cache: SuffixCache, follow: Connect) -> None:
    cache.namespace(PATH, "theirs").add_output(TEXT)
    follower = follow()
    with pytest.raises(TokenizerMismatchError):
        follower.wait(PATH, 60, tokenizer="ours")
    assert held(follower, PATH) == set()
    assert drafted(follower, TEXT) == []


def test_closing_does_not_wait_for_a_service_that_hangs() -> None:
    """Neither for closes without a waiting caller, nor for discards, nor for one that is waited for."""
    service = ScriptedLog(lambda _number: contents())
    service.hanging.set()
    config = replace(CONFIG, client=replace(CONFIG.client, call_timeout_s=1.0))
    with scripted_log(service) as address:
        follower = Follower(address, config, [(PATH, "")])
        assert follower.wait(PATH, 60)
        sessions = [follower.namespace(PATH).open_session([1]) for _ in range(60)]
        for number, session in enumerate(sessions[:-1]):
            session.step(TEXT)
            session.close(commit=number % 2 == 0, wait=False)
        sessions[-1].step(TEXT)
        errors: list[BaseException] = []

        def close() -> None:
            try:
                sessions[-1].close()
            except ServiceError as error:
                errors.append(error)

        waiting = threading.Thread(target=close)
        waiting.start()
        follower.close()
        waiting.join()
        assert len(errors) == 1
