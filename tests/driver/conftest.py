"""Tiny random models for the driver's tests."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc_driver.targets.llama import grammar as llama_grammar
from suffixsvc_driver.targets.single import LlamaTarget
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import write_tiny_llama


@pytest.fixture(autouse=True)
def unlimited_grammar_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the time limit of checking drafts, so that results do not depend on the load of the machine."""
    monkeypatch.setattr(llama_grammar, "_TIME_LIMIT", math.inf)


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
