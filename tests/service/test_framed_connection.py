"""The core's reader of the direct socket: the answers of the handlers, however the bytes are split."""

from __future__ import annotations

import random
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from suffixsvc import Limits, SuffixCache, wire
from suffixsvc.core import FramedConnection, StepDispatcher
from suffixsvc.errors import LimitExceededError
from suffixsvc.frames import frame
from suffixsvc.service.handlers import Handlers
from suffixsvc.v1 import suffix_cache_pb2 as pb
from support.direct import receive_reply
from support.serving import eventually

LIMITS = Limits(max_session_tokens=4000, max_draft_tokens=12, max_sessions=100)
MOST = 1 << 20
SESSIONS = ("a", "b", "c")


def new_handlers(cache: SuffixCache) -> Handlers:
    handlers = Handlers(cache, LIMITS, durable=False)
    cache.namespace("n").add_output(list(range(100, 160)))
    for session_id in SESSIONS:
        handlers.open_session(pb.OpenSessionRequest(namespace="n", session_id=session_id))
    return handlers


@contextmanager
def connected(handlers: Handlers, most: int = MOST) -> Iterator[tuple[socket.socket, list[bytes | int]]]:
    """The client's end of a connection, and the messages that the core left to Python."""
    ours, theirs = socket.socketpair()
    left: list[bytes | int] = []

    def serve() -> None:
        stream = FramedConnection(handlers.sessions.table.dispatcher, theirs.fileno(), most)
        while (found := stream.next()) is not None:
            if isinstance(found, int):
                left.append(found)
                break
            left.append(found[0])
            theirs.sendall(frame(handlers.answer_remaining(*found)))

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    ours.settimeout(20.0)
    try:
        yield ours, left
    finally:
        ours.close()
        thread.join(20.0)
        theirs.close()
        assert not thread.is_alive()


def some_message(random: random.Random, number: int) -> pb.StreamRequest:
    """Mostly steps; some of unknown sessions, some that are refused, some other messages."""
    kind = random.random()
    if kind < 0.1:
        return pb.StreamRequest(id=number)
    if kind < 0.2:
        tokens = wire.pack_tokens(np.array([random.randrange(9)] * random.randrange(1, 900), np.int32))
        context = pb.AppendContextRequest(session_id=random.choice(SESSIONS), token_ids=tokens)
        return pb.StreamRequest(id=number, append_context=context)
    steps = [
        pb.StepRequest(
            session_id=session_id,
            new_token_ids=wire.pack_tokens(np.array([100 + random.randrange(60)], np.int32)),
            max_draft_tokens=8,
            at=random.randrange(5) if random.random() < 0.1 else None,
        )
        for session_id in random.sample([*SESSIONS, "unknown"], random.randrange(1, 4))
    ]
    return pb.StreamRequest(id=number, steps=pb.StepBatch(items=steps))


@pytest.mark.parametrize("seed", range(8))
def test_the_same_answers_as_message_by_message(seed: int) -> None:
    print(f"seed {seed}")
    rng = random.Random(seed)
    messages = [some_message(rng, number) for number in range(1, 200)]
    with SuffixCache(limits=LIMITS) as cache, SuffixCache(limits=LIMITS) as other:
        twin = new_handlers(other)
        expected = [twin.message(message) for message in messages]
        data = b"".join(frame(message.SerializeToString()) for message in messages)
        with connected(new_handlers(cache)) as (caller, left):
            writer = threading.Thread(target=send_in_pieces, args=[caller, data, rng])
            writer.start()
            answers = [receive_reply(caller) for _ in messages]
            writer.join(20.0)
        # steps of a batch run concurrently: the order of their evidence is unspecified
        for answer in (*answers, *expected):
            for item in answer.steps.items:
                item.reply.ClearField("draft")
        assert answers == expected
        assert 0 < len(left) < len(messages)  # both paths were used
        cache.check()


def send_in_pieces(caller: socket.socket, data: bytes, rng: random.Random) -> None:
    at = 0
    while at < len(data):
        piece = rng.choice([1, 3, 50, 4000, 100_000])
        caller.sendall(data[at : at + piece])
        at += piece


def test_long_messages_are_complete_and_their_buffer_is_freed() -> None:
    with SuffixCache(limits=LIMITS) as cache, connected(new_handlers(cache)) as (caller, left):
        sizes = [1 << 19, 3, 1 << 18, (1 << 20) - 40]
        for number, size in enumerate(sizes, start=1):
            # an unknown field, which the wire format ignores
            long = pb.StreamRequest(id=number).SerializeToString() + wire_field(15, b"x" * size)
            caller.sendall(frame(long))
            assert receive_reply(caller).id == number
        assert len(left) == len(sizes)


def wire_field(number: int, data: bytes) -> bytes:
    size, length = len(data), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + data


def test_a_message_that_is_too_long_is_reported_with_its_length() -> None:
    with SuffixCache(limits=LIMITS) as cache, connected(new_handlers(cache), most=100) as (caller, left):
        caller.sendall(frame(b"\x08\x05" * 50))
        assert receive_reply(caller).id == 5
        caller.sendall(frame(b"x" * 101)[:4])
        eventually(lambda: len(left) == 2, "the length is reported")
    assert left[1:] == [101]


def test_a_closed_dispatcher_leaves_all_messages() -> None:
    with SuffixCache(limits=LIMITS) as cache:
        handlers = new_handlers(cache)
        message = pb.StreamRequest(id=3, steps=pb.StepBatch(items=[pb.StepRequest(session_id="a")]))
        with connected(handlers) as (caller, left):
            caller.sendall(frame(message.SerializeToString()))
            assert receive_reply(caller).steps.items[0].reply.length == 0
            assert left == []
            handlers.sessions.table.dispatcher.close()
            caller.sendall(frame(message.SerializeToString()))
            assert receive_reply(caller).id == 3
            assert left == [message.SerializeToString()]


@pytest.mark.parametrize("session_id", ["a", "absent", ""])
def test_a_message_with_more_steps_than_sessions_is_refused(session_id: str) -> None:
    """Two bytes an item: a message of some megabytes would be answered by gigabytes."""
    with SuffixCache(limits=LIMITS) as cache:
        handlers = new_handlers(cache)
        items = [pb.StepRequest(session_id=session_id)] * (LIMITS.max_sessions + 1)
        with connected(handlers) as (caller, left):
            message = pb.StreamRequest(id=3, steps=pb.StepBatch(items=items)).SerializeToString()
            caller.sendall(frame(message))
            reply = receive_reply(caller)
            assert (reply.id, left) == (3, [message])
            error = wire.error_from_detail(reply.error)
            assert isinstance(error, LimitExceededError)
            assert str(LIMITS.max_sessions) in str(error)
            fewer = pb.StreamRequest(id=4, steps=pb.StepBatch(items=items[1:]))
            caller.sendall(frame(fewer.SerializeToString()))
            assert len(receive_reply(caller).steps.items) == LIMITS.max_sessions


def test_a_socket_that_fails_is_the_end() -> None:
    ours, theirs = socket.socketpair()
    dispatcher = StepDispatcher(4, b"\1\2")
    stream = FramedConnection(dispatcher, theirs.fileno(), MOST)
    ours.sendall(b"\x05\x00\x00\x00ab")
    ours.close()
    assert stream.next() is None
    theirs.close()
    assert stream.next() is None
