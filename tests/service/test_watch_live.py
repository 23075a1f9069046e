"""Live text of Watch: what sessions write reaches followers before it is in the log."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.config import PROMPT_TAIL_TOKENS
from suffixsvc.index import live_text
from suffixsvc.service.followers import live_feed
from suffixsvc.service.followers.service import FollowerService
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import watch_pb2
from suffixsvc_client import ClientConfig, ClientSession, SuffixClient
from support.service_sessions import LIMITS, open_session, step
from support.serving import PATIENCE_S
from support.watching import LocalStream, WatchReader, watched

#: no step is late on a loaded machine
PATIENT = ClientConfig(step_timeout_s=PATIENCE_S, open_timeout_s=PATIENCE_S, call_timeout_s=PATIENCE_S)

PATH = "acme/sql"


def written(session: ClientSession, *ids: int) -> list[int]:
    session.step(list(ids))
    return list(ids)


def test_live_text_is_what_the_sessions_wrote(tmp_path: Path) -> None:
    """At quiescence every follower holds it, also one that begins meanwhile; then it gives way to the log."""
    rng = random.Random(5)
    with (
        SuffixCache(tmp_path / "d") as cache,
        watched(cache) as address,
        SuffixClient(address, PATIENT) as client,
    ):
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


def test_a_follower_that_does_not_read_loses_live_text_first_and_gets_it_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live_feed, "MAX_QUEUED_BYTES", 1 << 16)
    with (
        SuffixCache(tmp_path / "d") as cache,
        watched(cache) as address,
        SuffixClient(address, PATIENT) as client,
    ):
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
        handlers.step(step(session_id, 4), OPERATOR_CALLER)
        service.live.tick()
        stream.take("live")
        stream.take("changes")  # the last reply of a round
        closed = handlers.close_session(pb.CloseSessionRequest(session_id=session_id), OPERATOR_CALLER)
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
        handlers.step(step(session_id, 4), OPERATOR_CALLER)
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
