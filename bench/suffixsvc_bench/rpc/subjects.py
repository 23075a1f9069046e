"""Subjects of the benchmark of the wire: our client, the embedded engine, and raw bytes to the echo."""

from __future__ import annotations

import queue
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any, Protocol, cast

from suffixsvc import SuffixCache, wire
from suffixsvc.errors import ProtocolError, ServiceTimeoutError
from suffixsvc.transport.identity import ClientIdentity
from suffixsvc.types import Draft, TokenArray
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.values import as_token_array
from suffixsvc_bench.rpc import echo
from suffixsvc_client import ClientConfig, SuffixClient
from suffixsvc_client.protocol.effects import Call
from suffixsvc_client.transport.grpc_sync import GrpcTransport
from suffixsvc_client.transport.interface import CHANNEL_OPTIONS, Transport
from suffixsvc_driver.drafts.chain import common_prefix
from suffixsvc_follower import Follower

#: long timeout: a benchmark measures a slow answer instead of getting an empty draft
_TIMEOUT_S = 5.0
#: namespace of all sessions
NAMESPACE = "bench/rpc"


class Subject(Protocol):
    """Something that is timed call by call."""

    def prepare(self) -> None:
        """Untimed work before a call."""

    def call(self) -> None:
        """The timed call."""

    def close(self) -> None:
        """Release connections and sessions."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """Bytes of a request and of its reply."""

    request: int
    reply: int


class _Generation:
    """One session's text and the position in it."""

    def __init__(self, text: TokenArray) -> None:
        self._text: list[int] = text.tolist()
        self._at = 0

    def next(self, draft: Draft) -> list[int]:
        """What the target would write after a draft: the tokens that agree, and one of its own."""
        if self._at + len(draft) + 1 > len(self._text):
            self._at = 0
            return self._text[:1]
        truth = self._text[self._at : self._at + len(draft) + 1]
        new = truth[: common_prefix(draft.token_ids.tolist(), truth) + 1]
        self._at += len(new)
        return new


class _Steps:
    """Sessions that step together.

    Attributes:
        drafted, steps: drafted tokens, and steps of a session.
    """

    def __init__(self, texts: Sequence[TokenArray], max_draft_tokens: int) -> None:
        self._texts = [_Generation(text) for text in texts]
        self._drafts = [Draft.empty() for _ in texts]
        self._width = max_draft_tokens
        self._new: list[list[int]] = []
        self.drafted = self.steps = 0

    def prepare(self) -> None:
        """Compute the next tokens of every session."""
        self._new = [text.next(draft) for text, draft in zip(self._texts, self._drafts, strict=True)]

    def call(self) -> None:
        """Step all sessions."""
        self._drafts = self._step()
        self.steps += len(self._drafts)
        self.drafted += sum(map(len, self._drafts))

    def _step(self) -> list[Draft]:
        raise NotImplementedError


class EngineSteps(_Steps):
    """The sessions on an embedded engine: the part of a step that is not the wire."""

    def __init__(
        self,
        cache: SuffixCache,
        prompts: Sequence[TokenArray],
        texts: Sequence[TokenArray],
        max_draft_tokens: int,
    ) -> None:
        super().__init__(texts, max_draft_tokens)
        namespace = cache.namespace(NAMESPACE)
        self._sessions = [namespace.open_session(prompt) for prompt in prompts]

    def _step(self) -> list[Draft]:
        pairs = zip(self._sessions, self._new, strict=True)
        return [session.step(new, self._width) for session, new in pairs]

    def close(self) -> None:
        """Close the sessions."""
        for session in self._sessions:
            session.close(commit=False)


class FollowerSteps(_Steps):
    """The sessions on a follower in this process.

    Args:
        patience_s: longest wait for the contents, seconds.
    """

    def __init__(
        self,
        target: str,
        prompts: Sequence[TokenArray],
        texts: Sequence[TokenArray],
        max_draft_tokens: int,
        patience_s: float = 600.0,
    ) -> None:
        super().__init__(texts, max_draft_tokens)
        self._follower = Follower(target, namespaces=[(NAMESPACE, "")])
        if not self._follower.wait(NAMESPACE, patience_s):
            raise ServiceTimeoutError("the contents of the namespace did not arrive")
        namespace = self._follower.namespace(NAMESPACE)
        self._sessions = [namespace.open_session(prompt) for prompt in prompts]

    def _step(self) -> list[Draft]:
        pairs = zip(self._sessions, self._new, strict=True)
        return [session.step(new, self._width) for session, new in pairs]

    def close(self) -> None:
        """Close the sessions and the follower."""
        for session in self._sessions:
            session.close(commit=False)
        self._follower.close()


