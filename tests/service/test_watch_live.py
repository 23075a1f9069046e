"""Live text of Watch: what sessions write reaches followers before it is in the log."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.core import WriteSignal
from suffixsvc.index import Session, live_text
from suffixsvc.service.followers import live_feed
from suffixsvc.service.followers.live_feed import LiveFeed, Subscriber
from suffixsvc.service.followers.replies import ReplyWriter
from suffixsvc.service.followers.service import FollowerService
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import watch_pb2
from suffixsvc_client import ClientSession, SuffixClient
from support.service_sessions import LIMITS, open_session, step, tokens
from support.serving import PATIENCE_S, eventually
from support.watching import LocalStream, WatchReader, watched

PATH = "acme/sql"


def written(session: ClientSession, *ids: int) -> list[int]:
    session.step(list(ids))
    return list(ids)


def test_live_text_is_what_the_sessions_wrote(tmp_path: Path) -> None:
    """At quiescence every follower holds it, also one that begins meanwhile; then it gives way to the log."""
    rng = random.Random(5)
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, SuffixClient(address) as client:
        cache.namespace(PATH).add_output([1])  # without a generation, the first close would send contents
        sessions = {str(n): client.namespace(PATH).open_session([1] * 100) for n in range(4)}
        other = client.namespace("other").open_session([1])
        other.step([5, 5])
        texts: dict[str, list[int]] = {each: [] for each in sessions}
        ids = {key: each.verbs.state.session_id for key, each in sessions.items()}

        def agree(reader: WatchReader) -> bool:
            held = reader.held.get(PATH)
            return held is not None and held.live_texts() == {ids[k]: t for k, t in texts.items() if t}

        with WatchReader(address) as first:
            first.follow(PATH)
            for n in range(40):
                key = rng.choice(list(sessions))
                if rng.random() < 0.3:
                    sessions[key].append_context([rng.randrange(9) for _ in range(rng.randrange(1, 200))])
                texts[key] += written(sessions[key], *[rng.randrange(9) for _ in range(rng.randrange(1, 5))])
                if n % 10 == 0:
                    first.until(lambda: agree(first), "the live text arrives")
            first.until(lambda: agree(first), "the live text arrives")
            with WatchReader(address) as second:
                second.follow(PATH)
                second.until(lambda: agree(second), "the present text")
                key, session = sessions.popitem()
                output = session.close()
                assert output is not None
                for reader in (first, second):
                    reader.until(lambda r=reader: r.held[PATH].ended, "its live text is over")
                    [(ended, hot)] = reader.held[PATH].ended
                    assert ended == ids[key]
                    assert output in hot, "its output arrives before the live text is retracted"
                    assert list(reader.held[PATH].hot[output]) == texts[key]
                key, session = sessions.popitem()
                session.close(commit=False)
                del texts[key]
                texts = {each: texts[each] for each in sessions}
                for reader in (first, second):
                    reader.until(lambda r=reader: agree(r), "a retracted text is gone")
                assert "other" not in first.held


def test_pieces_are_runs_of_output_with_their_context() -> None:
    cache = SuffixCache()
    session = cache.namespace(PATH).open_session(list(range(100)))
    session.step([1000, 1001])
    session.append_context(list(range(200, 300)))
    session.step([2000])
    session.append_context([7])
    session.step([3000])
    length = session.length
    pieces = session.live_pieces(0, length)
    assert [(each.at, len(each.context), each.output.tolist()) for each in pieces] == [
        (36, PROMPT_TAIL_TOKENS, [1000, 1001]),
        (138, PROMPT_TAIL_TOKENS, [2000]),
        (203, 1, [3000]),
    ]
    text = session.token_ids().tolist()
    for piece in pieces:
        assert text[piece.at : piece.end] == [*piece.context.tolist(), *piece.output.tolist()]
    assert [each.at for each in session.live_pieces(pieces[0].end, length)] == [138, 203]
    [rest] = session.live_pieces(101, 102)
    assert (rest.at, len(rest.context), rest.output.tolist()) == (101, 0, [1001])
    [end] = session.live_pieces(0, length, first=204)
    assert (end.at, len(end.context), end.output.tolist()) == (140, 64, [3000])
    assert session.live_pieces(length, length) == []
    cache.close()


def test_long_runs_are_split(cache: SuffixCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_text, "PIECE_TOKENS", 10)
    session = cache.namespace(PATH).open_session([1])
    session.step(list(range(25)))
    pieces = session.live_pieces(0, session.length)
    assert [(each.at, each.end) for each in pieces] == [(0, 11), (11, 21), (21, 26)]
    assert [token for each in pieces for token in each.output.tolist()] == list(range(25))
    session.close(commit=False)


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
    handlers.step(step(session_id, 4, 5))
    assert feed.tick() == 2
    [(_, first)], [(_, second)] = one.subscriber.take(), two.subscriber.take()
    assert first is second
    assert feed.tick() == 0, "nothing was written"
    feed.unsubscribe(two.subscriber, "a")
    handlers.step(step(session_id, 6))
    assert feed.tick() == 1
    [piece] = one.take()
    assert (piece.session_id, piece.at, piece.output) == (session_id, 5, tokens(6))
    feed.leave(one.subscriber)
    handlers.step(step(session_id, 7))
    assert feed.tick() == 0


def test_a_follower_is_not_sent_the_text_of_its_own_sessions(handlers: Handlers, feed: LiveFeed) -> None:
    for session_id, follower_id in (("of one", "one"), ("of two", "two"), ("of a client", "")):
        handlers.open_session(
            pb.OpenSessionRequest(namespace="a", session_id=session_id, follower_id=follower_id)
        )
    everything = {"of one", "of two", "of a client"}
    readers = {name: Taken(feed, name) for name in ("one", "two", "three")}
    for number, (name, reader) in enumerate(readers.items()):
        present = everything if number else set()
        assert {piece.session_id for piece in reader.begin()} == present - {f"of {name}"}
        for session_id in everything:
            handlers.step(step(session_id, 4))
        feed.tick()
        for other, begun in readers.items():
            expected = everything - {f"of {other}"} if number >= list(readers).index(other) else set()
            assert {piece.session_id for piece in begun.take()} == expected
    for session_id in everything:
        handlers.close_session(pb.CloseSessionRequest(session_id=session_id, discard=True))
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
        )
    )
    feed.tick()
    assert [piece.output for piece in other.take()] == [tokens(4)]
    assert one.take() == []


def test_a_new_subscriber_gets_the_present_text_and_then_what_follows(
    handlers: Handlers, feed: LiveFeed
) -> None:
    session_id = open_session(handlers)
    handlers.step(step(session_id, 4, 5))
    one = Taken(feed)
    [piece] = one.begin()
    assert (piece.at, piece.context, piece.output) == (0, tokens(1, 2, 3), tokens(4, 5))
    assert feed.tick() == 0
    handlers.step(step(session_id, 6))
    two = Taken(feed)
    [piece] = two.begin()
    assert piece.output == tokens(4, 5, 6), "what was not handed out yet is part of it"
    [piece] = one.take()
    assert piece.output == tokens(6)
    assert feed.tick() == 0


def test_present_text_is_bounded(handlers: Handlers, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live_feed, "_PRESENT_TOKENS", 8)
    for session_id in (open_session(handlers), open_session(handlers)):
        handlers.step(step(session_id, *range(10, 30)))
    pieces = Taken(feed).begin()
    assert [piece.output for piece in pieces] == [tokens(26, 27, 28, 29)] * 2


def test_a_namespace_that_is_deleted_ends_live_text(
    handlers: Handlers, cache: SuffixCache, feed: LiveFeed
) -> None:
    session_id = open_session(handlers)
    one = Taken(feed)
    one.begin()
    handlers.step(step(session_id, 4))
    feed.tick()
    one.take()
    cache.delete_namespace("a", force=True)
    handlers.step(step(session_id, 5))
    feed.tick()
    [piece] = one.take()
    assert piece.ended
    feed.tick()
    assert one.take() == []
    assert Taken(feed).begin() == []
    handlers.close_session(pb.CloseSessionRequest(session_id=session_id))
    feed.tick()
    assert one.take() == [], "it has ended once"


def test_an_id_that_is_used_again_begins_anew(handlers: Handlers, feed: LiveFeed) -> None:
    one = Taken(feed)
    one.begin()
    for text in ((4, 5), (6,)):
        open_session(handlers, "same")
        handlers.step(step("same", *text))
        feed.tick()
        handlers.close_session(pb.CloseSessionRequest(session_id="same", discard=True))
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
        handlers.step(step(session_id, 4))
        feed.tick()
        one.take()
        let_go = threading.Event()
        store = cache._parts.store
        blocked = threading.Thread(
            target=lambda: store._call(lambda _view: let_go.wait(60))  # holds the store's thread
        )
        blocked.start()
        try:
            handlers.close_session(pb.CloseSessionRequest(session_id=session_id, no_wait=True))
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
        handlers.step(step(session_id, n))
        feed.tick()
        two.take()
    assert (one.lost, two.lost) == (1, 0)
    assert one.take() == []
    assert one.subscriber.lost
    one.subscriber.begin_again()
    [piece] = one.begin()
    assert piece.output == tokens(*range(20))
    handlers.step(step(session_id, 77))
    feed.tick()
    assert [piece.output for piece in one.take()] == [tokens(77)]


def test_a_subscriber_that_begins_again_gets_nothing_twice(handlers: Handlers, feed: LiveFeed) -> None:
    session_id = open_session(handlers)
    one = Taken(feed)
    one.begin()
    handlers.step(step(session_id, 4))
    [piece] = one.begin()
    assert piece.output == tokens(4)
    assert one.take() == [], "it was part of the present text"


def test_a_failure_within_a_tick_begins_all_again(
    handlers: Handlers, feed: LiveFeed, monkeypatch: pytest.MonkeyPatch
) -> None:
    session_id = open_session(handlers)
    one = Taken(feed)
    one.begin()
    handlers.step(step(session_id, 4))
    monkeypatch.setattr(feed, "_hand_out", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        feed.run_window()
    assert one.subscriber.lost
    monkeypatch.undo()
    one.subscriber.begin_again()
    [piece] = one.begin()
    assert piece.output == tokens(4)


def test_a_follower_that_does_not_read_loses_live_text_first_and_gets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feed, "MAX_QUEUED_BYTES", 1 << 16)
    with SuffixCache(tmp_path / "d") as cache, watched(cache) as address, SuffixClient(address) as client:
        cache.namespace(PATH).add_output([1])
        session = client.namespace(PATH).open_session([1])
        reading = threading.Event()
        reading.set()

        class Slow(WatchReader):
            def apply(self, reply: watch_pb2.WatchReply) -> None:
                reading.wait(PATIENCE_S)
                super().apply(reply)

            def close(self) -> None:
                reading.set()
                super().close()

        with Slow(address) as reader:
            reader.follow(PATH)
            text = written(session, 5)
            reader.until(lambda: PATH in reader.held and reader.held[PATH].live, "live text")
            reading.clear()
            blocks = 0
            while not client.stats().followers[0].live_lost:
                text += written(session, *np.full(4000, blocks % 9).tolist())
                blocks += 1
                assert blocks < 200
            resets = reader.held[PATH].resets
            # the log is not affected
            stored = client.namespace(PATH).add_output([8, 8])
            reading.set()
            session_id = session.verbs.state.session_id
            reader.until(
                lambda: reader.held[PATH].live_texts().get(session_id) == text, "live text begins again"
            )
            assert reader.held[PATH].resets > resets
            reader.until(lambda: stored in reader.held[PATH].hot, "and the log went on")
            text += written(session, 6)
            reader.until(lambda: reader.held[PATH].live_texts()[session_id] == text, "and goes on")
        session.close(commit=False)


# ------------------------------------------------------------------- the order of replies, step by step


@pytest.fixture
def service(handlers: Handlers, cache: SuffixCache) -> FollowerService:
    return FollowerService(cache, handlers.sessions.table, LIMITS, "run", lease_seconds=0.3)


def test_the_output_of_a_closed_session_comes_before_the_end_of_its_text(
    handlers: Handlers, cache: SuffixCache, service: FollowerService
) -> None:
    cache.namespace("a").add_output([1])
    with LocalStream(service) as stream:
        stream.follow("a")
        stream.take("changes")
        session_id = open_session(handlers)
        handlers.step(step(session_id, 4))
        service.live.tick()
        stream.take("live")
        stream.take("changes")  # the last reply of a round
        closed = handlers.close_session(pb.CloseSessionRequest(session_id=session_id))
        service.live.tick()
        stream.take("live")
        [(ended, hot)] = stream.held["a"].ended
        assert ended == session_id
        assert closed.output_id in hot


def test_live_text_that_was_taken_is_not_sent_after_newer_contents(
    handlers: Handlers, cache: SuffixCache, service: FollowerService
) -> None:
    cache.namespace("a").add_output([1])
    with LocalStream(service) as stream:
        stream.follow("a")
        stream.take("changes")
        session_id = open_session(handlers)
        handlers.step(step(session_id, 4))
        service.live.tick()
        stream.follow("a")
        for _ in range(2):
            stream.take("changes")
        assert stream.held["a"].contents == 2
        assert stream.held["a"].live_texts() == {session_id: [4]}


def test_the_deletion_of_an_earlier_namespace_is_not_sent_after_newer_contents(
    cache: SuffixCache, service: FollowerService
) -> None:
    cache.namespace("a").add_output([1])
    with LocalStream(service) as stream:
        stream.follow("a")
        stream.take("changes")
        cache.delete_namespace("a")
        output = cache.namespace("a").add_output([2])
        for _ in range(2):
            stream.take("changes")
        assert stream.held["a"].hot == {output: (2,)}
