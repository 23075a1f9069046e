"""The feed of live text, tick by tick: what it hands out, to whom, and what a slow subscriber loses."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.core import WriteSignal
from suffixsvc.index import Session
from suffixsvc.service.followers import live_feed
from suffixsvc.service.followers.live_feed import LiveFeed, Subscriber
from suffixsvc.service.followers.replies import ReplyWriter
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import watch_pb2
from support.service_sessions import open_session, step, tokens
from support.serving import eventually


class Taken:
    """A subscriber whose messages are read at will."""

    def __init__(self, feed: LiveFeed, follower_id: str = "reader") -> None:
        self.lost = 0
        self.feed = feed
        self.subscriber = Subscriber(lambda: None, self._lose, follower_id)

    def _lose(self) -> None:
        self.lost += 1

    def begin(self) -> list[watch_pb2.LivePiece]:
        return self.pieces(self.feed.subscribe(self.subscriber, "a", reset=False))

    def take(self) -> list[watch_pb2.LivePiece]:
        return self.pieces([message for _, message in self.subscriber.take()])

    @staticmethod
    def pieces(messages: list[bytes]) -> list[watch_pb2.LivePiece]:
        return [piece for each in messages for piece in watch_pb2.WatchReply.FromString(each).live.pieces]


@pytest.fixture
def feed(handlers: Handlers) -> LiveFeed:
    return LiveFeed(handlers.sessions.table, ReplyWriter(1 << 20), WriteSignal())


def test_a_message_is_made_once_for_all_subscribers(handlers: Handlers, feed: LiveFeed) -> None:
    session_id = open_session(handlers)
    one, two = Taken(feed), Taken(feed)
    assert one.begin() == two.begin() == []
    handlers.step(step(session_id, 4, 5), OPERATOR_CALLER)
    assert feed.tick() == 2
    [(_, first)], [(_, second)] = one.subscriber.take(), two.subscriber.take()
    assert first is second
    assert feed.tick() == 0, "nothing was written"
    feed.unsubscribe(two.subscriber, "a")
    handlers.step(step(session_id, 6), OPERATOR_CALLER)
    assert feed.tick() == 1
    [piece] = one.take()
    assert (piece.session_id, piece.at, piece.output) == (session_id, 5, tokens(6))
    feed.leave(one.subscriber)
    handlers.step(step(session_id, 7), OPERATOR_CALLER)
    assert feed.tick() == 0


def test_a_follower_is_not_sent_the_text_of_its_own_sessions(handlers: Handlers, feed: LiveFeed) -> None:
    for session_id, follower_id in (("of one", "one"), ("of two", "two"), ("of a client", "")):
        handlers.open_session(
            pb.OpenSessionRequest(namespace="a", session_id=session_id, follower_id=follower_id),
            OPERATOR_CALLER,
        )
    everything = {"of one", "of two", "of a client"}
    readers = {name: Taken(feed, name) for name in ("one", "two", "three")}
    for number, (name, reader) in enumerate(readers.items()):
        present = everything if number else set()
        assert {piece.session_id for piece in reader.begin()} == present - {f"of {name}"}
        for session_id in everything:
            handlers.step(step(session_id, 4), OPERATOR_CALLER)
        feed.tick()
        for other, begun in readers.items():
            expected = everything - {f"of {other}"} if number >= list(readers).index(other) else set()
            assert {piece.session_id for piece in begun.take()} == expected
    for session_id in everything:
        handlers.close_session(pb.CloseSessionRequest(session_id=session_id, discard=True), OPERATOR_CALLER)
    feed.tick()
    for name, reader in readers.items():
        assert {piece.session_id for piece in reader.take() if piece.ended} == everything - {f"of {name}"}


def test_a_session_that_is_being_opened_is_not_sent_to_its_follower(
    handlers: Handlers, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Live text is read from a session as soon as the table has it."""
    one, other = Taken(feed, "one"), Taken(feed, "other")
    one.begin()
    other.begin()
    stop_learning = Session.stop_learning

    def looked_at_meanwhile(session: Session) -> None:
        feed.tick()
        stop_learning(session)
        feed.tick()

    monkeypatch.setattr(Session, "stop_learning", looked_at_meanwhile)
    handlers.open_session(
        pb.OpenSessionRequest(
            namespace="a", session_id="of one", follower_id="one", output_token_ids=tokens(4)
        ),
        OPERATOR_CALLER,
    )
    feed.tick()
    assert [piece.output for piece in other.take()] == [tokens(4)]
    assert one.take() == []


def test_a_new_subscriber_gets_the_present_text_and_then_what_follows(
    handlers: Handlers, feed: LiveFeed
) -> None:
    session_id = open_session(handlers)
    handlers.step(step(session_id, 4, 5), OPERATOR_CALLER)
    one = Taken(feed)
    [piece] = one.begin()
    assert (piece.at, piece.context, piece.output) == (0, tokens(1, 2, 3), tokens(4, 5))
    assert feed.tick() == 0
    handlers.step(step(session_id, 6), OPERATOR_CALLER)
    two = Taken(feed)
    [piece] = two.begin()
    assert piece.output == tokens(4, 5, 6), "what was not handed out yet is part of it"
    [piece] = one.take()
    assert piece.output == tokens(6)
    assert feed.tick() == 0


