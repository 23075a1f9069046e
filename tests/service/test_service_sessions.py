"""Sessions on the service: retries, offsets, batches, expiry, drain. Through the handlers, without gRPC."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import numpy as np
import pytest

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.errors import (
    AppendConflict,
    AppendGap,
    InvalidCostError,
    InvalidInputError,
    LimitExceededError,
    ServiceUnavailableError,
    SessionClosedError,
    StepSequenceError,
    UnknownNamespaceError,
    UnknownSessionError,
)
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2

LIMITS = Limits(max_sessions=3, max_session_tokens=100, session_idle_seconds=60)


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache(limits=LIMITS) as cache:
        yield cache
        cache.check()


@pytest.fixture
def handlers(cache: SuffixCache) -> Handlers:
    return Handlers(cache, LIMITS, durable=False, version="test")


def tokens(*ids: int) -> bytes:
    return wire.pack_tokens(np.array(ids, np.int32))


def open_session(handlers: Handlers, session_id: str = "", namespace: str = "a") -> str:
    request = pb.OpenSessionRequest(
        namespace=namespace, prompt_token_ids=tokens(1, 2, 3), session_id=session_id
    )
    return handlers.open_session(request).session_id


def step(session_id: str, *ids: int, seq: int = 0, at: int | None = None, width: int = 4) -> pb.StepRequest:
    return pb.StepRequest(
        session_id=session_id, seq=seq, new_token_ids=tokens(*ids), at=at, max_draft_tokens=width
    )


class Announcing:
    """A lock that says when somebody comes to wait for it."""

    def __init__(self, lock: threading.Lock, asked: threading.Event) -> None:
        self._lock, self._asked = lock, asked

    def __enter__(self) -> None:
        self._asked.set()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


class TestRetries:
    def test_the_same_step_again_gets_the_same_answer(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        first = handlers.step(step(session, 5, 6, 5, 6, 5, seq=1))
        assert len(first.draft.token_ids) > 0
        assert handlers.step(step(session, 5, 6, 5, 6, 5, seq=1)) == first
        assert handlers.step(step(session, seq=2)).length == first.length, "it was applied twice"

    def test_a_step_that_failed_can_be_sent_again(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        with pytest.raises(AppendGap):
            handlers.step(step(session, 5, seq=1, at=9))
        assert handlers.step(step(session, 5, seq=1, at=3)).length == 4

    def test_an_older_step_is_refused(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, seq=4))
        with pytest.raises(StepSequenceError) as caught:
            handlers.step(step(session, 6, seq=3))
        assert (caught.value.expected, caught.value.got) == ("more than 4", 3)
        assert handlers.step(step(session, seq=5)).length == 4

    def test_a_number_used_for_a_step_is_no_answer_to_an_append(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, seq=1))
        with pytest.raises(StepSequenceError):
            handlers.append_context(pb.AppendContextRequest(session_id=session, seq=1, token_ids=tokens(7)))

    def test_unnumbered_steps_are_all_new(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        assert [handlers.step(step(session, 5)).length for _ in range(3)] == [4, 5, 6]

    def test_opening_again_answers_the_live_session(self, handlers: Handlers) -> None:
        session = open_session(handlers, "mine")
        handlers.step(step(session, 5, 6))
        request = pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(1, 2, 3), session_id="mine")
        assert handlers.open_session(request).length == 5
        assert len(handlers.sessions) == 1

    @pytest.mark.parametrize("other", [{"namespace": "b"}, {"prompt_token_ids": tokens(1, 2, 4)}])
    def test_a_used_id_is_not_given_to_another_session(
        self, handlers: Handlers, other: dict[str, str]
    ) -> None:
        open_session(handlers, "mine")
        request = {"namespace": "a", "prompt_token_ids": tokens(1, 2, 3), "session_id": "mine", **other}
        with pytest.raises(InvalidInputError):
            handlers.open_session(pb.OpenSessionRequest(**request))

    def test_closing_again_answers_the_same_output(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, 6))
        first = handlers.close_session(pb.CloseSessionRequest(session_id=session))
        assert first.HasField("output_id")
        assert handlers.close_session(pb.CloseSessionRequest(session_id=session)) == first

    def test_an_id_used_again_after_its_close_is_a_session_of_its_own(
        self, cache: SuffixCache, handlers: Handlers
    ) -> None:
        turns, ids = [[10, 11], [20, 21], [30, 31]], []
        for turn in turns:
            open_session(handlers, "agent-1")
            handlers.step(step("agent-1", *turn))
            closing = pb.CloseSessionRequest(session_id="agent-1")
            ids.append(handlers.close_session(closing).output_id)
            assert handlers.close_session(closing).output_id == ids[-1]
        assert len(set(ids)) == 3
        assert [row.output.token_ids.tolist() for row in cache._store.scan()] == turns
        assert len(handlers.sessions) == 0

    def test_an_opening_that_fails_leaves_the_last_close_its_answer(self, handlers: Handlers) -> None:
        session = open_session(handlers, "mine")
        handlers.step(step(session, 5, 6))
        first = handlers.close_session(pb.CloseSessionRequest(session_id=session))
        with pytest.raises(UnknownNamespaceError):
            handlers.open_session(pb.OpenSessionRequest(namespace="a", reads=["nowhere"], session_id="mine"))
        assert handlers.close_session(pb.CloseSessionRequest(session_id=session)) == first

    def test_a_close_that_waited_for_another_answers_the_same(
        self, cache: SuffixCache, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The client gave up on a slow disk and asked again while the first close was still at it."""
        session = open_session(handlers)
        handlers.step(step(session, 5, 6))
        closing = pb.CloseSessionRequest(session_id=session)
        live = handlers.sessions._entries[session].session
        assert live is not None
        close, started, asked = live.close, threading.Event(), threading.Event()

        def slow_close(*args: Any, **kwargs: Any) -> int | None:
            started.set()
            assert asked.wait(300)
            return close(*args, **kwargs)

        monkeypatch.setattr(live, "close", slow_close)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(handlers.close_session, closing)
            assert started.wait(300)
            entry = handlers.sessions._entries[session]
            entry.lock = Announcing(entry.lock, asked)
            again = pool.submit(handlers.close_session, closing)
            assert again.result(300) == first.result(300)
        assert cache.stats().outputs == 1

    def test_context_sent_twice_is_there_once(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        for _ in range(2):
            append = pb.AppendContextRequest(session_id=session, token_ids=tokens(7, 8), at=3)
            assert handlers.append_context(append).length == 5
        append = pb.AppendContextRequest(session_id=session, token_ids=tokens(8, 9), at=4)
        assert handlers.append_context(append).length == 6
        with pytest.raises(AppendConflict) as caught:
            handlers.append_context(pb.AppendContextRequest(session_id=session, token_ids=tokens(8, 1), at=4))
        assert caught.value.position == 5
        with pytest.raises(AppendGap):
            handlers.append_context(pb.AppendContextRequest(session_id=session, token_ids=tokens(1), at=7))


class TestBatches:
    def test_a_bad_item_leaves_the_others_alone(self, handlers: Handlers) -> None:
        good, bad = open_session(handlers), open_session(handlers)
        handlers.step(step(bad, 5, 6, seq=1))
        items = [
            step("nobody", 5, seq=7),
            step(good, 5, 6, 5, 6, 5, seq=1),
            step(bad, 9, 9, seq=2, at=4),
            step(good, 7, seq=2),
        ]
        reply = handlers.message(pb.StreamRequest(id=8, steps=pb.StepBatch(items=items)))
        assert reply.id == 8
        unknown, fine, conflict, twice = reply.steps.items
        assert unknown.error.session_id == "nobody"
        assert unknown.error.seq == 7
        assert unknown.error.error.code == types_pb2.ERROR_CODE_UNKNOWN_SESSION
        assert fine.reply.length == 8
        assert len(fine.reply.draft.token_ids) > 0
        assert conflict.error.error.code == types_pb2.ERROR_CODE_APPEND_CONFLICT
        assert (conflict.error.error.expected, conflict.error.error.got) == ("token 6", "token 9")
        assert twice.error.error.code == types_pb2.ERROR_CODE_INVALID_INPUT
        assert handlers.step(step(good, seq=3)).length == 8
        assert handlers.step(step(bad, seq=3)).length == 5

    @pytest.mark.parametrize(
        ("item", "code", "expected", "got"),
        [
            (
                {"at": 6, "new_token_ids": tokens(1)},
                "APPEND_GAP",
                "a start at or before position 5",
                "position 6",
            ),
            ({"seq": 1}, "STEP_SEQUENCE", "more than 2", "1"),
            ({"new_token_ids": b"abc"}, "INVALID_TOKENS", "packed int32: a multiple of 4 bytes", "3 bytes"),
            ({"max_draft_tokens": -1}, "INVALID_INPUT", ">= 0", "-1"),
            ({"tree": 9}, "INVALID_INPUT", "a TreeMode", "9"),
        ],
    )
    def test_item_errors_say_what_was_expected(
        self, handlers: Handlers, item: dict[str, object], code: str, expected: str, got: str
    ) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, 6, seq=2))
        request = pb.StepRequest(**{"session_id": session, "seq": 3, **item})
        reply = handlers.message(pb.StreamRequest(steps=pb.StepBatch(items=[request])))
        error = reply.steps.items[0].error.error
        assert types_pb2.ErrorCode.Name(error.code) == f"ERROR_CODE_{code}"
        assert (error.expected, error.got) == (expected, got)

    def test_an_empty_batch_has_an_empty_answer(self, handlers: Handlers) -> None:
        reply = handlers.message(pb.StreamRequest(id=3, steps=pb.StepBatch()))
        assert reply.WhichOneof("reply") == "steps"
        assert len(reply.steps.items) == 0

    def test_a_message_without_a_request_is_an_error_of_its_own(self, handlers: Handlers) -> None:
        reply = handlers.message(pb.StreamRequest(id=3))
        assert reply.error.code == types_pb2.ERROR_CODE_INVALID_INPUT

    def test_the_whole_life_of_a_session_on_one_stream(self, handlers: Handlers) -> None:
        message = pb.OpenSessionRequest(namespace="a", session_id="s", prompt_token_ids=tokens(1))
        assert handlers.message(pb.StreamRequest(open=message)).open.length == 1
        append = pb.AppendContextRequest(session_id="s", token_ids=tokens(2))
        assert handlers.message(pb.StreamRequest(append_context=append)).append_context.length == 2
        handlers.message(pb.StreamRequest(steps=pb.StepBatch(items=[step("s", 5)])))
        reply = handlers.message(pb.StreamRequest(close=pb.CloseSessionRequest(session_id="s")))
        assert reply.close.HasField("output_id")


