"""The core's dispatcher against protobuf and the handlers: the same answers on both paths."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.core import Refusal, StepStatus
from suffixsvc.engine import Session
from suffixsvc.errors import InvalidInputError, LimitExceededError
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.messages.requests import MIN_STEP_LIMIT
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from support.long_form import rounds
from support.service_sessions import live_ids

LIMITS = Limits(max_session_tokens=400, max_draft_tokens=12)
SQL = list(range(100, 160))


class Service:
    """Handlers over a separate engine, with sessions of given ids."""

    def __init__(self, *, dispatcher: bool) -> None:
        self.cache = SuffixCache(limits=LIMITS, background=False)
        self.handlers = Handlers(self.cache, LIMITS, durable=False)
        self._dispatcher = dispatcher
        self.cache.namespace("a").add_output(SQL)

    def open(self, *ids: str) -> None:
        for session_id in ids:
            self.handlers.open_session(
                pb.OpenSessionRequest(namespace="a", session_id=session_id, prompt_token_ids=tokens(1, 2)),
                OPERATOR_CALLER,
            )

    def answer(self, message: pb.StreamRequest) -> pb.StreamReply:
        if self._dispatcher:
            return self.handlers.message(message, OPERATOR_CALLER)
        # as if there were no dispatcher
        return pb.StreamReply.FromString(
            self.handlers.answer_remaining(message.SerializeToString(), None, OPERATOR_CALLER)
        )

    def close(self) -> None:
        self.cache.check()
        self.cache.close()


@pytest.fixture
def dispatcher() -> Iterator[Service]:
    service = Service(dispatcher=True)
    yield service
    service.close()


def tokens(*ids: int) -> bytes:
    return wire.pack_tokens(np.array(ids, np.int32))


def batch(*items: pb.StepRequest, number: int = 7) -> pb.StreamRequest:
    return pb.StreamRequest(id=number, steps=pb.StepBatch(items=items))


def step(session_id: str, *ids: int, **fields: Any) -> pb.StepRequest:
    return pb.StepRequest(session_id=session_id, new_token_ids=tokens(*ids), max_draft_tokens=8, **fields)


def dispatched(service: Service, message: pb.StreamRequest) -> bytes | list[bytes | None] | None:
    return service.handlers.sessions.table.dispatcher.answer(message.SerializeToString(), 0.0, "")


# sessions "a" and "b" exist, "c" does not; positions around where the sessions end
steps = st.builds(
    pb.StepRequest,
    session_id=st.sampled_from(["a", "b", "c", "", "ä"]),
    seq=st.sampled_from([0, 0, 0, 1, 2, 3]),
    new_token_ids=st.one_of(
        st.lists(st.sampled_from(SQL[:8]), max_size=6).map(lambda ids: tokens(*ids)), st.binary(max_size=9)
    ),
    at=st.one_of(st.none(), st.integers(-1, 20), st.sampled_from([2**40, 2**63 - 1])),
    max_draft_tokens=st.sampled_from([0, 1, 8, 100, -1, 2**31 - 1]),
    verify_cost=st.one_of(
        st.none(),
        st.builds(types_pb2.VerifyCost, per_token=st.sampled_from([0.0, 0.1, float("nan")])),
    ),
    tree=st.sampled_from([0, 0, 1, 2, 9]),
    verified=st.one_of(
        st.none(),
        st.builds(
            pb.Verified, width=st.integers(-1, 4), accepted=st.integers(-1, 4), source=st.integers(0, 8)
        ),
    ),
)
messages = st.lists(
    st.builds(
        pb.StreamRequest,
        id=st.sampled_from([0, 1, 300, 2**64 - 1]),
        no_reply=st.sampled_from([False, False, True]),
        steps=st.builds(pb.StepBatch, items=st.lists(steps, max_size=3)),
    ),
    max_size=6,
)


@given(messages)
@settings(max_examples=rounds(90, full=300), deadline=None)
def test_the_same_answers_with_and_without_the_dispatcher(asked: list[pb.StreamRequest]) -> None:
    """Sessions of a batch step concurrently, so that a draft may or may not use what the others just wrote:
    drafts are compared if a message has one item, everything else always."""
    with_dispatcher, without = Service(dispatcher=True), Service(dispatcher=False)
    comparable = True
    for service in (with_dispatcher, without):
        service.open("a", "b")
    for message in asked:
        comparable &= len(message.steps.items) <= 1
        answers = [service.answer(message) for service in (with_dispatcher, without)]
        for answer in answers:
            for item in answer.steps.items:
                if not comparable:
                    item.reply.ClearField("draft")
        assert answers[0] == answers[1]
    assert [live_ids(s.handlers) for s in (with_dispatcher, without)] == [["a", "b"]] * 2
    if comparable:
        stats = [service.cache.namespace("a").stats() for service in (with_dispatcher, without)]
        assert stats[0] == stats[1]
    for service in (with_dispatcher, without):
        service.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[Service]:
    """A service with a session, for many examples."""
    service = Service(dispatcher=True)
    service.open("a")
    yield service
    service.close()


@given(st.binary(max_size=80))
@settings(max_examples=rounds(150, full=500), deadline=None)
def test_any_bytes_are_answered_or_refused(shared: Service, data: bytes) -> None:
    try:
        expected = pb.StreamRequest.FromString(data)
    except DecodeError:
        with pytest.raises(InvalidInputError):
            shared.handlers.message_bytes(data, OPERATOR_CALLER)
    else:
        assert (
            pb.StreamReply.FromString(shared.handlers.message_bytes(data, OPERATOR_CALLER)).id == expected.id
        )


@given(st.data())
@settings(max_examples=rounds(90, full=300), deadline=None)
def test_a_damaged_step_message_is_read_as_protobuf_reads_it(data: st.DataObject) -> None:
    whole = bytearray(batch(step("a", *SQL[:3], seq=5, at=2), step("b", 7)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with_dispatcher, without = Service(dispatcher=True), Service(dispatcher=False)
    for service in (with_dispatcher, without):
        service.open("a", "b")
    try:
        request = pb.StreamRequest.FromString(damaged)
    except DecodeError:
        with pytest.raises(InvalidInputError):
            with_dispatcher.handlers.message_bytes(damaged, OPERATOR_CALLER)
    else:
        answers = [
            pb.StreamReply.FromString(with_dispatcher.handlers.message_bytes(damaged, OPERATOR_CALLER)),
            without.answer(request),
        ]
        for answer in answers:
            for item in answer.steps.items:
                item.reply.ClearField("draft")
        assert answers[0] == answers[1]
    for service in (with_dispatcher, without):
        service.close()


@pytest.mark.parametrize("data", ["0880808080011a808080808000", "1a808080808000", "9a0000", "9a808080800000"])
def test_numbers_that_are_longer_than_they_need_be(dispatcher: Service, data: str) -> None:
    """What happened: the dispatcher answered a message with a length of six bytes, which protobuf refuses.
    Both must agree on valid messages, or one that passes here fails after an update of the other."""
    raw = bytes.fromhex(data.replace(" ", ""))
    assert dispatcher.handlers.sessions.table.dispatcher.answer(raw, 0.0, "") is None
    try:
        expected = pb.StreamRequest.FromString(raw)
    except DecodeError:
        with pytest.raises(InvalidInputError, match="cannot be parsed"):
            dispatcher.handlers.message_bytes(raw, OPERATOR_CALLER)
    else:
        answer = pb.StreamReply.FromString(dispatcher.handlers.message_bytes(raw, OPERATOR_CALLER))
        assert answer.id == expected.id


def test_plain_steps_are_answered_by_the_dispatcher(dispatcher: Service) -> None:
    """Its answers are byte for byte those of protobuf."""
    dispatcher.open("a", "b")
    answered = dispatched(dispatcher, batch(step("a", *SQL[:8]), step("b", 5, seq=3)))
    assert isinstance(answered, bytes)
    reply = pb.StreamReply.FromString(answered)
    assert reply.SerializeToString() == answered
    first, second = (wire.draft_from_proto(item.reply.draft) for item in reply.steps.items)
    assert first.token_ids.tolist() == SQL[8 : 8 + len(first)] != []
    assert [item.reply.length for item in reply.steps.items] == [10, 3]
    assert len(second) == 0


@pytest.mark.parametrize("ids", [SQL[:3], SQL[:20]], ids=["of the dispatcher", "larger than a decode step"])
def test_a_message_that_wants_no_reply_gets_none(dispatcher: Service, ids: list[int]) -> None:
    """Its steps are taken, and those that are refused leave the others alone."""
    dispatcher.open("a")
    message = batch(step("absent", 5), step("a", *ids))
    message.no_reply = True
    assert dispatcher.handlers.message_bytes(message.SerializeToString(), OPERATOR_CALLER) == b""
    [item] = dispatcher.answer(batch(step("a", 9))).steps.items
    assert item.reply.length == 2 + len(ids) + 1


def test_trees_are_written_with_their_parents(dispatcher: Service) -> None:
    for i in range(8):
        dispatcher.cache.namespace("a").add_output([50, 51, 52, 60 + i % 2, 70])
    dispatcher.open("a")
    cheap = types_pb2.VerifyCost(per_token=0.0)
    dispatcher.answer(batch(step("a", 50, 51, verify_cost=cheap, tree=pb.TREE_MODE_TREE)))
    answered = dispatched(dispatcher, batch(step("a", 52, tree=pb.TREE_MODE_TREE)))
    assert isinstance(answered, bytes)
    reply = pb.StreamReply.FromString(answered)
    assert reply.SerializeToString() == answered
    draft = wire.draft_from_proto(reply.steps.items[0].reply.draft)
    assert sorted(draft.token_ids[draft.parents == -1].tolist()) == [60, 61]


def test_a_refused_step_leaves_the_others_of_its_batch_alone(dispatcher: Service) -> None:
    dispatcher.open("a", "b")
    message = batch(step("a", 5, at=9), step("b", 5))
    refused, answered = dispatcher.answer(message).steps.items
    assert refused.error.error.code == types_pb2.ERROR_CODE_APPEND_GAP
    assert (answered.reply.session_id, answered.reply.length) == ("b", 3)


def test_a_repeated_step_gets_the_same_answer_either_way(dispatcher: Service) -> None:
    dispatcher.open("a")
    asked = batch(step("a", *SQL[:8], seq=4))
    first = dispatcher.answer(asked)
    assert dispatcher.answer(asked) == first
    slow = batch(step("a", *SQL[:8], seq=4, verify_cost=types_pb2.VerifyCost(per_token=0.1)))
    assert dispatcher.answer(slow) == first
    older = dispatcher.answer(batch(step("a", 1, seq=3))).steps.items[0]
    assert older.error.error.code == types_pb2.ERROR_CODE_STEP_SEQUENCE


def test_the_cost_of_a_step_is_stored_in_the_session(dispatcher: Service) -> None:
    dispatcher.open("a")
    dear = types_pb2.VerifyCost(per_token=50.0)
    assert (
        len(
            dispatcher.answer(batch(step("a", *SQL[:8], verify_cost=dear))).steps.items[0].reply.draft.sources
        )
        == 0
    )
    again = dispatched(dispatcher, batch(step("a", SQL[8])))
    assert isinstance(again, bytes)
    assert not pb.StreamReply.FromString(again).steps.items[0].reply.draft.sources


def test_other_messages_are_left_to_python(dispatcher: Service) -> None:
    dispatcher.open("a", "b")
    before = dispatcher.handlers.sessions.table.dispatcher
    for message in (
        pb.StreamRequest(),
        pb.StreamRequest(close=pb.CloseSessionRequest(session_id="a")),
        batch(step("a", 5), step("b", 6, tree=pb.TREE_MODE_AUTO)),
        batch(step("a", 5), step("b", 6, verified=pb.Verified(width=1, accepted=1))),
    ):
        assert before.answer(message.SerializeToString(), 0.0, "") is None
    # nothing was changed: the next token follows the prompt
    assert dispatcher.answer(batch(step("a", 9, at=2))).steps.items[0].reply.length == 3


@pytest.mark.parametrize(
    ("item", "status", "code"),
    [
        (step("absent", 5), StepStatus.UNKNOWN_SESSION, types_pb2.ERROR_CODE_UNKNOWN_SESSION),
        (step("a", 6), StepStatus.DUPLICATE_SESSION, types_pb2.ERROR_CODE_INVALID_INPUT),
        (step("b", 6, seq=3), StepStatus.STALE_SEQUENCE, types_pb2.ERROR_CODE_STEP_SEQUENCE),
        (step("b", 6, at=99), StepStatus.GAP, types_pb2.ERROR_CODE_APPEND_GAP),
        (
            pb.StepRequest(session_id="b", new_token_ids=b"\xff\xff\xff\xff"),
            StepStatus.INVALID_TOKENS,
            types_pb2.ERROR_CODE_INVALID_TOKENS,
        ),
        (
            pb.StepRequest(session_id="b", new_token_ids=b"odd"),
            StepStatus.INVALID_TOKENS,
            types_pb2.ERROR_CODE_INVALID_TOKENS,
        ),
    ],
    ids=["unknown", "duplicate", "stale", "gap", "negative", "odd"],
)
def test_refused_steps_leave_the_others_of_their_batch_taken(
    dispatcher: Service, item: pb.StepRequest, status: StepStatus, code: int
) -> None:
    dispatcher.open("a", "b")
    dispatcher.answer(batch(step("b", 4, seq=4)))
    message = batch(step("a", 5), item)
    taken, refusal = dispatcher.handlers.sessions.table.dispatcher.answer(
        message.SerializeToString(), 0.0, ""
    )
    assert isinstance(taken, bytes)
    assert refusal.status == status
    # the same batch again: "a" has one token more, and the refused step changed nothing
    first, second = dispatcher.answer(message).steps.items
    assert first.reply.length == 4
    assert second.error.error.code == code
    assert second.error.session_id == item.session_id
    assert dispatcher.answer(batch(step("b", 7))).steps.items[0].reply.length == 4


def test_a_second_item_of_a_session_is_refused_even_if_the_first_is_malformed(dispatcher: Service) -> None:
    dispatcher.open("a")
    malformed = step("a", 5, tree=9)
    first, second = dispatcher.answer(batch(malformed, step("a", 6))).steps.items
    assert [each.error.error.code for each in (first, second)] == [types_pb2.ERROR_CODE_INVALID_INPUT] * 2
    assert dispatcher.answer(batch(step("a", 7))).steps.items[0].reply.length == 3


def test_steps_are_admitted_once_beyond_what_is_not_measured(
    dispatcher: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is sent again is in memory: in a full cache it would be refused, or evict outputs."""
    monkeypatch.setattr("suffixsvc.index.session.UNMEASURED_TOKENS", 20)
    admitted = []
    admit = Session.admit_step

    def counted(self: Session, refusal: Refusal) -> AbstractContextManager[None]:
        admitted.append(refusal.length)
        return admit(self, refusal)

    monkeypatch.setattr(Session, "admit_step", counted)
    dispatcher.open("a", "b")  # with prompts of two tokens
    for seq, length in enumerate(range(8, 56, 6), start=1):
        message = batch(step("a", *range(6), seq=seq), step("b", 7, seq=seq))
        replies = [[item.reply for item in dispatcher.answer(message).steps.items] for _ in range(2)]
        assert replies[0] == replies[1]
        assert [reply.length for reply in replies[0]] == [length, 2 + seq]
    assert admitted == [26, 50]  # beyond 2 + 20, and beyond 26 + 20


