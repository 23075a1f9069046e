"""Fixtures of the worker tests.

``server``, ``script``, ``client`` and ``session`` belong to a scripted llama-server; the test files of our
own worker override them.
"""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc_driver.targets.llama.model import LlamaModel
from suffixsvc_driver.workers.client.session import WorkerSession
from suffixsvc_driver.workers.llama_server.worker import LlamaServerClient
from suffixsvc_models.vocabulary import Vocabulary
from support.scripted_workers import ScriptedLlama, scripted_llama
from support.tiny_gguf import SPECIAL, byte_texts, write_tiny_llama


@pytest.fixture(scope="module")
def vocabulary(tiny_model: Path) -> Vocabulary:
    with LlamaModel(tiny_model, vocab_only=True) as model:
        return model.vocabulary


@pytest.fixture(scope="module")
def foreign_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two tokens mean each other's text."""
    texts = [*byte_texts(), *SPECIAL]
    texts[90], texts[91] = texts[91], texts[90]
    return write_tiny_llama(tmp_path_factory.mktemp("foreign") / "foreign.gguf", texts=texts)


@pytest.fixture
def folder() -> Iterator[str]:
    with tempfile.TemporaryDirectory(prefix="p") as folder:
        yield folder


@pytest.fixture
def server(vocabulary: Vocabulary) -> Iterator[tuple[str, ScriptedLlama]]:
    with scripted_llama(vocabulary) as found:
        yield found
    assert not [thread for thread in threading.enumerate() if thread.name == "llama-server"]


@pytest.fixture
def script(server: tuple[str, ScriptedLlama]) -> ScriptedLlama:
    return server[1]


@pytest.fixture
def client(server: tuple[str, ScriptedLlama]) -> Iterator[LlamaServerClient]:
    with LlamaServerClient(server[0]) as client:
        yield client


@pytest.fixture
def session(client: LlamaServerClient, vocabulary: Vocabulary) -> WorkerSession:
    client.check_vocabulary(vocabulary)
    session = client.open_session(p_min=0.0, top_k=2)
    session.set_text([70, 71, 72])
    return session
