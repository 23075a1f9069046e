"""Fixtures of the decoding tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc_driver.targets.parallel import ParallelLlama
from support.parallel_runs import LANES


@pytest.fixture
def tiny(tiny_model: Path) -> Iterator[ParallelLlama]:
    with ParallelLlama(tiny_model, LANES) as target:
        yield target