def test_a_closed_session_is_removed_from_the_dispatcher(dispatcher: Service) -> None:
    dispatcher.open("a")
    dispatcher.handlers.close_session(pb.CloseSessionRequest(session_id="a"), OPERATOR_CALLER)
    assert dispatched(dispatcher, batch(step("a", 5))) is None
    closed = dispatcher.answer(batch(step("a", 5))).steps.items[0]
    assert closed.error.error.code == types_pb2.ERROR_CODE_SESSION_CLOSED


def test_a_closed_dispatcher_leaves_all_messages(dispatcher: Service) -> None:
    dispatcher.open("a")
    plain = batch(step("a", 5))
    assert dispatched(dispatcher, plain) is not None
    dispatcher.handlers.sessions.table.dispatcher.close()
    assert dispatched(dispatcher, plain) is None
    assert dispatcher.answer(batch(step("a", 6))).steps.items[0].reply.length == 4


@pytest.mark.parametrize("session_id", ["a", "absent", ""])
def test_a_message_with_more_steps_than_sessions_is_refused(dispatcher: Service, session_id: str) -> None:
    """Two bytes an item: a message of some megabytes would be answered by gigabytes."""
    dispatcher.open("a")
    most = max(LIMITS.max_sessions, MIN_STEP_LIMIT)
    items = [pb.StepRequest(session_id=session_id)] * (most + 1)
    reply = dispatcher.answer(batch(*items))
    assert reply.id == 7
    error = wire.error_from_detail(reply.error)
    assert isinstance(error, LimitExceededError)
    assert str(most) in str(error)
    assert len(dispatcher.answer(batch(*items[1:])).steps.items) == most
