"""Client of OpenAI-compatible servers that times the chunks of a stream.

Lines are stored with their times and parsed after the last one: the client shares the machine with the server
that it times.
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from suffixsvc.errors import ServiceUnavailableError

_ANSWER_SECONDS: Final = 1200.0
_HEALTH_SECONDS: Final = 2.0
_DATA: Final = b"data: "
_DONE: Final = b"[DONE]"


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer with its times, in seconds since the request was sent.

    Attributes:
        text: the generated text.
        tokens: generated tokens, the end token included.
        prompt_tokens, cached_tokens: tokens of the prompt, and those that were reused from the KV cache.
        seconds: when the answer was complete.
        chunks: (time, characters) of each chunk of text.
        first_text: text of the first chunk.
        drafted, accepted: tokens sent to verification, and those that the target accepted; 0 if not reported.
        token_ids: the generated tokens; empty if not reported.
        began: when the request was sent, on the clock of :func:`time.perf_counter`.
    """

    text: str
    tokens: int
    prompt_tokens: int
    cached_tokens: int
    seconds: float
    chunks: tuple[tuple[float, int], ...]
    first_text: str = ""
    drafted: int = 0
    accepted: int = 0
    token_ids: tuple[int, ...] = ()
    began: float = 0.0

    @property
    def first_seconds(self) -> float:
        """When the first text arrived; at the end if there was none."""
        return self.chunks[0][0] if self.chunks else self.seconds

    def share_after(self, seconds: float) -> float:
        """Share of the text that arrived after a time."""
        total = sum(characters for _, characters in self.chunks)
        late = sum(characters for at, characters in self.chunks if at > seconds)
        return late / total if total else 0.0


class HttpClient:
    """A client of one server; each request has its own connection. Thread-safe.

    Args:
        name: name of the server, for errors.
        address: HOST:PORT.
    """

    def __init__(self, name: str, address: str) -> None:
        self._name, self._address = name, address

    def healthy(self) -> bool:
        """True if the server answers its health check."""
        connection = http.client.HTTPConnection(self._address, timeout=_HEALTH_SECONDS)
        try:
            connection.request("GET", "/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def stream(self, path: str, body: Mapping[str, Any]) -> Reply:
        """Post a request and read its stream of events.

        Raises:
            ServiceUnavailableError: the server refuses or fails.
        """
        sent = {**body, "stream": True, "stream_options": {"include_usage": True}}
        data = json.dumps(sent).encode()
        connection = http.client.HTTPConnection(self._address, timeout=_ANSWER_SECONDS)
        lines: list[tuple[float, bytes]] = []
        try:
            connection.connect()
            began = time.perf_counter()
            connection.request("POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise ServiceUnavailableError(
                    f"{self._name} must answer {path}",
                    expected="status 200",
                    got=f"{response.status}: {response.read()[:300].decode(errors='replace')}",
                )
            while line := response.readline():
                lines.append((time.perf_counter() - began, line))
        except (OSError, http.client.HTTPException) as error:
            raise ServiceUnavailableError(f"{self._name} must answer {path}", got=repr(error)) from None
        finally:
            connection.close()
        return _reply(self._name, began, lines)


def _reply(name: str, began: float, lines: Sequence[tuple[float, bytes]]) -> Reply:
    texts: list[str] = []
    chunks: list[tuple[float, int]] = []
    usage: dict[str, Any] = {}
    counts: dict[str, Any] = {}
    ended: float | None = None
    for at, line in lines:
        if not line.startswith(_DATA) or line[len(_DATA) :].startswith(_DONE):
            continue
        event = json.loads(line[len(_DATA) :])
        if "choices" not in event:
            raise ServiceUnavailableError(f"{name} must complete its answer", got=str(event)[:300])
        for choice in event["choices"]:
            text = _text_of(choice)
            if text:
                texts.append(text)
                chunks.append((at, len(text)))
            if choice.get("finish_reason"):
                ended = at
        usage = event.get("usage") or usage
        counts = event.get("metrics") or event.get("timings") or counts
    if ended is None or not usage:
        raise ServiceUnavailableError(f"{name} must complete its answer", got=f"{len(lines)} lines")
    drafted, accepted = _drafts(counts)
    return Reply(
        "".join(texts),
        int(usage["completion_tokens"]),
        int(usage["prompt_tokens"]),
        int((usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)),
        ended,
        tuple(chunks),
        texts[0] if texts else "",
        drafted,
        accepted,
        began=began,
    )


def _text_of(choice: Mapping[str, Any]) -> str:
    """Text of a completion's or a chat's choice."""
    delta = choice.get("delta")
    return str((choice.get("text") if delta is None else delta.get("content")) or "")


def _drafts(counts: Mapping[str, Any]) -> tuple[int, int]:
    """Drafted and accepted tokens of this server's ``metrics`` or of llama-server's ``timings``."""
    ours = counts.get("speculative_decoding")
    if ours is not None:
        return int(ours["num_draft_tokens"]), int(ours["num_accepted_draft_tokens"])
    return int(counts.get("draft_n", 0)), int(counts.get("draft_n_accepted", 0))
