"""A service over a real socket whose drafts are wrong in all possible ways."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import contextmanager
from typing import Any

import grpc
import numpy as np

from suffixsvc.v1 import suffix_cache_pb2 as pb
from suffixsvc.v1 import suffix_cache_pb2_grpc


class HostileService(suffix_cache_pb2_grpc.SuffixCacheServicer):
    """Servicer that follows the protocol, so that its drafts are checked. It knows the text that will be
    written, so that some drafted tokens are accepted.

    Attributes:
        truth: prompt and answer of the running generation.
        answers: number of answered steps.
    """

    def __init__(self, seed: int, vocab_size: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.vocab_size = vocab_size
        self.truth: Sequence[int] = ()
        self.answers = 0

    def OpenSession(self, request: pb.OpenSessionRequest, context: Any) -> pb.OpenSessionReply:
        length = len(request.prompt_token_ids) // 4
        return pb.OpenSessionReply(session_id=request.session_id, length=length)

    def CloseSession(self, request: pb.CloseSessionRequest, context: Any) -> pb.CloseSessionReply:
        return pb.CloseSessionReply(session_id=request.session_id)

    def Stream(self, request_iterator: Iterator[pb.StreamRequest], context: Any) -> Iterator[pb.StreamReply]:
        for request in request_iterator:
            reply = pb.StreamReply(id=request.id)
            kind = request.WhichOneof("request")
            if kind == "open":
                reply.open.session_id = request.open.session_id
                reply.open.length = len(request.open.prompt_token_ids) // 4
            elif kind == "steps":
                for item in request.steps.items:
                    answer = reply.steps.items.add().reply
                    answer.session_id, answer.seq = item.session_id, item.seq
                    answer.length = item.at + len(item.new_token_ids) // 4
                    self._draft(answer)
                    self.answers += 1
            elif kind == "close":
                reply.close.session_id = request.close.session_id
            yield reply

    def _draft(self, answer: pb.StepReply) -> None:
        """A correct beginning, then noise, with invalid ids, probabilities, parents and sources."""
        rng = self.rng
        right = list(self.truth[answer.length :][: int(rng.integers(0, 12))])
        wild = 10_000 if rng.random() < 0.01 else int(rng.integers(0, 12))
        noise = rng.integers(0, self.vocab_size, wild).tolist()
        ids = np.array([*right, *noise], "<i8")
        n = len(ids)
        if n and rng.random() < 0.2:
            ids[rng.integers(n)] = rng.choice([-1, -(2**31), self.vocab_size, 2**31 - 1])
        probs = (rng.random(n) ** 0.1).astype("<f4")
        if n and rng.random() < 0.2:
            probs[rng.integers(n)] = rng.choice([np.nan, np.inf, -np.inf, -1.0, 7.0])
        draft = answer.draft
        draft.token_ids = ids.astype("<i4").tobytes()
        draft.probs = probs.tobytes()
        draft.sources = rng.integers(0, 256 if rng.random() < 0.2 else 4, n).astype(np.uint8).tobytes()
        draft.match_lens = rng.integers(-5, 99, n).astype("<i4").tobytes()
        shape = rng.random()
        if shape < 0.15:  # cycles, forward references, roots in the middle
            draft.parents = rng.integers(-3, n + 3, n).astype("<i4").tobytes()
        elif shape < 0.3 and n:  # a tree
            draft.parents = np.array([rng.integers(-1, i) if i else -1 for i in range(n)], "<i4").tobytes()
        elif shape < 0.31:  # arrays of different lengths, which the client cannot parse
            draft.probs = draft.probs[: -4 * int(rng.integers(1, 4))]


@contextmanager
def hostile_service(seed: int, vocab_size: int) -> Iterator[tuple[HostileService, str]]:
    """Run the service; yields it and its address."""
    service = HostileService(seed, vocab_size)
    server = grpc.server(futures.ThreadPoolExecutor(4))
    suffix_cache_pb2_grpc.add_SuffixCacheServicer_to_server(service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield service, f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
