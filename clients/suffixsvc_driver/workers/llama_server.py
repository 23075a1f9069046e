"""An ordinary llama-server as draft worker: its /completion with token ids.

It needs nothing but to be started with a small model: ``llama-server -m small.gguf --port 8081``. It keeps
the KV of its slots between calls (``cache_prompt``); where several drivers share it, give it as many slots
(``-np``).
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any, Final

from suffixsvc.errors import ProtocolError
from suffixsvc.fingerprint import tokenizer_fingerprint
from suffixsvc_driver.vocabulary import MAX_SIZE_DIFFERENCE, Vocabulary
from suffixsvc_driver.workers import llama_protocol as protocol
from suffixsvc_driver.workers.http_connection import HttpConnection, parse_http_address
from suffixsvc_driver.workers.http_exchange import HttpExchange
from suffixsvc_driver.workers.interface import WorkerDescription
from suffixsvc_driver.workers.single import CONNECT_SECONDS, SingleWorker, require_speed

__all__ = ["LlamaServerClient"]

_TEXTS_AT_ONCE: Final = 8192
_SPEED_TOKENS: Final = 8
_MOST_IDS: Final = 1 << 22


class LlamaServerClient(SingleWorker):
    """A connection to one llama-server. Use it as a context manager; sessions go with it.

    Its vocabulary is compared whole: kind, size, BOS and EOS with their flags, and the bytes of every id,
    asked once of every server process that is met.

    Args:
        address: ``http://HOST:PORT``.

    Raises:
        InvalidConfigError: another address.
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
        """Ask the server what it is, and how fast: it drafts a few tokens for that."""
        with self._connected(timeout_seconds) as connection:
            return self._describe(connection, self._instance(connection))

    def vocabulary(
        self, description: WorkerDescription, timeout_seconds: float = CONNECT_SECONDS
    ) -> Vocabulary:
        """The server's vocabulary with its texts and the fingerprint they give."""
        with self._connected(timeout_seconds) as connection:
            return _with_texts(connection, description.vocabulary)

    def _admit(self, timeout_seconds: float, *, patient: bool) -> WorkerDescription:
        with self._connected(timeout_seconds) as connection:
            return self._admit_over(connection)

    def _converse(self) -> HttpExchange:
        return HttpExchange(self._at, self._admit_if_wanted, self._vocab_size)

    def _admit_if_wanted(self, connection: HttpConnection) -> None:
        if self.admission.target is not None:
            self._admit_over(connection)

    def _admit_over(self, connection: HttpConnection) -> WorkerDescription:
        instance_id = self._instance(connection)
        found = self.admission.known(instance_id)
        if found is not None:
            return found
        description = self._describe(connection, instance_id)
        vocabulary, target = description.vocabulary, self.admission.target
        if target is None or abs(vocabulary.size - target.size) > MAX_SIZE_DIFFERENCE:
            return self.admission.compare(description, vocabulary, "by its size")
        vocabulary = _with_texts(connection, vocabulary)
        return self.admission.compare(description, vocabulary, f"the texts of {len(vocabulary.texts)} ids")

    def _vocab_size(self) -> int:
        last = self.admission.last
        return last.vocabulary.size if last is not None else _MOST_IDS

    @contextlib.contextmanager
    def _connected(self, seconds: float) -> Iterator[HttpConnection]:
        """A connection for a few questions, all of them within so many seconds."""
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

    def _instance(self, connection: HttpConnection) -> str:
        return protocol.instance_of(_ask(connection, "GET", "/props"))

    def _describe(self, connection: HttpConnection, instance_id: str) -> WorkerDescription:
        props = _ask(connection, "GET", "/props")
        models = _ask(connection, "GET", "/v1/models")
        try:
            model = models["data"][0]
            meta = model["meta"]
        except (TypeError, LookupError):
            raise ProtocolError(
                f"{self.address} does not describe its model as a llama-server does",
                expected="data[0].meta in the answer of /v1/models",
                got=repr(models)[:200],
            ) from None
        size = protocol.number(meta, "n_vocab")
        if not 0 < size < _MOST_IDS:
            raise ProtocolError(
                f"{self.address} does not say how many tokens it has",
                expected="n_vocab",
                got=repr(meta)[:200],
            )
        seconds = _measure_speed(connection)
        require_speed(seconds, self.address)
        kind = protocol.vocabulary_kind(meta.get("vocab_type"))
        return WorkerDescription(
            model=str(model.get("id", "")).rpartition("/")[2],
            context_size=protocol.number(props, "default_generation_settings", "n_ctx"),
            seconds_per_token=seconds,
            parameters=protocol.number(meta, "n_params"),
            instance_id=instance_id,
            vocabulary=_special_tokens(connection, props, kind, size),
        )


def _ask(connection: HttpConnection, method: str, path: str, body: object = None) -> Any:
    status, reply = connection.ask(method, path, body)
    if status != 200:
        raise protocol.error_from_reply(status, reply, connection.address)
    return reply


def _tokenize(connection: HttpConnection, text: str, size: int, *, add_special: bool) -> list[int]:
    reply = _ask(connection, "POST", "/tokenize", {"content": text, "add_special": add_special})
    return protocol.parse_tokens(reply, size)


def _special_tokens(connection: HttpConnection, props: Any, kind: str, size: int) -> Vocabulary:
    """What the server does not say outright is seen in what it does with texts."""
    bare = _tokenize(connection, "a", size, add_special=False)
    marked = _tokenize(connection, "a", size, add_special=True)
    at = next((i for i in range(len(marked)) if marked[i : i + len(bare)] == bare), 0)
    before, behind = marked[:at], marked[at + len(bare) :]
    return Vocabulary(
        kind=kind,
        size=size,
        bos_id=before[0] if before else _id_of(connection, props, "bos_token", size),
        eos_id=behind[-1] if behind else _id_of(connection, props, "eos_token", size),
        add_bos=bool(before),
        add_eos=bool(behind),
        fingerprint="",
    )


def _id_of(connection: HttpConnection, props: Any, name: str, size: int) -> int:
    """The id of a special token that is spelled out; -1 = there is none."""
    text = props.get(name) if isinstance(props, dict) else None
    if not isinstance(text, str) or not text:
        return -1
    tokens = _tokenize(connection, text, size, add_special=False)
    return tokens[0] if len(tokens) == 1 else -1


def _with_texts(connection: HttpConnection, known: Vocabulary) -> Vocabulary:
    texts: list[bytes] = []
    for first in range(0, known.size, _TEXTS_AT_ONCE):
        count = min(_TEXTS_AT_ONCE, known.size - first)
        body = {"content": list(range(first, first + count)), "with_pieces": True}
        texts.extend(protocol.parse_pieces(_ask(connection, "POST", "/tokenize", body), first, count))
    fingerprint = tokenizer_fingerprint(enumerate(texts), {"bos": known.bos_id, "eos": known.eos_id})
    return Vocabulary(
        known.kind,
        known.size,
        known.bos_id,
        known.eos_id,
        known.add_bos,
        known.add_eos,
        fingerprint,
        tuple(texts),
    )


def _measure_speed(connection: HttpConnection) -> float:
    """Seconds a drafted token takes, by the server's own clock where it has one."""
    body = {**protocol.completion_request([0], _SPEED_TOKENS, 1), "ignore_eos": True}
    before = time.perf_counter()
    reply = _ask(connection, "POST", "/completion", body)
    taken = (time.perf_counter() - before) / _SPEED_TOKENS
    return protocol.seconds_per_token(reply) or taken
