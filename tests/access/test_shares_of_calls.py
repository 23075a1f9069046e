"""Calls and sessions of one principal leave room for those of another."""

from __future__ import annotations

import contextlib
import queue
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import LimitExceededError
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc
from suffixsvc_client.transport.interface import error_from_rpc
from support.access import ControlledService

MANY = 16
LIMITS = Limits(max_sessions=MANY)


@pytest.fixture
def service(tmp_path: Path) -> Iterator[ControlledService]:
    controlled = ControlledService(tmp_path, ("alice", "bob"))
    with SuffixCache() as cache, controlled.run(cache, limits=LIMITS, max_streams=MANY) as service:
        yield service


class _Stream:
    """A stream that has answered one message, and stays open."""

    def __init__(self, service: ControlledService, principal: str, held: contextlib.ExitStack) -> None:
        channel = held.enter_context(grpc.insecure_channel(service.address))
        messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        messages.put(pb.StreamRequest(id=1, close=pb.CloseSessionRequest(session_id="none")))
        metadata = [("authorization", f"Bearer {service.tokens[principal]}")]
        stub = suffix_cache_pb2_grpc.SuffixCacheStub(channel)
        self._call: Any = stub.Stream(iter(messages.get, None), metadata=metadata)
        held.callback(self._call.cancel)
        held.callback(messages.put, None)
        try:
            assert next(self._call).id == 1
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None


def _until_refused(service: ControlledService, principal: str, held: contextlib.ExitStack) -> int:
    for count in range(MANY + 1):
        try:
            _Stream(service, principal, held)
        except LimitExceededError:
            return count
    raise AssertionError("no stream was refused")


def test_streams_of_one_principal_leave_some_to_another(service: ControlledService) -> None:
    with contextlib.ExitStack() as held:
        assert _until_refused(service, "alice", held) == MANY // 2
        assert _until_refused(service, "bob", held) == MANY // 4


def test_a_single_principal_has_all_streams(service: ControlledService) -> None:
    service.revoke("bob")
    with contextlib.ExitStack() as held:
        assert _until_refused(service, "alice", held) == MANY


def test_sessions_of_one_principal_leave_some_to_another(service: ControlledService) -> None:
    with service.client("alice") as alice, service.client("bob") as bob:
        opened = [alice.namespace("alice/a").open_session([1, 2, 3]) for _ in range(MANY // 2)]
        with pytest.raises(LimitExceededError, match="sessions of the principal 'alice'"):
            alice.namespace("alice/a").open_session([1, 2, 3])
        bob.namespace("bob/b").open_session([1, 2, 3]).close()
        opened.pop().close()
        alice.namespace("alice/a").open_session([1, 2, 3]).close()