class _Measuring:
    """A transport that records message sizes while ``noted`` is a list."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self.noted: list[Sizes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        replies: list[pb.StreamReply] = self._transport.exchange(requests, timeout_s)
        self._note(zip(requests, replies, strict=True))
        return replies

    def call(self, call: Call) -> Any:
        reply = self._transport.call(call)
        self._note([(call.request, reply)])
        return reply

    def _note(self, pairs: Iterable[tuple[Any, Any]]) -> None:
        if self.noted is not None:
            self.noted += [Sizes(request.ByteSize(), reply.ByteSize()) for request, reply in pairs]


class _RemoteSteps(_Steps):
    def __init__(self, transport: Any, texts: Sequence[TokenArray], max_draft_tokens: int) -> None:
        super().__init__(texts, max_draft_tokens)
        self._transport = _Measuring(transport)

    def sizes(self, calls: int) -> list[Sizes]:
        """Message sizes of ``calls`` calls."""
        noted = self._transport.noted = []
        for _ in range(calls):
            self.prepare()
            self.call()
        self._transport.noted = None
        return noted


class StreamSteps(_RemoteSteps):
    """Steps of several sessions in one message through the client, as an engine makes them."""

    def __init__(
        self,
        target: str,
        prompts: Sequence[TokenArray],
        texts: Sequence[TokenArray],
        max_draft_tokens: int,
        identity: ClientIdentity | None = None,
    ) -> None:
        config = ClientConfig(step_timeout_s=_TIMEOUT_S, identity=identity)
        super().__init__(GrpcTransport(target, config), texts, max_draft_tokens)
        self._client = SuffixClient(transport=cast("Transport", self._transport), config=config)
        namespace = self._client.namespace(NAMESPACE)
        self._sessions = [namespace.open_session(prompt) for prompt in prompts]
        self._steps: list[Any] = []

    def prepare(self) -> None:
        """Compute the next tokens of every session, and the arguments of the client."""
        super().prepare()
        self._steps = [
            (session, {"new_token_ids": new, "max_draft_tokens": self._width})
            for session, new in zip(self._sessions, self._new, strict=True)
        ]

    def _step(self) -> list[Draft]:
        if len(self._sessions) == 1:
            return [self._sessions[0].step(self._new[0], self._width)]
        return list(self._client.step_many(self._steps))

    def close(self) -> None:
        """Close the sessions.

        Raises:
            ProtocolError: a step was not answered.
        """
        for session in self._sessions:
            session.close(commit=False)
        empty = self._client.counts.empty
        self._client.close()
        if empty:
            raise ProtocolError("every step must be answered", got=dict(empty))


class UnarySteps(_RemoteSteps):
    """One session by unary calls, as a simple client without a stream makes them."""

    def __init__(self, target: str, prompt: TokenArray, text: TokenArray, max_draft_tokens: int) -> None:
        super().__init__(GrpcTransport(target), [text], max_draft_tokens)
        opening = pb.OpenSessionRequest(namespace=NAMESPACE, prompt_token_ids=wire.pack_tokens(prompt))
        self._id = self._transport.call(Call(opening, _TIMEOUT_S)).session_id

    def _step(self) -> list[Draft]:
        request = pb.StepRequest(
            session_id=self._id,
            seq=self.steps + 1,
            new_token_ids=wire.pack_tokens(as_token_array(self._new[0])),
            max_draft_tokens=self._width,
        )
        return [wire.draft_from_proto(self._transport.call(Call(request, _TIMEOUT_S)).draft)]

    def close(self) -> None:
        """Close the session and the channel."""
        closing = pb.CloseSessionRequest(session_id=self._id, discard=True)
        self._transport.call(Call(closing, _TIMEOUT_S))
        self._transport.close()


class EchoCalls:
    """The minimum work of a Python client: raw bytes of the sizes of real messages, one after the other.

    Args:
        think_s: duration of ``prepare``, so that the servers are idle for as long as with the other subjects.
        stream: on a stream, else by unary calls.
    """

    def __init__(
        self,
        target: str,
        sizes: Sequence[Sizes],
        think_s: float,
        *,
        stream: bool,
        identity: ClientIdentity | None = None,
    ) -> None:
        self._channel = (identity or ClientIdentity()).channel(target, CHANNEL_OPTIONS)
        self._messages = cycle([(echo.echo_request(s.request, s.reply), s.reply) for s in sizes])
        self._think_s = think_s
        self._request, self._reply_bytes = next(self._messages)
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._replies: Iterator[bytes] | None = None
        self._unary: Any = self._channel.unary_unary(echo.UNARY)
        if stream:
            open_stream: Any = self._channel.stream_stream(echo.STREAM)
            self._replies = open_stream(iter(self._outbox.get, None))

    def prepare(self) -> None:
        """Wait as long as a client prepares, and choose the next message."""
        end = time.perf_counter() + self._think_s
        while time.perf_counter() < end:
            pass
        self._request, self._reply_bytes = next(self._messages)

    def call(self) -> None:
        """Send a request and wait for its reply."""
        if self._replies is None:
            reply = self._unary(self._request, timeout=_TIMEOUT_S)
        else:
            self._outbox.put(self._request)
            reply = next(self._replies)
        assert len(reply) == self._reply_bytes

    def close(self) -> None:
        """End the stream and close the channel."""
        self._outbox.put(None)
        self._channel.close()