class TestTheirEnd:
    def test_idle_sessions_are_kept_as_incomplete(self, cache: SuffixCache, handlers: Handlers) -> None:
        idle, busy = open_session(handlers), open_session(handlers)
        handlers.step(step(idle, 5, 6))
        later = time.monotonic() + LIMITS.session_idle_seconds + 1
        handlers.sessions._entries[busy].touched = later
        assert handlers.sessions.expire(later) == 1
        assert len(handlers.sessions) == 1
        [stored] = cache._store.scan()
        assert stored.output.incomplete
        assert stored.output.token_ids.tolist() == [5, 6]
        with pytest.raises(UnknownSessionError, match="expired"):
            handlers.step(step(idle, 7))

    @pytest.mark.parametrize("discard", [False, True])
    @pytest.mark.parametrize("times", [1, 2])
    def test_a_resumed_session_replaces_what_it_left_when_it_expired(
        self, cache: SuffixCache, handlers: Handlers, discard: bool, times: int
    ) -> None:
        written = [5, 6]
        open_session(handlers, "mine")
        handlers.step(step("mine", *written))
        for again in range(times):
            assert handlers.sessions.expire(time.monotonic() + 1000) == 1
            resumed = pb.OpenSessionRequest(
                namespace="a",
                prompt_token_ids=tokens(1, 2, 3),
                session_id="mine",
                output_token_ids=tokens(*written),
            )
            assert handlers.open_session(resumed).length == 3 + len(written)
            assert cache.stats().outputs == 1, "nothing is forgotten before the resumed session ends"
            written.append(7 + again)
            handlers.step(step("mine", written[-1]))
        closing = pb.CloseSessionRequest(session_id="mine", discard=discard)
        reply = handlers.close_session(closing)
        assert handlers.close_session(closing) == reply
        rows = [(row.output.token_ids.tolist(), row.output.incomplete) for row in cache._store.scan()]
        assert rows == ([] if discard else [(written, False)])

    def test_an_expired_session_can_be_discarded(self, cache: SuffixCache, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, 6))
        handlers.sessions.expire(time.monotonic() + 1000)
        assert cache.stats().outputs == 1
        for _ in range(2):
            closing = pb.CloseSessionRequest(session_id=session, discard=True)
            assert not handlers.close_session(closing).HasField("output_id")
        assert cache.stats().outputs == 0

    @pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2, 4]])
    @pytest.mark.parametrize("discard", [False, True])
    def test_another_generation_under_an_expired_id_replaces_nothing(
        self, cache: SuffixCache, handlers: Handlers, prompt: list[int], discard: bool
    ) -> None:
        open_session(handlers, "mine")
        handlers.step(step("mine", 5, 6))
        handlers.sessions.expire(time.monotonic() + 1000)
        handlers.open_session(
            pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(*prompt), session_id="mine")
        )
        handlers.step(step("mine", 5, 8, 9))
        handlers.close_session(pb.CloseSessionRequest(session_id="mine", discard=discard))
        kept = [row.output.token_ids.tolist() for row in cache._store.scan()]
        assert kept == ([[5, 6]] if discard else [[5, 6], [5, 8, 9]])

    def test_an_output_somebody_else_forgot_is_no_fault(self, cache: SuffixCache, handlers: Handlers) -> None:
        for discard in (True, False):
            session = open_session(handlers)
            handlers.step(step(session, 5, 6))
            handlers.sessions.expire(time.monotonic() + 1000)
            [row] = cache._store.scan()
            handlers.forget(pb.ForgetRequest(namespace="a", output_id=row.output_id))
            if not discard:
                open_session(handlers, session)
                handlers.step(step(session, 5, 6, 7))
            handlers.close_session(pb.CloseSessionRequest(session_id=session, discard=discard))
        assert cache.stats().outputs == 1

    def test_a_closed_session_says_so(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.close_session(pb.CloseSessionRequest(session_id=session, discard=True))
        with pytest.raises(SessionClosedError):
            handlers.step(step(session, 5))
        with pytest.raises(UnknownSessionError):
            handlers.step(step("never", 5))

    def test_drain_keeps_what_was_written_and_lets_nobody_in(
        self, cache: SuffixCache, handlers: Handlers
    ) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, 6, 7))
        open_session(handlers)  # wrote nothing
        assert handlers.sessions.drain() == 1
        [stored] = cache._store.scan()
        assert stored.output.incomplete
        with pytest.raises(ServiceUnavailableError):
            open_session(handlers)
        with pytest.raises(ServiceUnavailableError):
            handlers.step(step(session, 8))

    def test_too_many_sessions(self, handlers: Handlers) -> None:
        sessions = [open_session(handlers) for _ in range(LIMITS.max_sessions)]
        with pytest.raises(LimitExceededError):
            open_session(handlers)
        handlers.close_session(pb.CloseSessionRequest(session_id=sessions[0]))
        open_session(handlers)

    def test_an_opening_that_fails_leaves_nothing(self, handlers: Handlers) -> None:
        request = pb.OpenSessionRequest(namespace="a", reads=["nowhere"], session_id="s")
        with pytest.raises(UnknownNamespaceError):
            handlers.open_session(request)
        assert len(handlers.sessions) == 0
        assert open_session(handlers, "s") == "s"


