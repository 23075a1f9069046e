"""Blocking transport over gRPC: unary calls, and one long-lived stream for all sessions.

    caller ──queue──> gRPC's sender thread ──> service ──> gRPC's receiver thread ──queue──> caller

The caller waits with its own timeout; a reply that comes later is dropped. Replies are delivered where gRPC
deserialises them, in the thread that received them: iterating over the replies would cost each decode step
another thread switch. The reader thread only requests the next reply and detects the end of the stream.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any

import grpc

from suffixsvc.errors import ProtocolError, ServiceUnavailableError, SuffixError
from suffixsvc.transport.channels import Channels, close_channel
from suffixsvc.transport.identity import CallCredential, ClientIdentity
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.effects import Call
from suffixsvc_client.transport.interface import (
    CHANNEL_OPTIONS,
    POST_SECONDS,
    SERVICE,
    STREAM,
    Forks,
    client_closed,
    credential_of,
    error_from_rpc,
    parse,
    service_peer,
    start_call,
    timed_out,
)

log = logging.getLogger(__name__)

_Answers = queue.SimpleQueue[pb.StreamReply | SuffixError]


class GrpcTransport:
    """A :class:`~suffixsvc_client.Transport` over gRPC.

    Connects on first use, after a restart of the service, and in a forked child.
    """

    def __init__(self, target: str, config: ClientConfig | None = None) -> None:
        config = ClientConfig() if config is None else config
        self._target, self._peer = target, service_peer(config.service_uid)
        self.identity = config.chosen_identity
        self.identity.check(target)
        self._ids = itertools.count(1)
        self._closed = False
        self.late_replies = 0
        self._inherited: list[object] = []
        self._begin()

    def _begin(self) -> None:
        self._channels: Channels[grpc.Channel] = Channels(
            self._target, self._peer, functools.partial(connect, self.identity), close_channel
        )
        self._lock = threading.RLock()  # a signal's handler may close while its thread holds it
        self._stream: _Stream | None = None
        self._forks = Forks.count

    def _renew_in_child(self) -> None:
        """Replace what the parent of this process made: its threads, which would answer, are not here."""
        if self._forks != Forks.count:
            with Forks.renewing:
                if self._forks != Forks.count:
                    # Kept for good: gRPC waits for its threads where it destroys a channel.
                    self._inherited += [self._channels, self._stream]
                    self._begin()

    def call(self, call: Call) -> Any:
        """Call a method; its reply, or every reply of a stream to ``call.take``."""
        self._renew_in_child()
        deadline = time.monotonic() + call.timeout_s
        with self._channels.use() as held:
            for last in (False, True):
                credential = credential_of(self.identity, held.ticket, call.timeout_s)
                try:
                    return self._call(held.channel, call, credential, deadline - time.monotonic())
                except grpc.RpcError as error:
                    typed = error_from_rpc(error)
                    if last or not credential.may_retry(typed):
                        raise typed from None
                except ValueError as error:  # the channel was closed by another thread
                    raise client_closed(error) from None
        raise AssertionError("unreachable")

    @staticmethod
    def _call(channel: grpc.Channel, call: Call, credential: CallCredential, timeout_s: float) -> Any:
        kind = call.method.reply
        reply = start_call(channel, call, credential, timeout_s)
        if call.take is None:
            return parse(kind, reply)
        try:
            for data in reply:
                call.take(parse(kind, data))
        finally:
            reply.cancel()  # if ``take`` raised; no effect after the end
        return None

    def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Send messages on the stream and wait for a reply to each."""
        self._renew_in_child()
        with self._channels.call():
            return self._exchange(requests, timeout_s)

    def _exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        answers: _Answers = queue.SimpleQueue()
        deadline = time.monotonic() + timeout_s
        ids = self._send(requests, answers, timeout_s)
        try:
            return [self._answer(answers, expected, deadline, timeout_s) for expected in ids]
        except SuffixError:
            with self._lock:
                if self._stream is not None:
                    self._stream.abandon(ids)
            raise

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Send messages on the stream; the replies are dropped."""
        self._renew_in_child()
        with self._channels.call():
            self._send(requests, None, POST_SECONDS)

    def close(self) -> None:
        """Close stream and channels. Idempotent."""
        self._renew_in_child()
        with self._lock:
            self._closed = True
            stream, self._stream = self._stream, None
        if stream is not None:
            stream.end()
        self._channels.close()

    def _send(
        self, requests: Sequence[pb.StreamRequest], answers: _Answers | None, timeout_s: float
    ) -> list[int]:
        with self._lock:
            stream = self._open_stream(timeout_s)
            ids = [next(self._ids) for _ in requests]
            for number, request in zip(ids, requests, strict=True):
                request.id = number
                stream.send(number, request.SerializeToString(), answers)
        return ids

    def _open_stream(self, timeout_s: float) -> _Stream:
        self._require_open()
        stream = self._stream
        if stream is None or stream.ended:
            try:
                stream = _Stream(self, timeout_s)
            except (RuntimeError, ValueError) as error:  # no thread can be started; the channel was closed
                raise ServiceUnavailableError("no stream to the service can be opened", got=error) from None
            self._stream = stream
            if self._closed:  # by a signal handler, before ``_stream`` was set
                stream.end()
                self._require_open()
        return stream

    @staticmethod
    def _answer(answers: _Answers, expected: int, deadline: float, timeout_s: float) -> pb.StreamReply:
        try:
            answer = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise timed_out(timeout_s) from None
        if isinstance(answer, SuffixError):
            raise answer
        if answer.id != expected:
            raise ProtocolError("replies must come in order", expected=f"id {expected}", got=answer.id)
        return answer

    def _require_open(self) -> None:
        if self._closed:
            raise client_closed()


class _Stream:
    """One gRPC stream with its reader thread. The transport's lock is held for ``send`` and ``abandon``."""

    def __init__(self, owner: GrpcTransport, timeout_s: float) -> None:
        self.ended = False
        self._owner = owner
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._waiting: dict[int, _Answers] = {}
        self._abandoned: set[int] = set()
        self._unreadable: ProtocolError | None = None
        self._channels = owner._channels
        self._held = self._channels.acquire()
        with contextlib.ExitStack() as undo:
            undo.callback(self._channels.release, self._held)
            open_stream: Any = self._held.channel.stream_stream(
                f"/{SERVICE}/{STREAM.name}", request_serializer=None, response_deserializer=self._receive
            )
            self._credential = credential_of(owner.identity, self._held.ticket, timeout_s)
            self._call: Any = open_stream(iter(self._outbox.get, None), metadata=self._credential.metadata)
            undo.callback(self.end)  # otherwise gRPC's sender would wait for the outbox without end
            threading.Thread(target=self._read, name="suffixsvc-stream", daemon=True).start()
            undo.pop_all()

    def send(self, number: int, request: bytes, answers: _Answers | None) -> None:
        if answers is not None:
            self._waiting[number] = answers
        self._outbox.put(request)

    def abandon(self, ids: Sequence[int]) -> None:
        for number in ids:
            if self._waiting.pop(number, None) is not None:
                self._abandoned.add(number)

    def end(self) -> None:
        self.ended = True
        self._outbox.put(None)
        self._call.cancel()

    def _receive(self, data: bytes) -> bytes:
        """Deliver a reply to its caller. Called by gRPC as its deserialiser, which must not raise."""
        try:
            reply = parse(pb.StreamReply, data)
        except ProtocolError as error:
            self._unreadable = error
            return data
        # ``pop`` is atomic: either this thread gets the entry, or a caller that abandons the reply does.
        answers = self._waiting.pop(reply.id, None)
        if answers is not None:
            answers.put(reply)
        elif reply.id in self._abandoned:
            with self._owner._lock:
                self._abandoned.discard(reply.id)
                self._owner.late_replies += 1
        return data

    def _read(self) -> None:
        """Request replies until the stream ends, then pass its error to all waiting calls."""
        error: SuffixError = ServiceUnavailableError("the service ended the stream")
        try:
            for _ in self._call:
                if self._unreadable is not None:
                    error = self._unreadable
                    self._call.cancel()
                    break
        except Exception as failure:
            error = _stream_error(failure)
            self._credential.may_retry(error)  # the next stream then has another ticket
        finally:
            with self._owner._lock:
                self.ended = True
                waiting, self._waiting = self._waiting, {}
            self._outbox.put(None)
            for answers in waiting.values():
                answers.put(error)
            self._channels.release(self._held)


def connect(identity: ClientIdentity, address: str) -> grpc.Channel:
    """A channel to a gRPC address, for ``Channels``."""
    return identity.channel(address, CHANNEL_OPTIONS)


def _stream_error(failure: Exception) -> SuffixError:
    """The error of a stream that ended. Never raises, not even for a defect: callers wait for the error."""
    try:
        if isinstance(failure, grpc.RpcError):
            return error_from_rpc(failure)
        log.error("the reader of a stream failed", exc_info=failure)
    except Exception:
        log.exception("the error of a stream could not be determined")
    return ServiceUnavailableError("the stream failed", got=repr(failure)[:200])
