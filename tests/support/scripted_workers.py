"""Draft workers on real sockets that answer what a test tells them to: ours over gRPC, and a llama-server.

What the scripted llama-server says of itself is what the real one says of the same model (tests/interop
holds the adapter against the real one).
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import grpc

from suffixsvc.v1 import draft_worker_pb2 as pb
from suffixsvc.v1 import draft_worker_pb2_grpc as rpc
from suffixsvc_models.vocabulary import Vocabulary

Reply = Callable[[pb.WorkerDraftRequest], pb.WorkerDraftReply]


class _Servicer(rpc.DraftWorkerServicer):
    def __init__(self, vocabulary: Vocabulary, reply: Reply, describe: dict[str, Any]) -> None:
        self._vocabulary, self._reply, self._describe = vocabulary, reply, describe

    def Describe(self, request: pb.DescribeRequest, context: grpc.ServicerContext) -> pb.DescribeReply:
        known = self._vocabulary
        said = {
            "model": "scripted.gguf",
            "vocab_type": known.kind,
            "vocab_size": known.size,
            "bos_id": known.bos_id,
            "eos_id": known.eos_id,
            "fingerprint": known.fingerprint,
            "context_size": 512,
            "seconds_per_token": 0.001,
            "instance_id": "scripted",
        }
        return pb.DescribeReply(**{**said, **self._describe})

    def GetVocab(
        self, request: pb.GetVocabRequest, context: grpc.ServicerContext
    ) -> Iterator[pb.GetVocabReply]:
        while True:  # there is no end to it
            yield pb.GetVocabReply(texts=[b"x"] * 1000)

    def Draft(
        self, request_iterator: Iterator[pb.WorkerDraftRequest], context: grpc.ServicerContext
    ) -> Iterator[pb.WorkerDraftReply]:
        for request in request_iterator:
            reply = self._reply(request)
            reply.seq = request.seq
            yield reply


@contextmanager
def scripted_worker(address: str, vocabulary: Vocabulary, reply: Reply, **describe: Any) -> Iterator[None]:
    """A gRPC draft worker. ``describe``: what it says of itself instead of the truth."""
    server = grpc.server(ThreadPoolExecutor(8))
    rpc.add_DraftWorkerServicer_to_server(_Servicer(vocabulary, reply, describe), server)
    server.add_insecure_port(address)
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait()


class ScriptedLlama:
    """What the scripted llama-server is, and what came in. Change it while it runs.

    Attributes:
        complete: (status, body) of a /completion with this body; bytes are sent as they are, and the
            connection is closed behind them.
        requests: (path, body) in order.
        connections: how many were made.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        self.vocabulary = vocabulary
        self.marker = "first"
        self.complete: Callable[[dict[str, Any]], tuple[int, Any] | bytes] = lambda body: (
            200,
            echo(body, [65] * body["n_predict"]),
        )
        self.props: dict[str, Any] = {}
        self.meta: dict[str, Any] = {}
        self.pieces = True
        self.requests: list[tuple[str, Any]] = []
        self.connections = 0

    def completions(self) -> list[dict[str, Any]]:
        """Bodies of the completions asked for, those that only measure left out."""
        return [body for path, body in self.requests if path == "/completion" and "ignore_eos" not in body]

    def answer(self, path: str, body: Any) -> tuple[int, Any] | bytes:
        self.requests.append((path, body))
        match path:
            case "/props":
                said = {
                    "model_path": "/m/tiny.gguf",
                    "media_marker": self.marker,
                    "default_generation_settings": {"n_ctx": 512},
                    "bos_token": "<|endoftext|>",
                    "eos_token": "<|endoftext|>",
                }
                return 200, {**said, **self.props}
            case "/v1/models":
                meta = {"vocab_type": 2, "n_vocab": self.vocabulary.size, "n_params": 1000, **self.meta}
                return 200, {"data": [{"id": "/m/tiny.gguf", "meta": meta}]}
            case "/tokenize":
                return 200, {"tokens": self._tokenize(body)}
            case "/completion":
                return self.complete(body)
        return 404, {"error": {"message": "File Not Found", "type": "not_found_error"}}

    def _tokenize(self, body: dict[str, Any]) -> list[Any]:
        content = body["content"]
        if isinstance(content, list):
            return [{"id": i, "piece": self._piece(i)} for i in content] if self.pieces else content
        special = self.vocabulary.texts.index(content.encode()) if content.startswith("<") else None
        return [special] if special is not None else list(content.encode())

    def _piece(self, token: int) -> str | list[int]:
        text = self.vocabulary.texts[token]
        try:
            return text.decode()
        except UnicodeDecodeError:
            return list(text)


def echo(
    body: dict[str, Any], token_ids: Sequence[Any], logprobs: Sequence[Any] = (), **more: Any
) -> dict[str, Any]:
    """An answer of /completion with these tokens, each of probability 1/2 unless told otherwise."""
    entries = []
    for token, own in zip(token_ids, logprobs or [-0.6931471805599453] * len(token_ids), strict=True):
        top = [{"id": token, "logprob": own}, {"id": 0, "logprob": -0.6931471805599453}]
        entries.append({"id": token, "logprob": own, "top_logprobs": top})
    return {
        "tokens": list(token_ids),
        "completion_probabilities": entries,
        "timings/predicted_per_token_ms": 1.0,
        **more,
    }


@contextmanager
def scripted_llama(vocabulary: Vocabulary, port: int = 0) -> Iterator[tuple[str, ScriptedLlama]]:
    """Its address, and what it is."""
    script = ScriptedLlama(vocabulary)
    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True

        def setup(self) -> None:
            super().setup()
            with lock:
                script.connections += 1

        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            self._reply(script.answer(self.path, None))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self._reply(script.answer(self.path, body))

        def _reply(self, reply: tuple[int, Any] | bytes) -> None:
            try:
                if isinstance(reply, bytes):
                    self.wfile.write(reply)
                    self.close_connection = True
                    return
                data = json.dumps(reply[1]).encode()
                self.send_response(reply[0])
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except OSError:
                self.close_connection = True  # the driver hung up

    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", script
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