class TestCosts:
    @pytest.mark.parametrize("when", ["open", "step"])
    def test_no_more_of_a_curve_is_kept_than_can_be_used(
        self, cache: SuffixCache, when: Literal["open", "step"]
    ) -> None:
        limits = Limits(max_draft_tokens=4)
        handlers = Handlers(cache, limits, durable=False, version="test")
        curve = 1 + np.arange(-1, 99_999, dtype=np.float32) / 100
        cost = types_pb2.VerifyCost(curve=types_pb2.CostCurve(cost=curve.tobytes()))
        opening = pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(1), session_id="s")
        request = step("s", *[5, 6, 7, 8] * 4)
        (opening if when == "open" else request).verify_cost.CopyFrom(cost)
        handlers.open_session(opening)
        reply = handlers.step(request)
        kept = handlers.sessions._entries["s"].cost
        assert isinstance(kept, np.ndarray)
        assert kept.tolist() == curve[:6].tolist()
        assert kept.base is None, "the whole message is kept with it"
        draft = cache.namespace("b").open_session([1]).step([5, 6, 7, 8] * 4, 4, verify_cost=curve)
        assert wire.draft_from_proto(reply.draft).token_ids.tolist() == draft.token_ids.tolist() != []

    def test_all_of_a_curve_is_checked(self, handlers: Handlers) -> None:
        curve = np.ones(1000, np.float32)
        curve[-1] = np.nan
        cost = types_pb2.VerifyCost(curve=types_pb2.CostCurve(cost=curve.tobytes()))
        with pytest.raises(InvalidCostError):
            handlers.open_session(pb.OpenSessionRequest(namespace="a", verify_cost=cost))
        assert len(handlers.sessions) == 0


