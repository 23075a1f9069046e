"""Helpers of the client's tests on the shipped fake transport."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

import pytest

from suffixsvc import Limits, SuffixCache
from suffixsvc.errors import ServiceUnavailableError, SuffixError
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client import AsyncSuffixClient, ClientSession, SuffixClient
from suffixsvc_client.testing import AsyncFakeTransport, FakeTransport
from support.engine_parts import parts_of
from support.serving import Blocking, event_loop, eventually

WORDS = [11, 12, 13, 14, 15, 16, 17, 18]
LIMITS = Limits(max_session_tokens=200)


def down() -> SuffixError:
    """The error of a service that cannot be reached."""
    return ServiceUnavailableError("down")


def stored(cache: SuffixCache) -> list[list[int]]:
    """Tokens of the stored outputs after the first one."""
    return [row.output.token_ids.tolist() for row in parts_of(cache).store.scan()][1:]


def steps_sent(fake: FakeTransport) -> list[pb.StepRequest]:
    """All steps that were sent on the stream."""
    streamed = [request for request in fake.requests if isinstance(request, pb.StreamRequest)]
    return [item for request in streamed for item in request.steps.items]


def drafts_again(session: ClientSession) -> None:
    """Wait until a session drafts."""
    eventually(lambda: len(session.step([])) > 0, "the session drafts again")


def connected(kind: str, fake: FakeTransport, stack: ExitStack) -> Any:
    """A client of either kind with the blocking API."""
    if kind == "sync":
        return stack.enter_context(SuffixClient(transport=fake))
    client = AsyncSuffixClient(transport=AsyncFakeTransport(fake))
    blocking = Blocking(client, stack.enter_context(event_loop()))
    stack.callback(blocking.close)
    return blocking


def opened_since(fake: FakeTransport, start: int) -> int:
    """Number of requests to open a session since request number ``start``."""
    return sum(isinstance(request, pb.OpenSessionRequest) for request in fake.requests[start:])


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Messages that the client has logged."""
    return [r.getMessage() for r in caplog.records if r.name.startswith("suffixsvc_client")]
