"""Tiny random models for the driver's tests."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from suffixsvc_driver.targets import llama_grammar
from suffixsvc_driver.targets.llama import LlamaTarget
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import write_tiny_llama


@pytest.fixture(autouse=True)
def patient_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Grammars look at a draft for as long as it takes: how much of one is permitted does not depend on the
    machine's load."""
    monkeypatch.setattr(llama_grammar, "_PATIENCE", math.inf)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a tiny random F32 llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=7)


@pytest.fixture
def tiny_target(tiny_model: Path) -> Iterator[LlamaTarget]:
    """A tiny target whose arithmetic does not depend on the batch's width."""
    with LlamaTarget(tiny_model, WIDTH_INDEPENDENT) as target:
        yield target


@pytest.fixture
def socket_path() -> Iterator[str]:
    """Where a worker may listen; short, as paths of sockets have to be."""
    with tempfile.TemporaryDirectory(prefix="w") as folder:
        yield f"{folder}/s"
