"""Real servers on tiny models whose answers are known, on sockets of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import openai
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import CYCLE, TURN_END, client_of, running, settings_of
from support.tiny_gguf import chain_of, write_tiny_chain, write_tiny_llama


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


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of random weights; each byte is a token."""
    return write_tiny_llama(tmp_path_factory.mktemp("noise") / "noise.gguf", seed=7, context=2048)


@pytest.fixture(scope="module")
def noise_client(noise: Path) -> Iterator[openai.OpenAI]:
    with running(settings_of(noise)) as server, client_of(server) as client:
        yield client
