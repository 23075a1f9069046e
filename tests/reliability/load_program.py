"""load_program.py: a client process of the row "saturation", on raw messages.

It reads orders, lines of JSON: {"target", "kind", "streams", "rate", "seconds", "seed", "token",
"namespace", "result"}, prepares one, prints "ready", begins at the next line, and prints "done". Kind "step"
sends steps of sessions to a service, "echo" messages of the same sizes to a bare echo: both on streams, one
thread each, the next message after the answer. "rate" is messages per second of this process, sent at fixed
times; 0: as many as are answered. RESULT gets a row for each answer: its time, its microseconds, and whether
it was a refusal.
"""

from __future__ import annotations

import json
import queue
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

import grpc
import numpy as np

from suffixsvc import wire
from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import types_pb2
from suffixsvc_bench.rpc import echo
from suffixsvc_bench.rpc.workload import Workload
from suffixsvc_client.transport.interface import CHANNEL_OPTIONS

STEP_TOKENS: Final = 4
_TEXT_TOKENS: Final = 4_000
_PROMPT_TOKENS: Final = 100
#: bytes of a step and of its answer
SIZES: Final = (70, 110)
_REFUSED: Final = types_pb2.ERROR_CODE_LIMIT_EXCEEDED
_OPTIONS: Final = [*CHANNEL_OPTIONS, ("grpc.use_local_subchannel_pool", 1)]


class _Stream:
    """A stream of messages, each answered before the next is sent."""

    def __init__(self, channel: grpc.Channel, path: str, token: str | None) -> None:
        self._outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        begin: Any = channel.stream_stream(path)
        metadata = [("authorization", f"Bearer {token}")] if token else None
        self._replies: Iterator[bytes] = begin(iter(self._outbox.get, None), metadata=metadata)

    def exchange(self, data: bytes) -> bytes:
        self._outbox.put(data)
        return next(self._replies)

    def close(self) -> None:
        self._outbox.put(None)


class EchoMessages:
    """Messages of the sizes of steps to the echo."""

    def __init__(self, channel: grpc.Channel, order: dict[str, Any], seed: int) -> None:
        self._stream = _Stream(channel, echo.STREAM, None)
        self._message = echo.echo_request(*SIZES)

    def send(self) -> bool:
        """Send a message; whether it was refused."""
        self._stream.exchange(self._message)
        return False

    def close(self) -> None:
        self._stream.close()


class StepMessages:
    """Steps of one session, which writes the same text again and again."""

    def __init__(self, channel: grpc.Channel, order: dict[str, Any], seed: int) -> None:
        self._stream = _Stream(channel, "/suffixsvc.v1.SuffixCache/Stream", order["token"])
        workload = Workload(seed)
        prompt, text = workload.text(_PROMPT_TOKENS), workload.text(_TEXT_TOKENS)
        self._name = str(uuid.uuid4())
        opening = pb.OpenSessionRequest(
            namespace=order["namespace"], session_id=self._name, prompt_token_ids=wire.pack_tokens(prompt)
        )
        while self._refused(self._stream.exchange(pb.StreamRequest(open=opening).SerializeToString())):
            time.sleep(0.05)
        self._parts = [
            wire.pack_tokens(text[at : at + STEP_TOKENS]) for at in range(0, _TEXT_TOKENS, STEP_TOKENS)
        ]
        self._sent = 0

    def send(self) -> bool:
        """Send a step; whether it was refused, and so is sent again."""
        step = pb.StepRequest(
            session_id=self._name,
            seq=self._sent + 1,
            new_token_ids=self._parts[self._sent % len(self._parts)],
            max_draft_tokens=8,
        )
        request = pb.StreamRequest(id=1, steps=pb.StepBatch(items=[step]))
        refused = self._refused(self._stream.exchange(request.SerializeToString()))
        self._sent += not refused
        return refused

    @staticmethod
    def _refused(data: bytes) -> bool:
        reply = pb.StreamReply.FromString(data)
        errors = [reply.error, *(item.error.error for item in reply.steps.items)]
        codes = {error.code for error in errors} - {types_pb2.ERROR_CODE_UNSPECIFIED}
        assert codes <= {_REFUSED}, reply
        return bool(codes)

    def close(self) -> None:
        close = pb.StreamRequest(
            close=pb.CloseSessionRequest(session_id=self._name, discard=True), no_reply=True
        )
        self._stream._outbox.put(close.SerializeToString())
        self._stream.close()


class RefusedStreams:
    """Streams beyond the limit of the service, or, to the echo, streams of one message."""

    def __init__(self, channel: grpc.Channel, order: dict[str, Any], seed: int) -> None:
        self._to_echo = order["kind"] == "echo-streams"
        path = echo.STREAM if self._to_echo else "/suffixsvc.v1.SuffixCache/Stream"
        self._begin: Any = channel.stream_stream(path)
        self._message = echo.echo_request(*SIZES) if self._to_echo else pb.StreamRequest().SerializeToString()
        self._metadata = [("authorization", f"Bearer {order['token']}")]

    def send(self) -> bool:
        """Open a stream; whether it was refused."""
        call = self._begin(iter([self._message]), metadata=self._metadata, timeout=60)
        try:
            for _ in call:
                pass
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
                raise
            return True
        return False

    def close(self) -> None:
        """Nothing is held."""


KINDS: Final[dict[str, Callable[[grpc.Channel, dict[str, Any], int], Any]]] = {
    "step": StepMessages,
    "echo": EchoMessages,
    "service-streams": RefusedStreams,
    "echo-streams": RefusedStreams,
}


def _run(subject: Any, order: dict[str, Any], at: int, rows: list[tuple[float, float, float]]) -> None:
    pause = order["streams"] / order["rate"] if order["rate"] else 0.0
    began = time.perf_counter()
    end = began + order["seconds"]
    due = began + pause * at / order["streams"]
    while (now := time.perf_counter()) < end:
        if now < due:
            time.sleep(due - now)
        before = time.perf_counter()
        refused = subject.send()
        rows.append((before - began, 1e6 * (time.perf_counter() - before), float(refused)))
        due = max(due + pause, before)  # what could not be sent in time is not made up for


def _perform(order: dict[str, Any]) -> None:
    found: list[list[tuple[float, float, float]]] = [[] for _ in range(order["streams"])]
    with grpc.insecure_channel(order["target"], options=_OPTIONS) as channel:
        subjects = [
            KINDS[order["kind"]](channel, order, order["seed"] + at) for at in range(order["streams"])
        ]
        print("ready", flush=True)
        sys.stdin.readline()
        threads = [
            threading.Thread(target=_run, args=(subject, order, at, found[at]))
            for at, subject in enumerate(subjects)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for subject in subjects:
            subject.close()
        time.sleep(0.1)  # for the last messages
    np.save(order["result"], np.array([row for rows in found for row in rows]).reshape(-1, 3))
    print("done", flush=True)


if __name__ == "__main__":
    while line := sys.stdin.readline():
        _perform(json.loads(line))