class TestBulk:
    def test_an_error_says_how_many_were_kept(self, handlers: Handlers) -> None:
        good = pb.AddOutputsRequest(namespace="a", outputs=[pb.OutputItem(token_ids=tokens(1, 2))])
        bad = pb.AddOutputsRequest(
            namespace="a", outputs=[pb.OutputItem(token_ids=tokens(3)), pb.OutputItem(token_ids=b"torn!")]
        )
        with pytest.raises(InvalidInputError) as caught:
            handlers.add_outputs([good, good, bad])
        assert "2 outputs of this call were kept" in caught.value.message
        assert handlers.get_stats(pb.GetStatsRequest(namespace="a")).outputs == 2

    def test_asking_about_a_namespace_does_not_create_it(self, handlers: Handlers) -> None:
        for call in (
            lambda: handlers.get_stats(pb.GetStatsRequest(namespace="ghost")),
            lambda: handlers.forget(pb.ForgetRequest(namespace="ghost", output_id=1)),
        ):
            with pytest.raises(UnknownNamespaceError):
                call()
        assert not handlers.list_namespaces(pb.ListNamespacesRequest()).namespaces


@pytest.mark.parametrize("session_id", ["a\nb", "\x1b[2J", "a\x00", "\x7f", "a\u2028b", "\u202e", "\u0085"])
def test_control_characters_in_session_ids_are_refused(handlers: Handlers, session_id: str) -> None:
    """What happened: ids went into the log and into error messages as they came, so that a client could write
    lines and terminal commands of its own there."""
    calls: list[Any] = [
        lambda: open_session(handlers, session_id),
        lambda: handlers.step(step(session_id, 1)),
        lambda: handlers.append_context(pb.AppendContextRequest(session_id=session_id)),
        lambda: handlers.close_session(pb.CloseSessionRequest(session_id=session_id)),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError, match="session_id must be printable") as caught:
            call()
        assert str(caught.value).isprintable(), "the message shows the id escaped"
    assert open_session(handlers, "agent 7/ä") == "agent 7/ä"


