"""OpenAI-compatible servers in tests, on tiny models whose answers are known."""

from __future__ import annotations

import contextlib
import hashlib
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openai
from suffixsvc import SuffixCache
from suffixsvc.access.control import AccessControl
from suffixsvc.access.tokens import TokenFile
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_openai.app.run import OpenAIServer, ServerSettings
from suffixsvc_openai.engine.engine import EngineSettings
from support.serving import PATIENCE_S, eventually
from support.tiny_gguf import SPECIAL

#: the line that the model "cycle" repeats
CYCLE = "abcdefgh\n"
TURN_END = 256 + SPECIAL.index("<|im_end|>")
CONTEXT = 2048
LANES = 2
QUEUE = 8  # of which one namespace may take half


#: more tokens than a test waits for
ENDLESS: dict[str, Any] = {"model": "cycle", "prompt": "ab", "max_tokens": 30_000, "temperature": 0}
NO_DRAFTS = {"suffixsvc": {"speculation": False}}


def cycle_text(start: str, tokens: int) -> str:
    """What the cycle writes after a text that ends in ``start``, one of its characters."""
    at = CYCLE.index(start) + 1
    return (CYCLE[at:] + CYCLE * tokens)[:tokens]


def settings_of(
    model: Path,
    *,
    lanes: int = LANES,
    context: int = CONTEXT,
    access: AccessControl | None = None,
    **more: Any,
) -> ServerSettings:
    """Settings of a server with one thread on a free port; ``more`` are fields of EngineSettings."""
    sizes = ContextSettings(
        context_size=context,
        slots=lanes,
        threads=1,
        kv_type="f32",
        flash_attention=False,
        prefix_tokens=lanes * context,
    )
    # drafts do not depend on the time that steps take
    drafting = DriverConfig(policy=Policy.FIRST_MATCH, min_match_tokens=1)
    engine = EngineSettings(model, sizes, **{"queue_size": QUEUE, "driver": drafting, **more})
    return ServerSettings(
        engine, model.stem, port=0, access=access or AccessControl(), grace_seconds=PATIENCE_S
    )


def token_of(principal: str, number: int = 0) -> str:
    """A token for tests that stands for a principal in a file of :func:`access_to`."""
    return f"sfx_{(principal + 'x' * 9)[:9]}{number}_{'s' * 43}"


def access_to(folder: Path, *tokens: str, admins: Sequence[str] = ()) -> AccessControl:
    """Access for tokens of :func:`token_of`, whose principals are the letters and digits of their ids.

    Args: admins: principals that have every right on every namespace.
    """
    tables = []
    for token in tokens:
        token_id = token.split("_")[1]
        digest = hashlib.sha256(token.encode()).hexdigest()
        tables.append(
            f'[tokens.{token_id}]\nprincipal = "{token_id[:9].rstrip("x")}"\nsha256 = "{digest}"\n'
            "created = 2026-01-01T00:00:00Z\n"
        )
    folder.mkdir(parents=True, exist_ok=True)
    file, policy = folder / "tokens.toml", folder / "policies.toml"
    file.write_text("version = 1\n" + "".join(tables))
    file.chmod(0o600)
    policy.write_text("".join(f'[principals."{name}"]\nadmin = ["*"]\n' for name in admins))
    return AccessControl(TokenFile(file), policy if admins else None, required=True)


@contextlib.contextmanager
def running(settings: ServerSettings) -> Iterator[OpenAIServer]:
    """A server that answers."""
    with OpenAIServer(settings) as server:
        server.start()
        yield server


def client_of(server: OpenAIServer, key: str = "unused") -> openai.OpenAI:
    """OpenAI's own client, without retries."""
    return openai.OpenAI(
        base_url=f"http://{server.address}/v1", api_key=key, max_retries=0, timeout=PATIENCE_S
    )


def idle(server: OpenAIServer) -> None:
    """Wait until no answer is left: every lane is free, and what was written is stored."""
    eventually(lambda: server.service.engine.unfinished == 0, "no answer is left")
    assert server.service.engine.load == (0, 0)


def stream_on_every_lane(server: OpenAIServer, tokens: int, harm: Callable[[], None]) -> list[str]:
    """Return the texts of one stream per lane, each the cycle after "ab".

    Args:
        tokens: of each stream.
        harm: called while all streams are under way.
    """
    texts = [""] * LANES
    begun = [threading.Event() for _ in texts]

    def ask(at: int) -> None:
        with client_of(server) as client:
            stream = client.completions.create(
                model="cycle", prompt="ab", max_tokens=tokens, temperature=0, stream=True
            )
            for chunk in stream:
                texts[at] += chunk.choices[0].text
                if len(texts[at]) > 50:
                    begun[at].set()

    threads = [threading.Thread(target=ask, args=(at,)) for at in range(LANES)]
    for each in threads:
        each.start()
    for event in begun:
        assert event.wait(60)
    harm()
    for each in threads:
        each.join()
    return texts


def send(
    server: OpenAIServer,
    body: dict[str, Any],
    headers: dict[str, str] | None = None,
    path: str = "/v1/completions",
) -> socket.socket:
    """Send a request and leave the answer unread."""
    host, _, port = server.address.rpartition(":")
    found = socket.create_connection((host, int(port)))
    data = json.dumps(body).encode()
    fields = {"Host": server.address, "Content-Length": str(len(data)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    found.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + data)
    return found


def namespaces(data: Path) -> dict[str, int]:
    """Number of outputs by namespace."""
    with SuffixCache(data, background=False) as cache:
        paths = [record.path for record in cache.namespaces()]
        return {path: count for path in paths if (count := cache.namespace(path).stats().outputs)}
