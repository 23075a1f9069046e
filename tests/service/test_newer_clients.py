"""Messages of clients of later releases: unknown fields are ignored, unknown calls refused."""

from __future__ import annotations

import queue
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc
import numpy as np
import pytest
from google.protobuf.message import Message

from suffixsvc import SuffixCache, wire
from suffixsvc.errors import ProtocolError
from suffixsvc.log_wire import WATCH_PROTOCOL
from suffixsvc.service.handlers import FEATURES
from suffixsvc.service.server import SERVICE_NAME
from suffixsvc.store.records.table_records import OLDEST_SCHEMA, SCHEMA_VERSION
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc, types_pb2
from suffixsvc_client.transport.interface import error_from_rpc
from support.serving import PATIENCE_S, serving, socket_dir

M = TypeVar("M", bound=Message)

#: field 1000, a string
UNKNOWN = bytes([0xC2, 0x3E, 5]) + b"later"
PROMPT, TEXT = [1, 2, 3], [10, 11, 12, 13, 14, 15]


def extended(message: M) -> M:
    """The message with a field that its type does not have."""
    later = type(message).FromString(message.SerializeToString() + UNKNOWN)
    assert later.SerializeToString().endswith(UNKNOWN), "protobuf must send it"
    return later


def tokens(*ids: int) -> bytes:
    return wire.pack_tokens(np.array(ids, np.int32))


@pytest.fixture
def channel() -> Iterator[grpc.Channel]:
    with (
        SuffixCache() as cache,
        socket_dir() as folder,
        serving(cache, f"unix:{folder}/s.sock") as (_, address),
        grpc.insecure_channel(address) as channel,
    ):
        cache.namespace("a").add_output(TEXT)
        yield channel


def test_unknown_fields_change_nothing(channel: grpc.Channel) -> None:
    """In unary calls, and in steps of a stream, which are not parsed by protobuf."""
    stub: Any = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
    drafts = []
    for later in (lambda message: message, extended):
        opened = stub.OpenSession(
            later(pb.OpenSessionRequest(namespace="a", prompt_token_ids=tokens(*PROMPT)))
        )
        request = pb.StepRequest(
            session_id=opened.session_id, seq=1, at=3, new_token_ids=tokens(*TEXT[:3]), max_draft_tokens=3
        )
        batch = pb.StepBatch(items=[later(request)])
        requests: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
        replies = stub.Stream(iter(requests.get, None), timeout=PATIENCE_S)
        requests.put(later(pb.StreamRequest(id=1, steps=later(batch))))
        [item] = next(replies).steps.items
        requests.put(None)
        drafts.append(item.reply.draft.token_ids)
        request.seq, request.at = 2, 6
        request.new_token_ids = tokens(*TEXT[3:])
        assert stub.Step(later(request)).length == 9
        closed = stub.CloseSession(later(pb.CloseSessionRequest(session_id=opened.session_id, discard=True)))
        assert not closed.HasField("output_id")
    assert drafts == [tokens(*TEXT[3:])] * 2


def test_a_request_of_an_unknown_kind_is_answered_and_the_stream_goes_on(channel: grpc.Channel) -> None:
    stub: Any = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
    requests: queue.SimpleQueue[pb.StreamRequest | None] = queue.SimpleQueue()
    replies = stub.Stream(iter(requests.get, None), timeout=PATIENCE_S)
    requests.put(extended(pb.StreamRequest(id=7)))
    reply = next(replies)
    assert (reply.id, reply.WhichOneof("reply")) == (7, "error")
    assert reply.error.code != types_pb2.ERROR_CODE_UNSPECIFIED
    requests.put(pb.StreamRequest(id=8, open=pb.OpenSessionRequest(namespace="a")))
    assert next(replies).open.session_id
    requests.put(None)


def test_a_method_that_the_service_lacks_is_a_typed_error(channel: grpc.Channel) -> None:
    call: Any = channel.unary_unary(f"/{SERVICE_NAME}/OfALaterRelease")
    with pytest.raises(grpc.RpcError) as raised:
        call(b"", timeout=PATIENCE_S)
    assert raised.value.code() is grpc.StatusCode.UNIMPLEMENTED  # type: ignore[attr-defined] # of a call
    error = error_from_rpc(raised.value)
    assert isinstance(error, ProtocolError)
    assert "UNIMPLEMENTED" in str(error)


def test_the_page_on_upgrades_has_what_this_release_supports() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "upgrading.md").read_text()
    features = re.search(r"\| feature \|.*?\n\n", page, re.DOTALL)
    assert features is not None
    named = {
        name
        for row in features[0].strip().splitlines()[2:]
        for name in re.findall("`([a-z-]+)`", row.split("|")[1])
    }
    assert named == set(FEATURES)
    assert f"that of the service ({WATCH_PROTOCOL} now)" in page
    release = re.search(r"\(this one\) \| schema (\d+) \| schemas (.*) \|", page)
    assert release is not None
    assert int(release[1]) == SCHEMA_VERSION
    assert [int(n) for n in re.findall(r"\d+", release[2])] == list(range(OLDEST_SCHEMA, SCHEMA_VERSION))
