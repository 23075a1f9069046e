"""Answers with ``no_store``: drafted from what others wrote, while nothing of them reaches what is shared."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import openai
from suffixsvc import SuffixCache
from suffixsvc_openai.app.run import OpenAIServer
from support.openai_serving import client_of, idle, running, send, settings_of
from support.serving import serving, socket_dir

NO_STORE: dict[str, Any] = {"suffixsvc": {"no_store": True}}
#: letters in an order that no prompt has, the same each time
SAMPLED: dict[str, Any] = {
    "model": "cycle",
    "prompt": "ab",
    "max_tokens": 60,
    "temperature": 2,
    "seed": 5,
    "logit_bias": {str(token): 60 for token in range(97, 123)},
}
LONG: dict[str, Any] = {**SAMPLED, "max_tokens": 30_000, "stream": True}


def suffix_tokens(client: openai.OpenAI, **extra: Any) -> int:
    """How many tokens of an answer were drafted from other outputs of the namespace."""
    answer: Any = client.completions.create(**SAMPLED, extra_body=extra)
    found: int = answer.metrics["speculative_decoding"]["tokens_by_source"]["suffix"]
    return found


@contextlib.contextmanager
def under_way(server: OpenAIServer, **fields: Any) -> Iterator[socket.socket]:
    """An answer of many tokens, of which more than those of a short one are written."""
    with send(server, {**LONG, **fields}) as stream:
        seen = b""
        while seen.count(b"data: ") < 100:
            seen += stream.recv(1 << 16)
        yield stream


@pytest.fixture
def server(cycle: Path) -> Iterator[OpenAIServer]:
    with running(settings_of(cycle, context=1 << 14)) as server:
        yield server


def test_it_is_drafted_from_stored_outputs(server: OpenAIServer) -> None:
    with client_of(server) as client:
        assert suffix_tokens(client, **NO_STORE) == 0
        assert suffix_tokens(client, **NO_STORE) == 0
        assert suffix_tokens(client) == 0
        assert suffix_tokens(client, **NO_STORE) > 0


def test_others_do_not_draft_from_it_while_it_is_written(server: OpenAIServer) -> None:
    with client_of(server) as client:
        with under_way(server, **NO_STORE):
            assert suffix_tokens(client) == 0
        idle(server)
        with under_way(server, seed=6), client_of(server) as other:
            answer: Any = other.completions.create(**{**SAMPLED, "seed": 6})
            assert answer.metrics["speculative_decoding"]["tokens_by_source"]["suffix"] > 0


@pytest.mark.parametrize(
    ("mode", "extra", "outputs"), [("remote", NO_STORE, 0), ("remote", {}, 1), ("follow", NO_STORE, 0)]
)
def test_a_service_that_ends_its_session_stores_nothing(
    cycle: Path, mode: str, extra: dict[str, Any], outputs: int
) -> None:
    """A service commits what a session has when it drains, or when the session is idle for too long."""
    with socket_dir() as folder, SuffixCache() as cache:
        with serving(cache, f"unix:{folder}/s") as (service, address):
            settings = settings_of(cycle, service=address, mode=mode, context=1 << 14)
            with running(settings) as server, under_way(server, **extra):
                assert service.drain() == outputs
        stored = [cache.namespace(record.path).stats().outputs for record in cache.namespaces()]
        assert sum(stored) == outputs
