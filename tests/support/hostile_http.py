"""Hostile clients of the OpenAI-compatible server: malformed HTTP and bodies, resets, and silence.

Each attack takes a target and a number of messages, and returns how many it sent.
"""

from __future__ import annotations

import contextlib
import copy
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from support import http2_frames as h2

__all__ = ["ATTACKS", "Target", "held"]

_SECONDS: Final = 60.0
#: seconds that a raw connection waits for what the server says
_TAKE_SECONDS: Final = 0.02
_ROUTES: Final = ("/v1/completions", "/v1/chat/completions", "/v1/responses")
_GETS: Final = (
    "/v1/models",
    "/v1/models/x",
    "/v1/responses/x",
    "/v1/responses/resp_x/input_items",
    "/x",
)


@dataclass
class Target:
    """A server under attack.

    Attributes:
        address: HOST:PORT.
        model: the model's name.
        codes: statuses so far, by route.
        defects: what no server may answer.
    """

    address: str
    model: str
    choice: random.Random = field(default_factory=lambda: random.Random(1))
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)
    defects: list[str] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    def bodies(self) -> tuple[tuple[str, dict[str, Any]], ...]:
        """Valid requests of few tokens."""
        turn = {"role": "user", "content": "ab"}
        tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
        common = {"model": self.model, "temperature": 0}
        return (
            (_ROUTES[0], {**common, "prompt": "ab", "max_tokens": 3, "stop": ["x"]}),
            (_ROUTES[0], {**common, "prompt": [97, 98], "max_tokens": 3, "logprobs": 2, "stream": True}),
            (_ROUTES[1], {**common, "messages": [turn], "max_tokens": 3, "tools": [tool]}),
            (_ROUTES[1], {**common, "messages": [turn], "max_tokens": 3, "suffixsvc": {"namespace": "a"}}),
            (_ROUTES[2], {**common, "input": [turn], "max_output_tokens": 16, "metadata": {"a": "b"}}),
        )

    def answered(self, route: str, answer: httpx.Response) -> None:
        """Record an answer."""
        self.codes[route, str(answer.status_code)] += 1
        if answer.status_code >= 500 and answer.status_code != 503:
            self.defects.append(f"{route}: {answer.status_code}: {answer.text}"[:300])


_JUNK: Final[tuple[Any, ...]] = (
    None,
    True,
    -1,
    0,
    3,
    2**70,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "a",
    "\ud800",
    "\0",
    "x" * 3000,
    [],
    [None],
    [[[[]]]],
    {},
    {"a": {"a": {}}},
    {"type": "text"},
)


def _mutate(value: Any, choice: random.Random) -> Any:
    """Change one place in a JSON value."""
    if isinstance(value, dict) and value and choice.random() < 0.8:
        key = choice.choice(list(value))
        match choice.randrange(6):
            case 0:
                del value[key]
            case 1:
                value[choice.choice(("", "n", "stream", "x" * 300, "\0"))] = choice.choice(_JUNK)
            case _:
                value[key] = _mutate(value[key], choice)
        return value
    if isinstance(value, list) and value and choice.random() < 0.8:
        at = choice.randrange(len(value))
        value[at] = _mutate(value[at], choice)
        if choice.random() < 0.2:
            value *= choice.choice((0, 2, 50))
        return value
    return copy.deepcopy(choice.choice(_JUNK))


def bodies(target: Target, count: int) -> int:
    """Requests of all routes whose bodies are wrong in a few places, or not JSON at all."""
    choice = target.choice
    with httpx.Client(base_url=f"http://{target.address}", timeout=_SECONDS) as http:
        for _ in range(count):
            route, body = copy.deepcopy(choice.choice(target.bodies()))
            for _ in range(choice.choice((1, 1, 2, 4))):
                body = _mutate(body, choice)
            text = json.dumps(body).encode("utf-8", "surrogatepass")
            match choice.randrange(8):
                case 0:
                    text = text[: choice.randrange(len(text) + 1)]
                case 1:
                    at = choice.randrange(len(text) + 1)
                    text = (
                        text[:at]
                        + choice.choice((b"\xff\xfe", b"[" * 5000, b"1e999", b"\\ud800"))
                        + text[at:]
                    )
            answer = http.post(route, content=text, headers={"Content-Type": "application/json"})
            target.answered(route, answer)
    return count


