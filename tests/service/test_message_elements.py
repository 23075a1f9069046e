"""Messages with too many elements: counted before parsing, and refused before protobuf creates objects.

What happened: 16 MiB of empty sub-messages are eight million of them. Protobuf built them all with the
interpreter's lock held (0.6 to 0.9 s during which no other thread of the service ran), then Python checked
each one. A message of 100,000 one-token outputs (800 kB) took 8.6 s, and closes of sessions waited for it.
15 MB of `reads` took 4.3 s of the interpreter before their number was checked.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.access.caller import OPERATOR_CALLER
from suffixsvc.config import MAX_READS
from suffixsvc.engine import catalog
from suffixsvc.errors import InvalidInputError, LimitExceededError
from suffixsvc.service.handlers import Handlers
from suffixsvc.service.messages.elements import SMALL_BYTES, MessageReader, read_message_id
from suffixsvc.types import NewOutput
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc, types_pb2
from suffixsvc_client import ClientConfig, SuffixClient
from support.engine_parts import parts_of
from support.long_form import rounds
from support.serving import serving, socket_dir

NO_LIMIT = 1 << 40


def tokens(*ids: int) -> bytes:
    return wire.pack_tokens(np.array(ids, np.int32))


def counting(kind: Any, *paths: str) -> MessageReader[Any]:
    return MessageReader(kind, dict.fromkeys(paths, NO_LIMIT), NO_LIMIT)


UPLOAD = counting(pb.AddOutputsRequest, "outputs", "outputs.segment_lens", "outputs.labels")
STREAM = counting(pb.StreamRequest, "steps.items", "open.reads", "open.labels")


# ------------------------------------------------------------------- the counter against protobuf's own parse


def counts_of(message: Any) -> dict[str, int]:
    """The counts of a parsed message."""
    if isinstance(message, pb.AddOutputsRequest):
        return {
            "outputs": len(message.outputs),
            "outputs.segment_lens": sum(len(item.segment_lens) for item in message.outputs),
        }
    return {"steps.items": len(message.steps.items), "open.reads": len(message.open.reads)}


texts = st.text(max_size=5)
outputs = st.builds(
    pb.OutputItem,
    token_ids=st.binary(max_size=9),
    prompt_token_ids=st.binary(max_size=9),
    labels=st.dictionaries(texts, texts, max_size=3),
    ttl_seconds=st.integers(-(1 << 63), (1 << 63) - 1),
    segment_lens=st.lists(st.integers(-(1 << 31), (1 << 31) - 1), max_size=6),
    incomplete=st.booleans(),
)
uploads = st.builds(
    pb.AddOutputsRequest, namespace=texts, tokenizer=texts, outputs=st.lists(outputs, max_size=5)
)
curves = st.builds(types_pb2.CostCurve, cost=st.binary(max_size=12))
steps = st.builds(
    pb.StepRequest,
    session_id=texts,
    seq=st.integers(0, (1 << 64) - 1),
    new_token_ids=st.binary(max_size=9),
    at=st.integers(-(1 << 63), (1 << 63) - 1),
    max_draft_tokens=st.integers(-(1 << 31), (1 << 31) - 1),
    verify_cost=st.one_of(
        st.builds(types_pb2.VerifyCost, per_token=st.floats(width=32)),
        st.builds(types_pb2.VerifyCost, curve=curves),
    ),
    verified=st.builds(pb.Verified, width=st.integers(0, 9), accepted=st.integers(0, 9)),
)
streams = st.one_of(
    st.builds(
        pb.StreamRequest,
        id=st.integers(0, (1 << 64) - 1),
        steps=st.builds(pb.StepBatch, items=st.lists(steps, max_size=5)),
    ),
    st.builds(
        pb.StreamRequest,
        open=st.builds(pb.OpenSessionRequest, namespace=texts, reads=st.lists(texts, max_size=9)),
    ),
)


@given(st.one_of(uploads, streams))
@settings(max_examples=rounds(90, full=300), deadline=None)
def test_counts_are_those_of_the_parsed_message(message: Any) -> None:
    counter = UPLOAD if isinstance(message, pb.AddOutputsRequest) else STREAM
    counts = counter.count(message.SerializeToString())
    assert {path: counts[path] for path in counts_of(message)} == counts_of(message)


@given(st.one_of(uploads, streams), st.integers(0, 2**32))
@settings(max_examples=rounds(60, full=200), deadline=None)
def test_whatever_protobuf_reads_is_counted_and_nothing_slips_through(message: Any, seed: int) -> None:
    """Bytes beside well-formed ones: unknown fields, groups, overlong numbers, messages laid end to end. What
    protobuf parses the counter must read as well, and never count less than protobuf builds."""
    choice = random.Random(seed)
    for _ in range(8):  # a message takes longer to invent than to change
        require_no_less_than_protobuf(message, choice)


def require_no_less_than_protobuf(message: Any, choice: random.Random) -> None:
    """Change a message a few times at random, and compare the counts with those of protobuf."""
    data = bytearray(message.SerializeToString() * choice.choice((1, 1, 2)))
    pieces = (
        b"\x7b\x08\x01\x7c",
        b"\x1a\x00",
        b"\x28\x05",
        b"\x2a\x02\x81\x01",
        b"\x80\x80\x00",
        b"\xff\x01\x09",
    )
    for _ in range(choice.randrange(1, 5)):
        at = choice.randrange(len(data) + 1)
        if data and choice.random() < 0.5:
            data[choice.randrange(len(data))] = choice.randrange(256)
        else:
            data[at:at] = choice.choice(pieces)
    kind = type(message)
    try:
        parsed = kind.FromString(bytes(data))
    except Exception:
        return  # protobuf refuses it, too
    counter = UPLOAD if kind is pb.AddOutputsRequest else STREAM
    counts = counter.count(bytes(data))
    for path, count in counts_of(parsed).items():
        assert counts[path] >= count, (path, bytes(data).hex())


@pytest.mark.parametrize(
    ("data", "outputs"),
    [
        (b"\x7b\x1a\x00\x7c\x1a\x00", 1),  # an output inside an unknown group is skipped
        (b"\x18\x05\x1a\x00", 1),  # field 3 as a number is not an output
        (b"\x1a\x02\x28\x01", 1),
    ],
)
def test_only_outputs_are_counted_as_outputs(data: bytes, outputs: int) -> None:
    assert len(pb.AddOutputsRequest.FromString(data).outputs) == outputs
    assert UPLOAD.count(data)["outputs"] == outputs


@pytest.mark.parametrize(
    "data", [b"\x1a", b"\x1a\x05a", b"\x00", b"\x1e", b"\x7b", b"\x7c", b"\x09abc", b"\x80" * 11]
)
def test_bytes_that_are_not_a_message_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        UPLOAD.count(data)
    for message in (data, b"\x1a\x00" * SMALL_BYTES + data):  # read by protobuf, and by the counter first
        with pytest.raises(InvalidInputError, match="cannot be parsed"):
            UPLOAD(message)


@pytest.mark.parametrize(("data", "number"), [(b"", 0), (b"\x08\x05", 5), (b"\x08\x80", 0), (b"\x1a\x00", 0)])
def test_the_id_of_a_message_that_is_not_parsed(data: bytes, number: int) -> None:
    assert read_message_id(data) == number


class Unparsed:
    """A message type that must not be parsed."""

    DESCRIPTOR = pb.AddOutputsRequest.DESCRIPTOR

    @staticmethod
    def FromString(_: bytes) -> Any:
        raise AssertionError("protobuf was called")


def test_too_many_elements_are_refused_before_protobuf_sees_them() -> None:
    kind: Any = Unparsed
    reader = MessageReader(kind, limits={"outputs": 1024}, max_elements=9999, remedy="Split it.")
    for data in (
        b"\x0a\x01a" + b"\x1a\x00" * 8_000_000,  # empty outputs
        b"\x98\x01\x00" * 5_000_000,  # an unknown field
        b"\x1a\x90\xa1\x0f" + b"\x28\x01" * 125_000,  # numbers that are not packed
    ):
        with pytest.raises(LimitExceededError, match="must be at most") as caught:
            reader(data)
        assert caught.value.remedy == "Split it."


# --------------------------------------------------------------------------------------- over a real service

LIMITS = Limits(max_outputs_per_message=100, max_segments_per_message=300, max_message_bytes=16 << 20)


@pytest.fixture
def stub() -> Iterator[Any]:
    with (
        SuffixCache(limits=LIMITS) as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s.sock", LIMITS) as (_, address),
        grpc.insecure_channel(address, options=[("grpc.max_send_message_length", -1)]) as channel,
    ):
        yield suffix_cache_pb2_grpc.SuffixCacheStub(channel)


def refusal(call: Any, request: Any) -> types_pb2.ErrorDetail:
    with pytest.raises(grpc.RpcError) as caught:
        call(request, timeout=300)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    metadata = dict(caught.value.trailing_metadata() or ())
    return types_pb2.ErrorDetail.FromString(metadata[wire.ERROR_METADATA_KEY])


@pytest.mark.parametrize(("outputs", "stored"), [(100, True), (101, False), (5000, False)])
def test_outputs_of_a_message_are_bounded(stub: Any, outputs: int, stored: bool) -> None:
    request = pb.AddOutputsRequest(namespace="a")
    for token in range(outputs):
        request.outputs.add(token_ids=tokens(token))
    if stored:
        assert stub.AddOutputs(iter([request]), timeout=300).outputs == outputs
        return
    detail = refusal(stub.AddOutputs, iter([request]))
    assert detail.code == types_pb2.ERROR_CODE_LIMIT_EXCEEDED
    assert detail.message.startswith("outputs must be at most 100 in a message")
    assert "several messages" in detail.remedy
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetStats(pb.GetStatsRequest(namespace="a"), timeout=300)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND, "nothing was stored, not even the namespace"


@pytest.mark.parametrize(("segments", "stored"), [(300, True), (301, False), (20_000, False)])
def test_segments_of_a_message_are_bounded(stub: Any, segments: int, stored: bool) -> None:
    item = pb.OutputItem(token_ids=bytes(4 * segments), segment_lens=[1] * segments)
    request = pb.AddOutputsRequest(namespace="a", outputs=[item])
    if stored:
        assert stub.AddOutputs(iter([request]), timeout=300).outputs == 1
    else:
        assert "outputs.segment_lens" in refusal(stub.AddOutputs, iter([request])).message


def test_a_refusal_reports_the_stored_outputs_of_the_call(stub: Any) -> None:
    good = pb.AddOutputsRequest(namespace="a", outputs=[pb.OutputItem(token_ids=tokens(1, 2))])
    bad = pb.AddOutputsRequest(namespace="a")
    for token in range(3000):
        bad.outputs.add(token_ids=tokens(token))
    assert "1 outputs of this call were stored" in refusal(stub.AddOutputs, iter([good, bad])).message
    assert stub.GetStats(pb.GetStatsRequest(namespace="a"), timeout=300).outputs == 1


def test_the_limits_are_reported(stub: Any) -> None:
    info = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=300)
    assert (info.max_outputs_per_message, info.max_segments_per_message) == (100, 300)


def test_reads_are_counted_before_they_are_parsed(stub: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two small ones and 16 MB of them; over gRPC and in a message of the stream."""
    detail = refusal(stub.OpenSession, pb.OpenSessionRequest(namespace="a", reads=["b"] * (MAX_READS + 1)))
    assert detail.message.startswith(f"reads must be at most {MAX_READS}")
    many = pb.OpenSessionRequest(namespace="a", reads=[""] * 4_000_000)
    assert refusal(stub.OpenSession, many).message.startswith(f"reads must be at most {MAX_READS}")
    looked_at: list[str] = []
    with SuffixCache(limits=LIMITS) as cache:
        handlers = Handlers(cache, LIMITS, durable=False)
        handlers.open_session(pb.OpenSessionRequest(namespace="a"), OPERATOR_CALLER)
        monkeypatch.setattr(catalog, "validate_namespace", looked_at.append)
        with pytest.raises(LimitExceededError, match="reads must be at most"):
            handlers.open_session(many, OPERATOR_CALLER)
    assert looked_at == []