def test_a_prefix_of_namespaces_is_compared_by_segments(handlers: Handlers, cache: SuffixCache) -> None:
    """What happened: the prefix "a/b" also found "a/bc", somebody else's."""
    for path in ("a", "a/b", "a/b/c", "a/bc", "ab"):
        cache.namespace(path).add_output([1, 2, 3])

    def found(prefix: str) -> list[str]:
        reply = handlers.list_namespaces(pb.ListNamespacesRequest(prefix=prefix))
        return [info.path for info in reply.namespaces]

    assert found("a/b") == found("a/b/") == ["a/b", "a/b/c"]
    assert found("a") == ["a", "a/b", "a/b/c", "a/bc"]
    assert found("") == ["a", "a/b", "a/b/c", "a/bc", "ab"]
    assert found("a/b/c/d") == found("b") == []


def test_asking_about_a_namespace_does_not_look_at_all_of_them(
    handlers: Handlers, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: every Forget made a sorted list of all namespaces to see whether its own is there."""
    output_id = cache.namespace("a").add_output([1, 2, 3])

    def listed(_: SuffixCache) -> None:
        raise AssertionError("all namespaces were listed")

    monkeypatch.setattr(SuffixCache, "namespaces", listed)
    assert handlers.get_stats(pb.GetStatsRequest(namespace="a")).outputs == 1
    handlers.forget(pb.ForgetRequest(namespace="a", output_id=output_id))
    for ask in (
        lambda: handlers.forget(pb.ForgetRequest(namespace="b", output_id=1)),
        lambda: handlers.get_stats(pb.GetStatsRequest(namespace="b")),
    ):
        with pytest.raises(UnknownNamespaceError):
            ask()