def requests(target: Target, count: int) -> int:
    """Requests of other methods, URLs and headers."""
    choice = target.choice
    with httpx.Client(base_url=f"http://{target.address}", timeout=_SECONDS) as http:
        for _ in range(count):
            route = choice.choice((*_ROUTES, *_GETS, "/v1/" + "%00" * 5, "/" + "a" * 3000))
            headers = {
                "Authorization": choice.choice(("Bearer", "Basic x", "Bearer " + "x" * 5000)),
                "X-Request-Id": choice.choice(("a", "b" * 129, "c d")),
            }
            method = choice.choice(("GET", "PUT", "DELETE", "PATCH", "OPTIONS", "FOO"))
            target.answered(route, http.request(method, route, headers=headers))
    return count


def noise(target: Target, count: int) -> int:
    """Connections whose bytes are no HTTP/1.1, or only the beginning of it."""
    choice = target.choice
    for _ in range(count):
        head = f"POST {choice.choice(_ROUTES)} HTTP/1.1\r\nHost: a\r\n".encode()
        sent = choice.choice(
            (
                b"",
                choice.randbytes(choice.choice((1, 24, 4000))),
                h2.PREFACE + h2.settings(),
                b"GET / HTTP/9.9\r\n\r\n",
                b"GET /" + b"a" * 70_000,
                head + b"Content-Length: 5\r\nContent-Length: 7\r\n\r\nabcdefgh",
                head + b"Content-Length: -1\r\n\r\n",
                head + b"Content-Length: 99999999999999\r\n\r\n{",
                head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}",
                head + b"Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n{}",
                head + b"Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
                head + b"X: " + b"y" * 100_000,
                head + b"".join(b"h%d: v\r\n" % number for number in range(500)) + b"\r\n",
                head + b"bad header\r\n\r\n",
                head + b"X: a\0b\r\n\r\n",
                head[: choice.randrange(1, len(head))],
            )
        )
        with h2.Raw(target.port) as raw:
            raw.send(sent)
            if choice.random() < 0.5:
                raw.take(_TAKE_SECONDS)
            raw.close(reset=choice.random() < 0.5)
    return count


def resets(target: Target, count: int) -> int:
    """Complete requests whose clients reset the connection, before the answer or in it."""
    for _ in range(count):
        with h2.Raw(target.port) as raw:
            raw.send(_request(target, tokens=50))
            if target.choice.random() < 0.3:
                raw.take(_TAKE_SECONDS)
            raw.close(reset=True)
    return count


def _request(target: Target, tokens: int) -> bytes:
    body = {"model": target.model, "prompt": "ab", "max_tokens": tokens, "temperature": 0, "stream": True}
    data = json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


ATTACKS: Final[tuple[tuple[Callable[[Target, int], int], float], ...]] = (
    (bodies, 0.5),
    (requests, 0.15),
    (noise, 0.25),
    (resets, 0.1),
)


@contextlib.contextmanager
def held(target: Target, idle: int) -> Iterator[None]:
    """For the block: connections that say nothing or half a request, and clients that read nothing."""
    with contextlib.ExitStack() as stack:
        for opening in (b"", b"GET /he", h2.PREFACE[:9]):
            for _ in range(idle // 4):
                raw = stack.enter_context(h2.Raw(target.port))
                raw.send(opening)
        for _ in range(4):
            raw = stack.enter_context(h2.Raw(target.port, window=1024))
            raw.send(_request(target, tokens=200))
        yield
