"""Models for the driver's tests: tiny random ones, and the small real one where it is to be had."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from suffixsvc_driver.targets.llama import LlamaTarget
from support.targets import WIDTH_INDEPENDENT
from support.tiny_gguf import write_tiny_llama

from suffixsvc.errors import ModelNotFoundError


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Path of a tiny random F32 llama."""
    return write_tiny_llama(tmp_path_factory.mktemp("tiny") / "tiny.gguf", seed=7)


@pytest.fixture
def tiny_target(tiny_model: Path) -> Iterator[LlamaTarget]:
    """A tiny target whose arithmetic does not depend on the batch's width."""
    with LlamaTarget(tiny_model, WIDTH_INDEPENDENT) as target:
        yield target


@pytest.fixture(scope="session")
def real_model() -> Path:
    """Path of smollm2-135m: SUFFIXSVC_TEST_MODEL, or what ``suffixsvc models get`` downloaded."""
    given = os.environ.get("SUFFIXSVC_TEST_MODEL")
    if given:
        return Path(given)
    from suffixsvc_driver import models

    try:
        return models.path("smollm2-135m")
    except ModelNotFoundError as err:
        pytest.skip(f"{err} (suffixsvc models get smollm2-135m)")
