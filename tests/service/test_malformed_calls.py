"""Malformed requests of every service of the port, and queries while a namespace is being deleted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suffixsvc import SuffixCache
from suffixsvc.errors import UnknownNamespaceError
from suffixsvc.service.server import DURABILITY_NAME, SERVICE_NAME
from suffixsvc_client import SuffixClient
from suffixsvc_client.transport.interface import error_from_rpc
from support.engine_parts import parts_of
from support.serving import PATIENCE_S, serving, socket_dir

#: a field of 127 bytes of which there is one
MALFORMED = b"\x0a\x7f\x01"


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    with SuffixCache() as cache:
        yield cache


@pytest.fixture
def address(cache: SuffixCache) -> Iterator[str]:
    with socket_dir() as folder, serving(cache, f"unix:{folder}/s") as (_, address):
        yield address


@pytest.mark.parametrize(
    "method",
    [
        "/grpc.health.v1.Health/Check",
        "/grpc.health.v1.Health/Watch",
        "/grpc.health.v1.Health/List",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/suffixsvc.v1.SuffixCache/GetStats",
        "/suffixsvc.v1.SuffixCache/Stream",
        "/suffixsvc.v1.SuffixCache/AddOutputs",
        "/suffixsvc.v1.SuffixCache/Watch",
    ],
)
def test_a_malformed_request_is_the_callers_error(address: str, method: str) -> None:
    """What happened: those of health and reflection were answered with INTERNAL and logged as defects, with a
    traceback each; health has no authentication."""
    with grpc.insecure_channel(address) as channel:
        begin: Any = channel.stream_stream(method)
        call = begin(iter([MALFORMED]), timeout=PATIENCE_S)
        with pytest.raises(grpc.RpcError) as raised:
            list(call)
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert error_from_rpc(raised.value).message


def test_health_lists_its_names(address: str) -> None:
    """What happened: newer versions of gRPC have the method List; it was a defect of ours."""
    with grpc.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        listed = stub.List(health_pb2.HealthListRequest(), timeout=PATIENCE_S).statuses
        assert {"", SERVICE_NAME, DURABILITY_NAME} == set(listed)
        assert {each.status for each in listed.values()} == {health_pb2.HealthCheckResponse.SERVING}


def test_a_namespace_that_is_being_deleted_is_not_there(cache: SuffixCache, address: str) -> None:
    """What happened: one such namespace made the list of all of them fail with INTERNAL, for as long as its
    deletion took, or failed."""
    for path in ("a", "b"):
        cache.namespace(path).add_output([1, 2, 3])
    parts_of(cache).catalog.begin_delete("a", force=False)
    with SuffixClient(address) as client:
        assert [record.path for record in client.namespaces()] == ["b"]
        with pytest.raises(UnknownNamespaceError):
            client.namespace("a").stats()
        cache.delete_namespace("a")
        cache.namespace("a").add_output([1])
        assert [record.path for record in client.namespaces()] == ["a", "b"]
