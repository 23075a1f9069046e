"""Untrusted bytes: any bytes yield an answer or a typed error, without side effects."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import Draft, Limits, SuffixCache, wire
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.errors import InvalidCostError, InvalidTokensError, ProtocolError, SuffixError
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.messages import converters
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from support.long_form import rounds

LIMITS = Limits(max_session_tokens=1000, max_sessions=8)
raw = st.binary(max_size=48)
int64 = st.integers(-(2**63), 2**63 - 1)
int32 = st.integers(-(2**31), 2**31 - 1)
text = st.text(max_size=20)


@pytest.fixture(scope="module")
def handlers() -> Iterator[Handlers]:
    with SuffixCache(limits=LIMITS) as cache:
        yield Handlers(cache, LIMITS, durable=False)
        cache.check()


@given(st.lists(st.integers(0, 2**31 - 1), max_size=50))
def test_tokens_round_trip(ids: list[int]) -> None:
    packed = wire.pack_tokens(np.array(ids, np.int32))
    assert packed == b"".join(i.to_bytes(4, "little") for i in ids)
    assert wire.unpack_tokens(packed).tolist() == ids


@given(raw)
def test_any_bytes_are_tokens_or_refused(data: bytes) -> None:
    torn = len(data) % 4 != 0
    negative = any(high >= 128 for high in data[3::4])
    if torn or negative:
        with pytest.raises(InvalidTokensError, match="expected"):
            wire.unpack_tokens(data)
    else:
        assert wire.pack_tokens(wire.unpack_tokens(data)) == data


@given(raw, raw, raw, raw, raw)
def test_any_bytes_are_a_draft_or_refused(a: bytes, b: bytes, c: bytes, d: bytes, e: bytes) -> None:
    message = types_pb2.Draft(token_ids=a, parents=b, probs=c, sources=d, match_lens=e)
    try:
        draft = wire.draft_from_proto(message)
    except ProtocolError:
        return
    check_draft(draft)


def check_draft(draft: Draft) -> None:
    n = len(draft)
    for array in (draft.parents, draft.probs, draft.sources, draft.match_lens):
        assert len(array) == n
    assert (draft.token_ids >= 0).all()
    assert (draft.parents >= -1).all()
    assert (draft.parents < np.arange(n)).all()
    assert np.isfinite(draft.probs).all()
    assert ((draft.probs >= 0) & (draft.probs <= 1)).all()


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 12))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    floats = st.floats(0, 1, width=32)
    return Draft(
        np.array(draw(st.lists(st.integers(0, 2**31 - 1), min_size=n, max_size=n)), np.int32),
        np.array(parents, np.int32),
        np.array(draw(st.lists(floats, min_size=n, max_size=n)), np.float32),
        np.array(draw(st.lists(st.integers(0, 5), min_size=n, max_size=n)), np.uint8),
        np.array(draw(st.lists(st.integers(0, 999), min_size=n, max_size=n)), np.int32),
    )


@given(drafts())
def test_drafts_round_trip(draft: Draft) -> None:
    again = wire.draft_from_proto(wire.draft_to_proto(draft))
    for name in ("token_ids", "parents", "probs", "sources", "match_lens"):
        np.testing.assert_array_equal(getattr(again, name), getattr(draft, name))


def test_a_chain_sends_no_parents() -> None:
    chain = Draft.chain([5, 6, 7], [0.5, 0.5, 0.5], wire.DraftSource.SESSION)
    assert wire.draft_to_proto(chain).parents == b""


GOOD = Draft.chain([5, 6], [0.5, 0.25], wire.DraftSource.SESSION, 3)
f32 = lambda *values: np.array(values, "<f4").tobytes()  # noqa: E731 - a table reads better
i32 = lambda *values: np.array(values, "<i4").tobytes()  # noqa: E731 - a table reads better


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("token_ids", i32(5, -6)),
        ("token_ids", i32(5, 6)[:-1]),
        ("token_ids", i32(5, 6, 7)),
        ("parents", i32(-1)),
        ("parents", i32(-1, 1)),
        ("parents", i32(-2, 0)),
        ("probs", f32(0.5)),
        ("probs", f32(0.5, float("nan"))),
        ("probs", f32(0.5, float("inf"))),
        ("probs", f32(0.5, 1.5)),
        ("probs", f32(-0.5, 0.5)),
        ("sources", bytes([1])),
        ("sources", bytes([1, 200])),
        ("match_lens", i32(3, -1)),
        ("match_lens", b""),
    ],
)
def test_malformed_drafts_are_refused(field: str, value: bytes) -> None:
    message = wire.draft_to_proto(GOOD)
    wire.draft_from_proto(message)
    setattr(message, field, value)
    with pytest.raises(ProtocolError) as caught:
        wire.draft_from_proto(message)
    assert caught.value.expected is not None
    assert caught.value.got is not None


@given(st.one_of(st.floats(), raw))
def test_any_cost_is_a_cost_or_refused(value: float | bytes) -> None:
    message = (
        types_pb2.VerifyCost(per_token=value)
        if isinstance(value, float)
        else types_pb2.VerifyCost(curve=types_pb2.CostCurve(cost=value))
    )
    try:
        cost = wire.cost_from_proto(message)
    except InvalidCostError:
        return
    assert cost is not None
    assert np.isfinite(np.asarray(cost)[1:] if np.ndim(cost) else cost).all()


costs = st.one_of(
    st.none(),
    st.builds(lambda x: types_pb2.VerifyCost(per_token=x), st.floats()),
    st.builds(lambda x: types_pb2.VerifyCost(curve=types_pb2.CostCurve(cost=x)), raw),
)
verified = st.one_of(
    st.none(),
    st.builds(lambda w, a, s: pb.Verified(width=w, accepted=a, source=s), int32, int32, st.integers(0, 9)),
)
requests = st.one_of(
    st.builds(
        pb.OpenSessionRequest,
        namespace=text,
        tokenizer=text,
        prompt_token_ids=raw,
        output_token_ids=raw,
        labels=st.dictionaries(text, text, max_size=3),
        reads=st.lists(text, max_size=2),
        verify_cost=costs,
        session_id=text,
    ),
    st.builds(
        pb.StepRequest,
        session_id=text,
        seq=st.integers(0, 2**64 - 1),
        new_token_ids=raw,
        at=st.one_of(st.none(), int64),
        max_draft_tokens=int32,
        verify_cost=costs,
        tree=st.integers(0, 5),
        verified=verified,
    ),
    st.builds(pb.AppendContextRequest, session_id=text, token_ids=raw, at=st.one_of(st.none(), int64)),
    st.builds(
        pb.AddOutputsRequest,
        namespace=text,
        outputs=st.lists(
            st.builds(
                pb.OutputItem,
                token_ids=raw,
                prompt_token_ids=raw,
                ttl_seconds=int64,
                segment_lens=st.lists(int32, max_size=3),
            ),
            max_size=2,
        ),
    ),
)


def convert(handlers: Handlers, request: Any) -> object:
    match request:
        case pb.OpenSessionRequest():
            return handlers.open_session(request, OPERATOR_CALLER)
        case pb.StepRequest():
            return converters.native_step(request, LIMITS)
        case pb.AppendContextRequest():
            return wire.unpack_tokens(request.token_ids), converters.position(request)
        case pb.AddOutputsRequest():
            return converters.new_outputs(request, LIMITS, "")
    raise AssertionError(request)


@given(requests)
@settings(max_examples=rounds(150, full=500))
def test_any_request_is_converted_or_refused(handlers: Handlers, request: Any) -> None:
    try:
        convert(handlers, request)
    except SuffixError as error:
        wire.detail_from_error(error).SerializeToString()


@given(st.binary(max_size=200))
@settings(max_examples=rounds(150, full=500))
def test_any_stream_message_is_answered_if_it_wants_a_reply(handlers: Handlers, data: bytes) -> None:
    try:
        request = pb.StreamRequest.FromString(data)
    except DecodeError:
        return
    reply = handlers.message(request, OPERATOR_CALLER)
    if request.no_reply:
        assert reply == pb.StreamReply()
        return
    assert reply.id == request.id
    assert reply.WhichOneof("reply") is not None
    assert reply.error.code != types_pb2.ERROR_CODE_INTERNAL


@given(requests)
@settings(max_examples=rounds(90, full=300))
def test_any_step_on_a_live_session_is_answered(handlers: Handlers, request: Any) -> None:
    """The same requests aimed at a session that exists, so that they get as far as the engine."""
    opened = handlers.open_session(
        pb.OpenSessionRequest(namespace="fuzz", prompt_token_ids=i32(1, 2, 3)), OPERATOR_CALLER
    )
    match request:
        case pb.StepRequest():
            request.session_id = opened.session_id
            message = pb.StreamRequest(steps=pb.StepBatch(items=[request]))
        case pb.AppendContextRequest():
            request.session_id = opened.session_id
            message = pb.StreamRequest(append_context=request)
        case _:
            message = pb.StreamRequest(close=pb.CloseSessionRequest(session_id=opened.session_id))
    reply = handlers.message(message, OPERATOR_CALLER)
    details = [reply.error, *(item.error.error for item in reply.steps.items)]
    assert all(detail.code != types_pb2.ERROR_CODE_INTERNAL for detail in details), details
    handlers.close_session(
        pb.CloseSessionRequest(session_id=opened.session_id, discard=True), OPERATOR_CALLER
    )
