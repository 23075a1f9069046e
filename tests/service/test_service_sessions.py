"""Sessions on the service: retries, offsets and batches; through the handlers, without gRPC."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.errors import (
    AppendConflict,
    AppendGap,
    InvalidInputError,
    StepSequenceError,
    UnknownNamespaceError,
)
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from support.engine_parts import parts_of
from support.service_sessions import live_entry, open_session, step, tokens


class AnnouncingLock:
    """A lock that sets an event before it waits."""

    def __init__(self, lock: threading.Lock, asked: threading.Event) -> None:
        self._lock, self._asked = lock, asked

    def __enter__(self) -> None:
        self._asked.set()
        self._lock.__enter__()

    def __exit__(self, *error: Any) -> None:
        self._lock.__exit__(*error)


class TestRetries:
    def test_the_same_step_again_gets_the_same_answer(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        first = handlers.step(step(session, 5, 6, 5, 6, 5, seq=1), OPERATOR_CALLER)
        assert len(first.draft.token_ids) > 0
        assert handlers.step(step(session, 5, 6, 5, 6, 5, seq=1), OPERATOR_CALLER) == first
        assert handlers.step(step(session, seq=2), OPERATOR_CALLER).length == first.length, (
            "it was applied twice"
        )

    def test_a_step_that_failed_can_be_sent_again(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        with pytest.raises(AppendGap):
            handlers.step(step(session, 5, seq=1, at=9), OPERATOR_CALLER)
        assert handlers.step(step(session, 5, seq=1, at=3), OPERATOR_CALLER).length == 4

    def test_an_older_step_is_refused(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, seq=4), OPERATOR_CALLER)
        with pytest.raises(StepSequenceError) as caught:
            handlers.step(step(session, 6, seq=3), OPERATOR_CALLER)
        assert (caught.value.expected, caught.value.got) == ("more than 4", 3)
        assert handlers.step(step(session, seq=5), OPERATOR_CALLER).length == 4

    def test_the_number_of_a_step_cannot_be_reused_by_an_append(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, seq=1), OPERATOR_CALLER)
        with pytest.raises(StepSequenceError):
            handlers.append_context(
                pb.AppendContextRequest(session_id=session, seq=1, token_ids=tokens(7)), OPERATOR_CALLER
            )

    def test_unnumbered_steps_are_all_new(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        assert [handlers.step(step(session, 5), OPERATOR_CALLER).length for _ in range(3)] == [4, 5, 6]

    def test_opening_again_returns_the_live_session(self, handlers: Handlers) -> None:
        session = open_session(handlers, "mine")
        handlers.step(step(session, 5, 6), OPERATOR_CALLER)
        request = pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(1, 2, 3), session_id="mine")
        assert handlers.open_session(request, OPERATOR_CALLER).length == 5
        assert len(handlers.sessions.table) == 1

    @pytest.mark.parametrize("other", [{"namespace": "b"}, {"prompt_token_ids": tokens(1, 2, 4)}])
    def test_a_used_id_is_refused_for_another_session(
        self, handlers: Handlers, other: dict[str, str]
    ) -> None:
        open_session(handlers, "mine")
        request = {"namespace": "a", "prompt_token_ids": tokens(1, 2, 3), "session_id": "mine", **other}
        with pytest.raises(InvalidInputError):
            handlers.open_session(pb.OpenSessionRequest(**request), OPERATOR_CALLER)

    def test_closing_again_answers_the_same_output(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, 6), OPERATOR_CALLER)
        first = handlers.close_session(pb.CloseSessionRequest(session_id=session), OPERATOR_CALLER)
        assert first.HasField("output_id")
        assert handlers.close_session(pb.CloseSessionRequest(session_id=session), OPERATOR_CALLER) == first

    def test_an_id_used_again_after_its_close_is_a_session_of_its_own(
        self, cache: SuffixCache, handlers: Handlers
    ) -> None:
        turns, ids = [[10, 11], [20, 21], [30, 31]], []
        for turn in turns:
            open_session(handlers, "agent-1")
            handlers.step(step("agent-1", *turn), OPERATOR_CALLER)
            closing = pb.CloseSessionRequest(session_id="agent-1")
            ids.append(handlers.close_session(closing, OPERATOR_CALLER).output_id)
            assert handlers.close_session(closing, OPERATOR_CALLER).output_id == ids[-1]
        assert len(set(ids)) == 3
        assert [row.output.token_ids.tolist() for row in parts_of(cache).store.scan()] == turns
        assert len(handlers.sessions.table) == 0

    def test_an_opening_that_fails_leaves_the_last_close_its_answer(self, handlers: Handlers) -> None:
        session = open_session(handlers, "mine")
        handlers.step(step(session, 5, 6), OPERATOR_CALLER)
        first = handlers.close_session(pb.CloseSessionRequest(session_id=session), OPERATOR_CALLER)
        with pytest.raises(UnknownNamespaceError):
            handlers.open_session(
                pb.OpenSessionRequest(namespace="a", reads=["nowhere"], session_id="mine"), OPERATOR_CALLER
            )
        assert handlers.close_session(pb.CloseSessionRequest(session_id=session), OPERATOR_CALLER) == first

    def test_a_close_that_waited_for_another_answers_the_same(
        self, cache: SuffixCache, handlers: Handlers, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The client timed out on a slow disk and repeated the close while the first one was running."""
        session = open_session(handlers)
        handlers.step(step(session, 5, 6), OPERATOR_CALLER)
        closing = pb.CloseSessionRequest(session_id=session)
        live = live_entry(handlers, session).session
        assert live is not None
        close, started, asked = live.close, threading.Event(), threading.Event()

        def slow_close(*args: Any, **kwargs: Any) -> int | None:
            started.set()
            assert asked.wait(300)
            return close(*args, **kwargs)

        monkeypatch.setattr(live, "close", slow_close)
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(handlers.close_session, closing, OPERATOR_CALLER)
            assert started.wait(300)
            entry = live_entry(handlers, session)
            entry.lock = AnnouncingLock(entry.lock, asked)
            again = pool.submit(handlers.close_session, closing, OPERATOR_CALLER)
            assert again.result(300) == first.result(300)
        assert cache.stats().outputs == 1

    def test_context_sent_twice_is_appended_once(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        for _ in range(2):
            append = pb.AppendContextRequest(session_id=session, token_ids=tokens(7, 8), at=3)
            assert handlers.append_context(append, OPERATOR_CALLER).length == 5
        append = pb.AppendContextRequest(session_id=session, token_ids=tokens(8, 9), at=4)
        assert handlers.append_context(append, OPERATOR_CALLER).length == 6
        with pytest.raises(AppendConflict) as caught:
            handlers.append_context(
                pb.AppendContextRequest(session_id=session, token_ids=tokens(8, 1), at=4), OPERATOR_CALLER
            )
        assert caught.value.position == 5
        with pytest.raises(AppendGap):
            handlers.append_context(
                pb.AppendContextRequest(session_id=session, token_ids=tokens(1), at=7), OPERATOR_CALLER
            )


class TestBatches:
    def test_a_bad_item_leaves_the_others_alone(self, handlers: Handlers) -> None:
        good, bad = open_session(handlers), open_session(handlers)
        handlers.step(step(bad, 5, 6, seq=1), OPERATOR_CALLER)
        items = [
            step("absent", 5, seq=7),
            step(good, 5, 6, 5, 6, 5, seq=1),
            step(bad, 9, 9, seq=2, at=4),
            step(good, 7, seq=2),
        ]
        reply = handlers.message(pb.StreamRequest(id=8, steps=pb.StepBatch(items=items)), OPERATOR_CALLER)
        assert reply.id == 8
        unknown, fine, conflict, twice = reply.steps.items
        assert unknown.error.session_id == "absent"
        assert unknown.error.seq == 7
        assert unknown.error.error.code == types_pb2.ERROR_CODE_UNKNOWN_SESSION
        assert fine.reply.length == 8
        assert len(fine.reply.draft.token_ids) > 0
        assert conflict.error.error.code == types_pb2.ERROR_CODE_APPEND_CONFLICT
        assert (conflict.error.error.expected, conflict.error.error.got) == ("token 6", "token 9")
        assert twice.error.error.code == types_pb2.ERROR_CODE_INVALID_INPUT
        assert handlers.step(step(good, seq=3), OPERATOR_CALLER).length == 8
        assert handlers.step(step(bad, seq=3), OPERATOR_CALLER).length == 5

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
        handlers.step(step(session, 5, 6, seq=2), OPERATOR_CALLER)
        request = pb.StepRequest(**{"session_id": session, "seq": 3, **item})
        reply = handlers.message(pb.StreamRequest(steps=pb.StepBatch(items=[request])), OPERATOR_CALLER)
        error = reply.steps.items[0].error.error
        assert types_pb2.ErrorCode.Name(error.code) == f"ERROR_CODE_{code}"
        assert (error.expected, error.got) == (expected, got)

    def test_an_empty_batch_has_an_empty_answer(self, handlers: Handlers) -> None:
        reply = handlers.message(pb.StreamRequest(id=3, steps=pb.StepBatch()), OPERATOR_CALLER)
        assert reply.WhichOneof("reply") == "steps"
        assert len(reply.steps.items) == 0

    def test_a_message_without_a_request_is_an_error_of_its_own(self, handlers: Handlers) -> None:
        reply = handlers.message(pb.StreamRequest(id=3), OPERATOR_CALLER)
        assert reply.error.code == types_pb2.ERROR_CODE_INVALID_INPUT

    def test_the_whole_life_of_a_session_on_one_stream(self, handlers: Handlers) -> None:
        message = pb.OpenSessionRequest(namespace="a", session_id="s", prompt_token_ids=tokens(1))
        assert handlers.message(pb.StreamRequest(open=message), OPERATOR_CALLER).open.length == 1
        append = pb.AppendContextRequest(session_id="s", token_ids=tokens(2))
        assert (
            handlers.message(pb.StreamRequest(append_context=append), OPERATOR_CALLER).append_context.length
            == 2
        )
        handlers.message(pb.StreamRequest(steps=pb.StepBatch(items=[step("s", 5)])), OPERATOR_CALLER)
        reply = handlers.message(
            pb.StreamRequest(close=pb.CloseSessionRequest(session_id="s")), OPERATOR_CALLER
        )
        assert reply.close.HasField("output_id")