def test_present_text_is_bounded(handlers: Handlers, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "_PRESENT_TOKENS", 8)
    for session_id in (open_session(handlers), open_session(handlers)):
        handlers.step(step(session_id, *range(10, 30)), OPERATOR_CALLER)
    pieces = Taken(feed).begin()
    assert [piece.output for piece in pieces] == [tokens(26, 27, 28, 29)] * 2


def test_a_namespace_that_is_deleted_ends_live_text(
    handlers: Handlers, cache: SuffixCache, feed: LiveFeed
) -> None:
    session_id = open_session(handlers)
    one = Taken(feed)
    one.begin()
    handlers.step(step(session_id, 4), OPERATOR_CALLER)
    feed.tick()
    one.take()
    cache.delete_namespace("a", force=True)
    handlers.step(step(session_id, 5), OPERATOR_CALLER)
    feed.tick()
    [piece] = one.take()
    assert piece.ended
    feed.tick()
    assert one.take() == []
    assert Taken(feed).begin() == []
    handlers.close_session(pb.CloseSessionRequest(session_id=session_id), OPERATOR_CALLER)
    feed.tick()
    assert one.take() == [], "it has ended once"


def test_an_id_that_is_used_again_begins_anew(handlers: Handlers, feed: LiveFeed) -> None:
    one = Taken(feed)
    one.begin()
    for text in ((4, 5), (6,)):
        open_session(handlers, "same")
        handlers.step(step("same", *text), OPERATOR_CALLER)
        feed.tick()
        handlers.close_session(pb.CloseSessionRequest(session_id="same", discard=True), OPERATOR_CALLER)
    open_session(handlers, "same")
    feed.tick()
    assert [(piece.ended, piece.output) for piece in one.take()] == [
        (False, tokens(4, 5)),
        (True, b""),
        (False, tokens(6)),
        (True, b""),
    ]


def test_live_text_ends_after_the_store_has_decided(tmp_path: Path) -> None:
    """A close that does not wait: the text stays until the output is in the log."""
    with SuffixCache(tmp_path / "d") as cache:
        handlers = Handlers(cache, cache._parts.sessions._limits, durable=True)
        feed = LiveFeed(handlers.sessions.table, ReplyWriter(1 << 20), WriteSignal())
        one = Taken(feed)
        one.begin()
        session_id = open_session(handlers)
        handlers.step(step(session_id, 4), OPERATOR_CALLER)
        feed.tick()
        one.take()
        let_go = threading.Event()
        store = cache._parts.store
        blocked = threading.Thread(
            target=lambda: store._call(lambda _view: let_go.wait(60))  # holds the store's thread
        )
        blocked.start()
        try:
            handlers.close_session(
                pb.CloseSessionRequest(session_id=session_id, no_wait=True), OPERATOR_CALLER
            )
            feed.tick()
            assert one.take() == []
        finally:
            let_go.set()
            blocked.join()
        store.barrier()
        eventually(lambda: feed.tick() or one.subscriber._queue, "it ends")
        [piece] = one.take()
        assert piece.ended


def test_a_subscriber_that_does_not_take_loses_live_text(
    handlers: Handlers, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feed, "MAX_QUEUED_BYTES", 300)
    session_id = open_session(handlers)
    one, two = Taken(feed), Taken(feed)
    one.begin()
    two.begin()
    for n in range(20):
        handlers.step(step(session_id, n), OPERATOR_CALLER)
        feed.tick()
        two.take()
    assert (one.lost, two.lost) == (1, 0)
    assert one.take() == []
    assert one.subscriber.lost
    one.subscriber.begin_again()
    [piece] = one.begin()
    assert piece.output == tokens(*range(20))
    handlers.step(step(session_id, 77), OPERATOR_CALLER)
    feed.tick()
    assert [piece.output for piece in one.take()] == [tokens(77)]


def test_a_subscriber_that_begins_again_gets_nothing_twice(handlers: Handlers, feed: LiveFeed) -> None:
    session_id = open_session(handlers)
    one = Taken(feed)
    one.begin()
    handlers.step(step(session_id, 4), OPERATOR_CALLER)
    [piece] = one.begin()
    assert piece.output == tokens(4)
    assert one.take() == [], "it was part of the present text"


def test_a_failure_within_a_tick_begins_all_again(
    handlers: Handlers, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = open_session(handlers)
    one = Taken(feed)
    one.begin()
    handlers.step(step(session_id, 4), OPERATOR_CALLER)
    monkeypatch.setattr(feed, "_hand_out", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        feed.run_window()
    assert one.subscriber.lost
    monkeypatch.undo()
    one.subscriber.begin_again()
    [piece] = one.begin()
    assert piece.output == tokens(4)
