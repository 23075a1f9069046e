"""Asyncio transport over gRPC: unary calls, and one long-lived stream for all sessions."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc

from suffixsvc.errors import ProtocolError, ServiceUnavailableError, SuffixError
from suffixsvc.transport.channels import Channels, SharedChannel
from suffixsvc.transport.identity import CallCredential
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc_client.protocol.config import ClientConfig
from suffixsvc_client.protocol.effects import Call
from suffixsvc_client.transport.interface import (
    CHANNEL_OPTIONS,
    POST_SECONDS,
    STREAM,
    client_closed,
    credential_of,
    error_from_rpc,
    multicallable,
    parse,
    service_peer,
    start_call,
    timed_out,
)

log = logging.getLogger(__name__)

_Answer = asyncio.Future[pb.StreamReply]


class AioGrpcTransport:
    """An :class:`~suffixsvc_client.AsyncTransport` over gRPC, bound to the event loop of its first use."""

    def __init__(self, target: str, config: ClientConfig | None = None) -> None:
        config = ClientConfig() if config is None else config
        self.identity = config.chosen_identity
        self.identity.check(target)
        self._channels: Channels[grpc.aio.Channel] = Channels(
            target, service_peer(config.service_uid), self._connect, self._disconnect, closed_at_forks=False
        )
        self._stream: _Stream | None = None
        self._ids = itertools.count(1)
        #: tasks that close channels
        self._ending: set[asyncio.Task[None]] = set()
        self.late_replies = 0

    async def call(self, call: Call) -> Any:
        """Call a method; its reply, or every reply of a stream to ``call.take``."""
        deadline = time.monotonic() + call.timeout_s
        with self._channels.use() as held:
            for last in (False, True):
                await self._fetch_ticket(held, call.timeout_s)
                credential = credential_of(self.identity, held.ticket, call.timeout_s)
                try:
                    with _typed_errors():
                        return await self._call(held.channel, call, credential, deadline - time.monotonic())
                except SuffixError as error:
                    if last or not credential.may_retry(error):
                        raise
        raise AssertionError("unreachable")

    @staticmethod
    async def _call(
        channel: grpc.aio.Channel, call: Call, credential: CallCredential, timeout_s: float
    ) -> Any:
        kind = call.method.reply
        reply = start_call(channel, call, credential, timeout_s)
        if call.take is None:
            return parse(kind, await reply)
        try:
            async for data in reply:
                call.take(parse(kind, data))
        finally:
            reply.cancel()  # if ``take`` raised; no effect after the end
        return None

    async def _fetch_ticket(self, held: SharedChannel[grpc.aio.Channel], timeout_s: float) -> None:
        """Fetch the ticket that the next call presents, if it needs one, in a thread."""
        if not self.identity.has_token and held.ticket is not None and held.ticket.is_due:
            await asyncio.to_thread(held.ticket.current, timeout_s)

    async def exchange(self, requests: Sequence[pb.StreamRequest], timeout_s: float) -> list[pb.StreamReply]:
        """Send messages on the stream and wait for a reply to each."""
        stream = await self._open_stream(timeout_s)
        answers = stream.send(requests)
        try:
            done, late = await asyncio.wait(answers, timeout=timeout_s, return_when=asyncio.FIRST_EXCEPTION)
        finally:  # also after a cancellation
            stream.abandon(requests)
        for error in [answer.exception() for answer in done]:
            if error is not None:
                raise error
        if late:
            raise timed_out(timeout_s)
        return [answer.result() for answer in answers]

    async def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Send messages on the stream; the replies are dropped."""
        (await self._open_stream(POST_SECONDS)).post(requests)

    async def close(self) -> None:
        """Close stream and channels. Idempotent."""
        if self._stream is not None:
            self._stream.end()
        self._channels.close()
        await asyncio.gather(*self._ending)

    async def _open_stream(self, timeout_s: float) -> _Stream:
        if self._stream is None or self._stream.ended:
            with self._channels.use() as held:
                await self._fetch_ticket(held, timeout_s)
        if self._stream is None or self._stream.ended:  # no other task has opened one meanwhile
            self._stream = _Stream(self)
        return self._stream

    def _connect(self, address: str) -> grpc.aio.Channel:
        return self.identity.aio_channel(address, CHANNEL_OPTIONS)

    def _disconnect(self, channel: grpc.aio.Channel, done: Callable[[], None]) -> None:
        async def end() -> None:
            await channel.close()
            done()

        task = asyncio.ensure_future(end())
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


