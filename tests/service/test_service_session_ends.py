"""End of sessions on the service: expiry, drain, limits, costs and bulk loads; through the handlers."""

from __future__ import annotations

import time
from typing import Any, Literal

import numpy as np
import pytest

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.errors import (
    InvalidCostError,
    InvalidInputError,
    LimitExceededError,
    ServiceUnavailableError,
    SessionClosedError,
    UnknownNamespaceError,
    UnknownSessionError,
)
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from support.engine_parts import parts_of
from support.service_sessions import LIMITS, deletion_of, live_entry, live_ids, open_session, step, tokens


class TestEnd:
    def test_idle_sessions_are_committed_as_incomplete(self, cache: SuffixCache, handlers: Handlers) -> None:
        idle, busy = open_session(handlers), open_session(handlers)
        handlers.step(step(idle, 5, 6), OPERATOR_CALLER)
        later = time.monotonic() + LIMITS.session_idle_seconds + 1
        live_entry(handlers, busy).slot.last_active = later
        assert handlers.sessions.expire(later) == 1
        assert len(handlers.sessions.table) == 1
        [stored] = parts_of(cache).store.scan()
        assert stored.output.incomplete
        assert stored.output.token_ids.tolist() == [5, 6]
        with pytest.raises(UnknownSessionError, match="expired"):
            handlers.step(step(idle, 7), OPERATOR_CALLER)

    @pytest.mark.parametrize("discard", [False, True])
    @pytest.mark.parametrize("times", [1, 2])
    def test_a_resumed_session_replaces_its_expired_output(
        self, cache: SuffixCache, handlers: Handlers, discard: bool, times: int
    ) -> None:
        written = [5, 6]
        open_session(handlers, "mine")
        handlers.step(step("mine", *written), OPERATOR_CALLER)
        for again in range(times):
            assert handlers.sessions.expire(time.monotonic() + 1000) == 1
            resumed = pb.OpenSessionRequest(
                namespace="a",
                prompt_token_ids=tokens(1, 2, 3),
                session_id="mine",
                output_token_ids=tokens(*written),
            )
            assert handlers.open_session(resumed, OPERATOR_CALLER).length == 3 + len(written)
            assert cache.stats().outputs == 1, "nothing is forgotten before the resumed session ends"
            written.append(7 + again)
            handlers.step(step("mine", written[-1]), OPERATOR_CALLER)
        closing = pb.CloseSessionRequest(session_id="mine", discard=discard)
        reply = handlers.close_session(closing, OPERATOR_CALLER)
        assert handlers.close_session(closing, OPERATOR_CALLER) == reply
        rows = [
            (row.output.token_ids.tolist(), row.output.incomplete) for row in parts_of(cache).store.scan()
        ]
        assert rows == ([] if discard else [(written, False)])

    def test_an_expired_session_can_be_discarded(self, cache: SuffixCache, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, 6), OPERATOR_CALLER)
        handlers.sessions.expire(time.monotonic() + 1000)
        assert cache.stats().outputs == 1
        for _ in range(2):
            closing = pb.CloseSessionRequest(session_id=session, discard=True)
            assert not handlers.close_session(closing, OPERATOR_CALLER).HasField("output_id")
        assert cache.stats().outputs == 0

    @pytest.mark.parametrize("prompt", [[1, 2, 3], [1, 2, 4]])
    @pytest.mark.parametrize("discard", [False, True])
    def test_another_generation_under_an_expired_id_replaces_nothing(
        self, cache: SuffixCache, handlers: Handlers, prompt: list[int], discard: bool
    ) -> None:
        open_session(handlers, "mine")
        handlers.step(step("mine", 5, 6), OPERATOR_CALLER)
        handlers.sessions.expire(time.monotonic() + 1000)
        handlers.open_session(
            pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(*prompt), session_id="mine"),
            OPERATOR_CALLER,
        )
        handlers.step(step("mine", 5, 8, 9), OPERATOR_CALLER)
        handlers.close_session(pb.CloseSessionRequest(session_id="mine", discard=discard), OPERATOR_CALLER)
        stored = [row.output.token_ids.tolist() for row in parts_of(cache).store.scan()]
        assert stored == ([[5, 6]] if discard else [[5, 6], [5, 8, 9]])

    def test_an_output_forgotten_by_another_call_is_not_an_error(
        self, cache: SuffixCache, handlers: Handlers
    ) -> None:
        for discard in (True, False):
            session = open_session(handlers)
            handlers.step(step(session, 5, 6), OPERATOR_CALLER)
            handlers.sessions.expire(time.monotonic() + 1000)
            [row] = parts_of(cache).store.scan()
            handlers.delete(deletion_of("a", row.output_id), OPERATOR_CALLER)
            if not discard:
                open_session(handlers, session)
                handlers.step(step(session, 5, 6, 7), OPERATOR_CALLER)
            handlers.close_session(
                pb.CloseSessionRequest(session_id=session, discard=discard), OPERATOR_CALLER
            )
        assert cache.stats().outputs == 1

    def test_steps_of_closed_and_unknown_sessions(self, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.close_session(pb.CloseSessionRequest(session_id=session, discard=True), OPERATOR_CALLER)
        with pytest.raises(SessionClosedError):
            handlers.step(step(session, 5), OPERATOR_CALLER)
        with pytest.raises(UnknownSessionError):
            handlers.step(step("never", 5), OPERATOR_CALLER)

    def test_drain_commits_outputs_and_refuses_requests(self, cache: SuffixCache, handlers: Handlers) -> None:
        session = open_session(handlers)
        handlers.step(step(session, 5, 6, 7), OPERATOR_CALLER)
        open_session(handlers)  # wrote nothing
        assert handlers.sessions.drain() == 1
        [stored] = parts_of(cache).store.scan()
        assert stored.output.incomplete
        with pytest.raises(ServiceUnavailableError):
            open_session(handlers)
        with pytest.raises(ServiceUnavailableError):
            handlers.step(step(session, 8), OPERATOR_CALLER)

    def test_too_many_sessions(self, handlers: Handlers) -> None:
        sessions = [open_session(handlers) for _ in range(LIMITS.max_sessions)]
        with pytest.raises(LimitExceededError):
            open_session(handlers)
        handlers.close_session(pb.CloseSessionRequest(session_id=sessions[0]), OPERATOR_CALLER)
        open_session(handlers)

    def test_an_opening_that_fails_leaves_nothing(self, handlers: Handlers) -> None:
        request = pb.OpenSessionRequest(namespace="a", reads=["nowhere"], session_id="s")
        with pytest.raises(UnknownNamespaceError):
            handlers.open_session(request, OPERATOR_CALLER)
        assert len(handlers.sessions.table) == 0
        assert open_session(handlers, "s") == "s"


class TestCosts:
    @pytest.mark.parametrize("when", ["open", "step"])
    def test_only_the_used_part_of_a_curve_is_stored(
        self, cache: SuffixCache, when: Literal["open", "step"]
    ) -> None:
        limits = Limits(max_draft_tokens=4)
        handlers = Handlers(cache, limits, durable=False)
        curve = 1 + np.arange(-1, 99_999, dtype=np.float32) / 100
        cost = types_pb2.VerifyCost(curve=types_pb2.CostCurve(cost=curve.tobytes()))
        opening = pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(1), session_id="s")
        request = step("s", *[5, 6, 7, 8] * 4)
        (opening if when == "open" else request).verify_cost.CopyFrom(cost)
        handlers.open_session(opening, OPERATOR_CALLER)
        reply = handlers.step(request, OPERATOR_CALLER)
        draft = cache.namespace("b").open_session([1]).step([5, 6, 7, 8] * 4, 4, verify_cost=curve)
        assert wire.draft_from_proto(reply.draft).token_ids.tolist() == draft.token_ids.tolist() != []

    def test_all_of_a_curve_is_checked(self, handlers: Handlers) -> None:
        curve = np.ones(1000, np.float32)
        curve[-1] = np.nan
        cost = types_pb2.VerifyCost(curve=types_pb2.CostCurve(cost=curve.tobytes()))
        with pytest.raises(InvalidCostError):
            handlers.open_session(pb.OpenSessionRequest(namespace="a", verify_cost=cost), OPERATOR_CALLER)
        assert len(handlers.sessions.table) == 0


