"""A model that calls tools, and servers of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import openai
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import client_of, running, settings_of
from support.serving import PATIENCE_S
from support.tiny_script import write_tiny_script

#: what the model writes to every chat, a token each
PHRASES = (
    "I will",
    " look.\n<tool_call>\n",
    '{"name": "look", "arguments"',
    ': {"where": "here"',
    '}}\n</tool_call>\n<tool_call>\n{"name": "wait", "arguments": {}}',
    "\n</tool_call>",
)


@pytest.fixture(scope="session")
def chatty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers every chat with a text and two calls."""
    path = tmp_path_factory.mktemp("chatty") / "chatty.gguf"
    return write_tiny_script(path, {"\n": PHRASES})


@pytest.fixture(scope="module")
def caller(chatty: Path) -> Iterator[openai.OpenAI]:
    """A client of the model that calls tools."""
    with running(settings_of(chatty)) as server, client_of(server) as client:
        yield client


@pytest.fixture(scope="module")
def http(server: OpenAIServer) -> Iterator[httpx.Client]:
    """A client of the cycle's server that shows bodies as they are."""
    with httpx.Client(base_url=f"http://{server.address}", timeout=PATIENCE_S) as http:
        yield http
