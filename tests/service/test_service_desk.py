"""The core's desk against protobuf and the handlers: the same answers, whichever way a message takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.errors import InvalidInputError
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2

LIMITS = Limits(max_session_tokens=400, max_draft_tokens=12)
SQL = list(range(100, 160))


class Service:
    """Handlers over an engine of their own, with sessions that can be told apart by their ids."""

    def __init__(self, *, desk: bool) -> None:
        self.cache = SuffixCache(limits=LIMITS)
        self.handlers = Handlers(self.cache, LIMITS, durable=False, version="test")
        self._desk = desk
        self.cache.namespace("a").add_output(SQL)

    def open(self, *ids: str) -> None:
        for session_id in ids:
            self.handlers.open_session(
                pb.OpenSessionRequest(namespace="a", session_id=session_id, prompt_token_ids=tokens(1, 2))
            )

    def answer(self, message: pb.StreamRequest) -> pb.StreamReply:
        if self._desk:
            return self.handlers.message(message)
        return pb.StreamReply.FromString(self.handlers._message(message))  # as if there were no desk

    def close(self) -> None:
        self.cache.check()
        self.cache.close()


@pytest.fixture
def desk() -> Iterator[Service]:
    service = Service(desk=True)
    yield service
    service.close()


def tokens(*ids: int) -> bytes:
    return wire.pack_tokens(np.array(ids, np.int32))


def batch(*items: pb.StepRequest, number: int = 7) -> pb.StreamRequest:
    return pb.StreamRequest(id=number, steps=pb.StepBatch(items=items))


def step(session_id: str, *ids: int, **fields: Any) -> pb.StepRequest:
    return pb.StepRequest(session_id=session_id, new_token_ids=tokens(*ids), max_draft_tokens=8, **fields)


def on_the_desk(service: Service, message: pb.StreamRequest) -> bytes | list[bytes | None] | None:
    return service.handlers.sessions.desk.answer(message.SerializeToString(), 0.0)


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
            pb.Verified, width=st.integers(-1, 4), accepted=st.integers(-1, 4), source=st.integers(0, 7)
        ),
    ),
)
messages = st.lists(
    st.builds(
        pb.StreamRequest,
        id=st.sampled_from([0, 1, 300, 2**64 - 1]),
        steps=st.builds(pb.StepBatch, items=st.lists(steps, max_size=3)),
    ),
    max_size=6,
)


@given(messages)
@settings(max_examples=300, deadline=None)
def test_the_same_answers_with_and_without_the_desk(asked: list[pb.StreamRequest]) -> None:
    """Sessions step side by side, so drafts of a batch may see what its other sessions just wrote or not
    yet: what they propose is compared where a message has one item, everything else always."""
    with_desk, without = Service(desk=True), Service(desk=False)
    comparable = True
    for service in (with_desk, without):
        service.open("a", "b")
    for message in asked:
        comparable &= len(message.steps.items) <= 1
        answers = [service.answer(message) for service in (with_desk, without)]
        for answer in answers:
            for item in answer.steps.items:
                if not comparable:
                    item.reply.ClearField("draft")
        assert answers[0] == answers[1]
    assert [s.handlers.sessions.ids() for s in (with_desk, without)] == [["a", "b"]] * 2
    if comparable:
        stats = [service.cache.namespace("a").stats() for service in (with_desk, without)]
        assert stats[0] == stats[1]
    for service in (with_desk, without):
        service.close()


@given(st.binary(max_size=80))
@settings(max_examples=500, deadline=None)
def test_any_bytes_may_come(data: bytes) -> None:
    service = Service(desk=True)
    service.open("a")
    try:
        expected = pb.StreamRequest.FromString(data)
    except DecodeError:
        with pytest.raises(InvalidInputError):
            service.handlers.message_bytes(data)
    else:
        assert pb.StreamReply.FromString(service.handlers.message_bytes(data)).id == expected.id
    service.close()


@given(st.data())
@settings(max_examples=300, deadline=None)
def test_a_damaged_step_message_is_read_as_protobuf_reads_it(data: st.DataObject) -> None:
    whole = bytearray(batch(step("a", *SQL[:3], seq=5, at=2), step("b", 7)).SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with_desk, without = Service(desk=True), Service(desk=False)
    for service in (with_desk, without):
        service.open("a", "b")
    try:
        request = pb.StreamRequest.FromString(damaged)
    except DecodeError:
        with pytest.raises(InvalidInputError):
            with_desk.handlers.message_bytes(damaged)
    else:
        answers = [
            pb.StreamReply.FromString(with_desk.handlers.message_bytes(damaged)),
            without.answer(request),
        ]
        for answer in answers:
            for item in answer.steps.items:
                item.reply.ClearField("draft")
        assert answers[0] == answers[1]
    for service in (with_desk, without):
        service.close()


@pytest.mark.parametrize("data", ["0880808080011a808080808000", "1a808080808000", "9a0000", "9a808080800000"])
def test_numbers_that_are_longer_than_they_need_be(desk: Service, data: str) -> None:
    """The desk answered a message with a length of six bytes, which protobuf refuses: both must agree on what
    a message is, or one that passes here fails after an update of the other."""
    raw = bytes.fromhex(data.replace(" ", ""))
    assert desk.handlers.sessions.desk.answer(raw, 0.0) is None
    try:
        expected = pb.StreamRequest.FromString(raw)
    except DecodeError:
        with pytest.raises(InvalidInputError, match="cannot be read"):
            desk.handlers.message_bytes(raw)
    else:
        answer = pb.StreamReply.FromString(desk.handlers.message_bytes(raw))
        assert answer.id == expected.id


def test_plain_steps_pass_the_desk(desk: Service) -> None:
    """And what it writes is byte for byte what protobuf would write."""
    desk.open("a", "b")
    answered = on_the_desk(desk, batch(step("a", *SQL[:8]), step("b", 5, seq=3)))
    assert isinstance(answered, bytes)
    reply = pb.StreamReply.FromString(answered)
    assert reply.SerializeToString() == answered
    first, second = (wire.draft_from_proto(item.reply.draft) for item in reply.steps.items)
    assert first.token_ids.tolist() == SQL[8 : 8 + len(first)] != []
    assert [item.reply.length for item in reply.steps.items] == [10, 3]
    assert len(second) == 0


def test_trees_are_written_with_their_parents(desk: Service) -> None:
    for i in range(8):
        desk.cache.namespace("a").add_output([50, 51, 52, 60 + i % 2, 70])
    desk.open("a")
    cheap = types_pb2.VerifyCost(per_token=0.0)
    desk.answer(batch(step("a", 50, 51, verify_cost=cheap, tree=pb.TREE_MODE_TREE)))
    answered = on_the_desk(desk, batch(step("a", 52, tree=pb.TREE_MODE_TREE)))
    assert isinstance(answered, bytes)
    reply = pb.StreamReply.FromString(answered)
    assert reply.SerializeToString() == answered
    draft = wire.draft_from_proto(reply.steps.items[0].reply.draft)
    assert sorted(draft.token_ids[draft.parents == -1].tolist()) == [60, 61]


def test_a_refused_step_leaves_the_others_of_its_batch_alone(desk: Service) -> None:
    desk.open("a", "b")
    message = batch(step("a", 5, at=9), step("b", 5))
    refused, answered = desk.answer(message).steps.items
    assert refused.error.error.code == types_pb2.ERROR_CODE_APPEND_GAP
    assert (answered.reply.session_id, answered.reply.length) == ("b", 3)


def test_a_repeated_step_gets_the_same_answer_either_way(desk: Service) -> None:
    desk.open("a")
    asked = batch(step("a", *SQL[:8], seq=4))
    first = desk.answer(asked)
    assert desk.answer(asked) == first
    slow = batch(step("a", *SQL[:8], seq=4, verify_cost=types_pb2.VerifyCost(per_token=0.1)))
    assert desk.answer(slow) == first
    older = desk.answer(batch(step("a", 1, seq=3))).steps.items[0]
    assert older.error.error.code == types_pb2.ERROR_CODE_STEP_SEQUENCE


def test_the_cost_a_step_brought_stays_with_the_session(desk: Service) -> None:
    desk.open("a")
    dear = types_pb2.VerifyCost(per_token=50.0)
    assert (
        len(desk.answer(batch(step("a", *SQL[:8], verify_cost=dear))).steps.items[0].reply.draft.sources) == 0
    )
    again = on_the_desk(desk, batch(step("a", SQL[8])))
    assert isinstance(again, bytes)
    assert not pb.StreamReply.FromString(again).steps.items[0].reply.draft.sources


def test_what_is_no_plain_step_is_not_the_desks(desk: Service) -> None:
    desk.open("a", "b")
    before = desk.handlers.sessions.desk
    for message in (
        pb.StreamRequest(),
        pb.StreamRequest(close=pb.CloseSessionRequest(session_id="a")),
        batch(step("a", 5), step("nobody", 5)),
        batch(step("a", 5), step("a", 6)),
        batch(step("a", 5), step("b", 6, tree=pb.TREE_MODE_AUTO)),
        batch(step("a", 5), pb.StepRequest(session_id="b", new_token_ids=b"\xff\xff\xff\xff")),
        batch(step("a", 5), step("b", 6, verified=pb.Verified(width=1, accepted=1))),
    ):
        assert before.answer(message.SerializeToString(), 0.0) is None
    # and nothing was touched: the next token stands behind the prompt
    assert desk.answer(batch(step("a", 9, at=2))).steps.items[0].reply.length == 3


def test_a_closed_session_leaves_the_desk(desk: Service) -> None:
    desk.open("a")
    desk.handlers.close_session(pb.CloseSessionRequest(session_id="a"))
    assert on_the_desk(desk, batch(step("a", 5))) is None
    closed = desk.answer(batch(step("a", 5))).steps.items[0]
    assert closed.error.error.code == types_pb2.ERROR_CODE_SESSION_CLOSED
