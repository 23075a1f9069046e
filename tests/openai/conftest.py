"""Real servers on tiny models whose answers are known, on sockets of this machine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc_driver.settings.driver_config import DriverConfig, Policy
from suffixsvc_driver.targets.llama.context_settings import ContextSettings
from suffixsvc_openai.app.keys import Keys
from suffixsvc_openai.app.run import OpenAIServer, ServerSettings
from suffixsvc_openai.engine.engine import EngineSettings
from support.serving import PATIENCE_S
from support.tiny_gguf import SPECIAL, chain_of, write_tiny_chain

#: the line that the model "cycle" repeats
CYCLE = "abcdefgh\n"
TURN_END = 256 + SPECIAL.index("<|im_end|>")
CONTEXT = 2048
LANES = 2
QUEUE = 8  # of which one namespace may take half


def cycle_text(start: str, tokens: int) -> str:
    """What the cycle writes after a text that ends in ``start``, one of its characters."""
    at = CYCLE.index(start) + 1
    return (CYCLE[at:] + CYCLE * tokens)[:tokens]


@pytest.fixture(scope="session")
def cycle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that repeats one line for ever; each character is a token."""
    path = tmp_path_factory.mktemp("cycle") / "cycle.gguf"
    return write_tiny_chain(path, chain_of(CYCLE), context=1 << 15)


@pytest.fixture(scope="session")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers "ok" to every chat."""
    follows = {ord("\n"): ord("o"), ord("o"): ord("k"), ord("k"): TURN_END}
    return write_tiny_chain(tmp_path_factory.mktemp("brief") / "brief.gguf", follows, context=1 << 15)


def settings_of(
    model: Path, *, lanes: int = LANES, context: int = CONTEXT, keys: Keys | None = None, **more: Any
) -> ServerSettings:
    """Settings of a server with one thread on a free port; ``more`` are fields of EngineSettings."""
    sizes = ContextSettings(
        context_size=context, slots=lanes, threads=1, kv_type="f32", flash_attention=False
    )
    # drafts do not depend on the time that steps take
    drafting = DriverConfig(policy=Policy.FIRST_MATCH, min_match_tokens=1)
    engine = EngineSettings(model, sizes, **{"queue_size": QUEUE, "driver": drafting, **more})
    return ServerSettings(engine, model.stem, port=0, keys=keys or Keys(), grace_seconds=PATIENCE_S)


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


@pytest.fixture(scope="module")
def server(cycle: Path) -> Iterator[OpenAIServer]:
    """A server of the cycle."""
    with running(settings_of(cycle)) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: OpenAIServer) -> Iterator[openai.OpenAI]:
    with client_of(server) as client:
        yield client


@pytest.fixture(scope="module")
def brief_client(brief: Path) -> Iterator[openai.OpenAI]:
    """A client of a server of the brief model."""
    with running(settings_of(brief)) as server, client_of(server) as client:
        yield client
