"""Client of an unmodified llama-server as draft worker: its /completion endpoint with token ids.

Start it with a small model: ``llama-server -m small.gguf --port 8081``. It keeps the KV of its slots between
calls (``cache_prompt``); if several drivers share it, give it as many slots (``-np``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, Final

from suffixsvc.errors import ProtocolError
from suffixsvc.fingerprint import tokenizer_fingerprint
from suffixsvc_driver.workers.client.interface import WorkerDescription
from suffixsvc_driver.workers.client.single import CONNECT_SECONDS, SingleWorker, require_speeds
from suffixsvc_driver.workers.llama_server import protocol
from suffixsvc_driver.workers.llama_server.channel import HttpChannel
from suffixsvc_driver.workers.llama_server.http_connection import HttpConnection, parse_http_address
from suffixsvc_models.vocabulary import Vocabulary, vocabulary_kind

_TEXTS_PER_REQUEST: Final = 8192
_SPEED_TOKENS: Final = 8
_MOST_IDS: Final = 1 << 22


class LlamaServerClient(SingleWorker):
    """A connection to one llama-server. Use it as a context manager; closing it closes its sessions.

    Its whole vocabulary is compared: kind, size, BOS and EOS with their flags, and the bytes of every id,
    fetched once per server process.

    Args:
        address: ``http://HOST:PORT``.

    Raises:
        InvalidConfigError: a malformed address.
    """

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self._at = parse_http_address(address)
        self._open_lock = threading.Lock()
        self._open: set[HttpConnection] = set()
        self._aborting = False

    def _disconnect(self) -> None:
        with self._open_lock:
            self._aborting = True
            for connection in self._open:
                connection.abort()

    def describe(self, timeout_seconds: float = CONNECT_SECONDS) -> WorkerDescription:
        """Return the server's description; its speed is measured on a few drafted tokens."""
        with self._connected(timeout_seconds) as connection:
            return self._describe(connection, _request(connection, "GET", "/props"))

    def vocabulary(
        self, description: WorkerDescription, timeout_seconds: float = CONNECT_SECONDS
    ) -> Vocabulary:
        """Fetch the server's vocabulary with its texts and their fingerprint."""
        with self._connected(timeout_seconds) as connection:
            return _with_texts(connection, description.vocabulary)

    def _verify(self, timeout_seconds: float, *, patient: bool) -> WorkerDescription:
        with self._connected(timeout_seconds) as connection:
            return self._verify_over(connection)

    def _new_channel(self) -> HttpChannel:
        return HttpChannel(self._at, self._verify_on_connect, self._vocab_size)

    def _verify_on_connect(self, connection: HttpConnection) -> None:
        if self.vocabulary_check.target is not None:
            self._verify_over(connection)

    def _verify_over(self, connection: HttpConnection) -> WorkerDescription:
        props = _request(connection, "GET", "/props")
        return self.vocabulary_check.verify(
            protocol.instance_of(props),
            lambda: self._describe(connection, props),
            lambda vocabulary: _with_texts(connection, vocabulary),
        )

    def _vocab_size(self) -> int:
        last = self.vocabulary_check.last
        return last.vocabulary.size if last is not None else _MOST_IDS

    @contextlib.contextmanager
    def _connected(self, seconds: float) -> Iterator[HttpConnection]:
        """Open a connection for a few requests, all of them within ``seconds``."""
        connection = HttpConnection(self._at)
        with self._open_lock:
            self._open.add(connection)
            if self._aborting:
                connection.abort()
        try:
            with connection.deadline(seconds):
                yield connection
        finally:
            with self._open_lock:
                self._open.discard(connection)
            connection.close()

    def _describe(self, connection: HttpConnection, props: Any) -> WorkerDescription:
        models = _request(connection, "GET", "/v1/models")
        try:
            model = models["data"][0]
            meta = model["meta"]
        except (TypeError, LookupError):
            raise ProtocolError(
                f"{self.address} does not describe its model as a llama-server does",
                expected="data[0].meta in the reply of /v1/models",
                got=repr(models)[:200],
            ) from None
        size = protocol.number(meta, "n_vocab")
        if not 0 < size < _MOST_IDS:
            raise ProtocolError(
                f"{self.address} does not return the size of its vocabulary",
                expected="n_vocab",
                got=repr(meta)[:200],
            )
        seconds = _measure_speed(connection)
        require_speeds(self.address, seconds)
        kind = vocabulary_kind(meta.get("vocab_type"))
        return WorkerDescription(
            model=str(model.get("id", "")).rpartition("/")[2],
            context_size=protocol.number(props, "default_generation_settings", "n_ctx"),
            seconds_per_token=seconds,
            parameters=protocol.number(meta, "n_params"),
            instance_id=protocol.instance_of(props),
            vocabulary=_special_tokens(connection, props, kind, size),
        )


def _request(connection: HttpConnection, method: str, path: str, body: object = None) -> Any:
    status, reply = connection.request(method, path, body)
    if status != 200:
        raise protocol.error_from_reply(status, reply, connection.address)
    return reply


def _tokenize(connection: HttpConnection, text: str, size: int, *, add_special: bool) -> list[int]:
    reply = _request(connection, "POST", "/tokenize", {"content": text, "add_special": add_special})
    return protocol.parse_tokens(reply, size)


def _special_tokens(connection: HttpConnection, props: Any, kind: str, size: int) -> Vocabulary:
    """Infer the special tokens from tokenized texts: the server has no field for them."""
    bare = _tokenize(connection, "a", size, add_special=False)
    marked = _tokenize(connection, "a", size, add_special=True)
    at = next((i for i in range(len(marked)) if marked[i : i + len(bare)] == bare), 0)
    before, after = marked[:at], marked[at + len(bare) :]
    return Vocabulary(
        kind=kind,
        size=size,
        bos_id=before[0] if before else _id_of(connection, props, "bos_token", size),
        eos_id=after[-1] if after else _id_of(connection, props, "eos_token", size),
        add_bos=bool(before),
        add_eos=bool(after),
        fingerprint="",
    )


def _id_of(connection: HttpConnection, props: Any, name: str, size: int) -> int:
    """The id of a special token that is given as text; -1 = none."""
    text = props.get(name) if isinstance(props, dict) else None
    if not isinstance(text, str) or not text:
        return -1
    tokens = _tokenize(connection, text, size, add_special=False)
    return tokens[0] if len(tokens) == 1 else -1


def _with_texts(connection: HttpConnection, known: Vocabulary) -> Vocabulary:
    texts: list[bytes] = []
    for first in range(0, known.size, _TEXTS_PER_REQUEST):
        count = min(_TEXTS_PER_REQUEST, known.size - first)
        body = {"content": list(range(first, first + count)), "with_pieces": True}
        texts.extend(protocol.parse_pieces(_request(connection, "POST", "/tokenize", body), first, count))
    fingerprint = tokenizer_fingerprint(enumerate(texts), {"bos": known.bos_id, "eos": known.eos_id})
    return replace(known, fingerprint=fingerprint, texts=tuple(texts))


def _measure_speed(connection: HttpConnection) -> float:
    """Seconds per drafted token, by the server's own clock if it returns one."""
    body = {**protocol.completion_request([0], _SPEED_TOKENS, 1), "ignore_eos": True}
    before = time.perf_counter()
    reply = _request(connection, "POST", "/completion", body)
    taken = (time.perf_counter() - before) / _SPEED_TOKENS
    return protocol.seconds_per_token(reply) or taken