def test_a_refused_stream_message_is_answered_with_its_id(stub: Any) -> None:
    big = pb.StreamRequest(id=7, open=pb.OpenSessionRequest(namespace="a", reads=["b"] * 4000))
    good = pb.StreamRequest(id=8, open=pb.OpenSessionRequest(namespace="a"))
    first, second = stub.Stream(iter([big, good]), timeout=300)
    assert (first.id, first.error.code) == (7, types_pb2.ERROR_CODE_LIMIT_EXCEEDED)
    assert (second.id, bool(second.open.session_id)) == (8, True)


def test_unparsable_bytes_are_refused_with_a_detail(stub: Any) -> None:
    with socket_dir() as folder, SuffixCache() as cache, serving(cache, f"unix:{folder}/s") as (_, address):
        with grpc.insecure_channel(address) as channel:
            call = channel.unary_unary("/suffixsvc.v1.SuffixCache/OpenSession")
            with pytest.raises(grpc.RpcError) as caught:
                call(b"\xff\xff\xff", timeout=300)
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        metadata = dict(caught.value.trailing_metadata() or ())
        detail = types_pb2.ErrorDetail.FromString(metadata[wire.ERROR_METADATA_KEY])
        assert detail.expected == "the bytes of a OpenSessionRequest"


def test_small_messages_are_not_counted_on_the_wire() -> None:
    """The path of a step: a message of SMALL_BYTES cannot hold many elements."""
    handlers = Handlers(SuffixCache(), LIMITS, durable=False)
    data = pb.StreamRequest(
        id=3, open=pb.OpenSessionRequest(namespace="a", reads=["b"] * 100)
    ).SerializeToString()
    assert len(data) <= SMALL_BYTES
    reply = pb.StreamReply.FromString(handlers.message_bytes(data, OPERATOR_CALLER))
    assert reply.error.message.startswith(f"reads must be at most {MAX_READS}")


# ------------------------------------------------------------------------------------------------ the client


def test_the_client_splits_by_the_limits_of_the_service() -> None:
    """Ten times the limits on outputs and segments: all are stored, in order."""
    with (
        SuffixCache(limits=LIMITS) as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s", LIMITS) as (_, address),
        SuffixClient(address, ClientConfig(call_timeout_s=300)) as client,
    ):
        namespace = client.namespace("a")
        made = [
            NewOutput(
                namespace="a",
                token_ids=np.arange(n, n + 1 + n % 7, dtype=np.int32),
                segment_lens=(1,) * (1 + n % 7),
                prompt_tail=np.empty(0, np.int32),
                labels={},
            )
            for n in range(1000)
        ]
        ids = namespace.add_outputs(made)
        assert len(set(ids)) == 1000
        stored = {row.output_id: row.output for row in parts_of(cache).store.scan()}
        assert [stored[i].token_ids.tolist() for i in ids] == [each.token_ids.tolist() for each in made]