class TestBulk:
    def test_an_error_says_how_many_were_stored(self, handlers: Handlers) -> None:
        good = pb.AddOutputsRequest(namespace="a", outputs=[pb.OutputItem(token_ids=tokens(1, 2))])
        bad = pb.AddOutputsRequest(
            namespace="a", outputs=[pb.OutputItem(token_ids=tokens(3)), pb.OutputItem(token_ids=b"torn!")]
        )
        with pytest.raises(InvalidInputError) as caught:
            handlers.add_outputs([good, good, bad], OPERATOR_CALLER)
        assert "2 outputs of this call were stored" in caught.value.message
        assert handlers.get_stats(pb.GetStatsRequest(namespace="a"), OPERATOR_CALLER).outputs == 2

    def test_querying_a_namespace_does_not_create_it(self, handlers: Handlers) -> None:
        for call in (
            lambda: handlers.get_stats(pb.GetStatsRequest(namespace="ghost"), OPERATOR_CALLER),
            lambda: handlers.delete(deletion_of("ghost", 1), OPERATOR_CALLER),
        ):
            with pytest.raises(UnknownNamespaceError):
                call()
        assert not handlers.list_namespaces(pb.ListNamespacesRequest(), OPERATOR_CALLER).namespaces


@pytest.mark.parametrize("follower_id", ["x" * 129, "é" * 65, "a\nb", "\x1b[2J"])
def test_ids_of_followers_are_checked(handlers: Handlers, follower_id: str) -> None:
    """They are kept with the session."""
    with pytest.raises(InvalidInputError, match="follower_id must be"):
        handlers.open_session(pb.OpenSessionRequest(namespace="a", follower_id=follower_id), OPERATOR_CALLER)
    assert live_ids(handlers) == []
    handlers.open_session(pb.OpenSessionRequest(namespace="a", follower_id="é" * 64), OPERATOR_CALLER)


