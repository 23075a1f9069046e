"""A bulk load that is sent again after a lost answer: outputs with a uuid are stored once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import grpc
import numpy as np
import pytest

from suffixsvc import SuffixCache
from suffixsvc.access.caller import Caller
from suffixsvc.errors import InvalidInputError, ServiceUnavailableError
from suffixsvc.service.handlers import Handlers
from suffixsvc.types import NewOutput
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc_client import AsyncSuffixClient, SuffixClient
from suffixsvc_client.testing import FakeTransport
from support.serving import serving, socket_dir
from support.stored import stored_outputs

NS = "a"


def outputs(number: int = 3) -> list[NewOutput]:
    """Outputs of equal tokens, which differ only in their uuids."""
    tokens = np.arange(20, dtype=np.int32)
    tail = np.asarray([5, 6], np.int32)
    return [NewOutput(NS, tokens, (10, 10), tail, uuid=bytes([n] * 16)) for n in range(number)]


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as opened:
        yield opened
        opened.check()


@pytest.fixture
def address(cache: SuffixCache) -> Iterator[str]:
    with socket_dir() as folder, serving(cache, f"unix:{folder / 's.sock'}") as (_, bound):
        yield bound


def test_a_load_whose_answer_was_lost_can_be_repeated(
    cache: SuffixCache, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What happened: outputs had no id on the wire, so that a loader without an answer either lost its
    outputs or stored them twice. Now the uuids are in the log: a repeated call stores nothing, with the
    same answer."""
    add = Handlers.add_outputs

    def late(
        handlers: Handlers, requests: Iterator[pb.AddOutputsRequest], caller: Caller
    ) -> pb.AddOutputsReply:
        add(handlers, requests, caller)
        raise ServiceUnavailableError("the answer is lost")

    with SuffixClient(address) as client:
        namespace = client.namespace(NS)
        with monkeypatch.context() as patch:
            patch.setattr(Handlers, "add_outputs", late)
            with pytest.raises(ServiceUnavailableError):
                namespace.add_outputs(outputs())
        stored = [each.output_id for each in stored_outputs(cache, NS)]
        assert len(stored) == 3
        assert namespace.add_outputs(outputs()) == stored
        assert namespace.add_outputs(outputs(4))[:3] == stored, "new outputs are stored"
        assert namespace.stats().outputs == 4
        assert [each.output.uuid for each in stored_outputs(cache, NS)] == [o.uuid for o in outputs(4)]


def test_without_ids_every_output_is_another_one(cache: SuffixCache, address: str) -> None:
    with SuffixClient(address) as client:
        for _ in range(2):
            client.namespace(NS).add_outputs([replace(each, uuid=b"") for each in outputs()])
    assert cache.stats().outputs == 6


def test_the_asyncio_client_and_the_fake_send_ids_too(cache: SuffixCache, address: str) -> None:
    async def twice() -> None:
        async with AsyncSuffixClient(address) as client:
            for _ in range(2):
                await client.namespace(NS).add_outputs(outputs())

    asyncio.run(twice())
    assert cache.stats().outputs == 3
    with SuffixCache() as embedded, SuffixClient(transport=FakeTransport(embedded)) as client:
        for _ in range(2):
            client.namespace(NS).add_outputs(outputs())
        assert embedded.stats().outputs == 3


@pytest.mark.parametrize("uuid", [b"x", bytes(15), bytes(17), bytes(1 << 20)])
def test_an_id_of_another_length_is_refused_with_its_whole_message(
    cache: SuffixCache, address: str, uuid: bytes
) -> None:
    bad = replace(outputs()[1], uuid=uuid)
    with SuffixClient(address) as client:
        with pytest.raises(InvalidInputError, match="uuid must be 16 bytes") as caught:
            client.namespace(NS).add_outputs([outputs()[0], bad])
        assert caught.value.got == f"{len(uuid)} bytes"
    pair = (outputs()[0], bad)
    items = [pb.OutputItem(token_ids=each.token_ids.tobytes(), uuid=each.uuid) for each in pair]
    with grpc.insecure_channel(address) as channel:
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        request = pb.AddOutputsRequest(namespace=NS, outputs=items)
        with pytest.raises(grpc.RpcError) as refused:
            stub.AddOutputs(iter([request]), timeout=300)
    assert refused.value.code() == grpc.StatusCode.INVALID_ARGUMENT
    assert "uuid must be 16 bytes" in str(refused.value.details())
    assert cache.stats().outputs == 0


def test_an_id_that_stands_for_other_tokens_is_refused(cache: SuffixCache, address: str) -> None:
    with SuffixClient(address) as client:
        namespace = client.namespace(NS)
        namespace.add_outputs(outputs(1))
        other = replace(outputs(1)[0], token_ids=np.arange(1, 21, dtype=np.int32))
        with pytest.raises(InvalidInputError, match="uuid must name one output"):
            namespace.add_outputs([*outputs(3)[1:], other])
    assert cache.stats().outputs == 1