@contextlib.contextmanager
def _typed_errors() -> Iterator[None]:
    """Map gRPC's exceptions. The calls of a closed channel end with CancelledError, in any task."""
    try:
        yield
    except grpc.RpcError as error:
        raise error_from_rpc(error) from None
    except grpc.aio.UsageError as error:  # the channel was closed in the meantime
        raise client_closed(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise client_closed("a call in flight") from None


class _Stream:
    """One gRPC stream with a writer task and a reader task."""

    def __init__(self, owner: AioGrpcTransport) -> None:
        self.ended = False
        self._owner = owner
        self._ids = owner._ids
        self._waiting: dict[int, _Answer] = {}
        self._abandoned: set[int] = set()
        self._outbox: asyncio.Queue[pb.StreamRequest] = asyncio.Queue()
        self._channels = owner._channels
        self._held = self._channels.acquire()
        try:
            self._credential = credential_of(owner.identity, self._held.ticket)
            self._call = multicallable(self._held.channel, STREAM)(metadata=self._credential.metadata)
        except BaseException:
            self._channels.release(self._held)
            raise
        self._tasks = [asyncio.ensure_future(self._write()), asyncio.ensure_future(self._read())]

    def send(self, requests: Sequence[pb.StreamRequest]) -> list[_Answer]:
        """Queue messages; returns a future for the reply to each."""
        self.post(requests)
        loop = asyncio.get_running_loop()
        answers = [loop.create_future() for _ in requests]
        self._waiting.update((request.id, answer) for request, answer in zip(requests, answers, strict=True))
        return answers

    def post(self, requests: Sequence[pb.StreamRequest]) -> None:
        for request in requests:
            request.id = next(self._ids)
            self._outbox.put_nowait(request)

    def abandon(self, requests: Sequence[pb.StreamRequest]) -> None:
        """Stop waiting for replies; those that still come are counted as late."""
        for request in requests:
            if self._waiting.pop(request.id, None) is not None:
                self._abandoned.add(request.id)

    def end(self) -> None:
        self.ended = True
        self._call.cancel()
        for task in self._tasks:
            task.cancel()
        self._fail(client_closed())

    async def _write(self) -> None:
        try:
            while True:
                await self._call.write(await self._outbox.get())
        except (grpc.RpcError, asyncio.InvalidStateError):
            return  # the reader receives the error too, and passes it to waiting calls
        except Exception:  # a message was not written, so that its reply would never come
            log.exception("the writer of a stream failed")
            self._call.cancel()

    async def _read(self) -> None:
        error: SuffixError = ServiceUnavailableError("the service ended the stream")
        try:
            while (data := await self._call.read()) is not grpc.aio.EOF:
                self._deliver(parse(pb.StreamReply, data))
            if await self._call.code() is not grpc.StatusCode.OK:
                error = ServiceUnavailableError(
                    "the service ended the stream", got=await self._call.details()
                )
        except grpc.RpcError as failure:
            error = error_from_rpc(failure)
            self._credential.may_retry(error)  # the next stream then has another ticket
        except ProtocolError as failure:
            error = failure
            self._call.cancel()
        except Exception as failure:  # a defect, here or in gRPC: waiting calls must end nevertheless
            log.exception("the reader of a stream failed")
            error = ServiceUnavailableError("the stream failed", got=repr(failure)[:200])
        finally:
            self.ended = True
            self._tasks[0].cancel()
            self._fail(error)
            self._channels.release(self._held)

    def _deliver(self, reply: pb.StreamReply) -> None:
        answer = self._waiting.pop(reply.id, None)
        if answer is not None and not answer.done():
            answer.set_result(reply)
        elif reply.id in self._abandoned:
            self._abandoned.discard(reply.id)
            self._owner.late_replies += 1

    def _fail(self, error: SuffixError) -> None:
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(error)
                answer.exception()  # marks it as retrieved: the waiting task may have been cancelled