@pytest.mark.parametrize("session_id", ["a\nb", "\x1b[2J", "a\x00", "\x7f", "a\u2028b", "\u202e", "\u0085"])
def test_control_characters_in_session_ids_are_refused(handlers: Handlers, session_id: str) -> None:
    """What happened: ids went into the log and into error messages as they came, so that a client could write
    lines and terminal commands there."""
    calls: list[Any] = [
        lambda: open_session(handlers, session_id),
        lambda: handlers.step(step(session_id, 1), OPERATOR_CALLER),
        lambda: handlers.append_context(pb.AppendContextRequest(session_id=session_id), OPERATOR_CALLER),
        lambda: handlers.close_session(pb.CloseSessionRequest(session_id=session_id), OPERATOR_CALLER),
    ]
    for call in calls:
        with pytest.raises(InvalidInputError, match="session_id must be printable") as caught:
            call()
        assert str(caught.value).isprintable(), "the message shows the id escaped"
    assert open_session(handlers, "agent 7/ä") == "agent 7/ä"


def test_a_prefix_of_namespaces_is_compared_by_segments(handlers: Handlers, cache: SuffixCache) -> None:
    """What happened: the prefix "a/b" also found "a/bc", of another tenant."""
    for path in ("a", "a/b", "a/b/c", "a/bc", "ab"):
        cache.namespace(path).add_output([1, 2, 3])

    def found(prefix: str) -> list[str]:
        reply = handlers.list_namespaces(pb.ListNamespacesRequest(prefix=prefix), OPERATOR_CALLER)
        return [info.path for info in reply.namespaces]

    assert found("a/b") == found("a/b/") == ["a/b", "a/b/c"]
    assert found("a") == ["a", "a/b", "a/b/c", "a/bc"]
    assert found("") == ["a", "a/b", "a/b/c", "a/bc", "ab"]
    assert found("a/b/c/d") == found("b") == []


def test_querying_a_namespace_does_not_list_all_of_them(
    handlers: Handlers, cache: SuffixCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: every deletion sorted a list of all namespaces to find its own."""
    output_id = cache.namespace("a").add_output([1, 2, 3])

    def listed(_: SuffixCache) -> None:
        raise AssertionError("all namespaces were listed")

    monkeypatch.setattr(SuffixCache, "namespaces", listed)
    assert handlers.get_stats(pb.GetStatsRequest(namespace="a"), OPERATOR_CALLER).outputs == 1
    handlers.delete(deletion_of("a", output_id), OPERATOR_CALLER)
    for ask in (
        lambda: handlers.delete(deletion_of("b", 1), OPERATOR_CALLER),
        lambda: handlers.get_stats(pb.GetStatsRequest(namespace="b"), OPERATOR_CALLER),
    ):
        with pytest.raises(UnknownNamespaceError):
            ask()
