"""Fixtures of the adapter tests. Tests that need engines or their source run with ``make adapters``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from suffixsvc import SuffixCache
from support.recorded_calls import Call, read_calls
from support.tracker_oracle import NAMESPACE, RecordingNamespace

ROOT = Path(__file__).resolve().parents[2]


def _selected(config: pytest.Config) -> bool:
    return "adapters" in (config.getoption("markexpr") or "")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the file that needs torch in other runs, which have no torch."""
    return True if collection_path.name == "test_huggingface.py" and not _selected(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked ``adapters`` unless ``-m`` selects them."""
    out = [item for item in items if item.get_closest_marker("adapters") and not _selected(config)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="session")
def recorded() -> list[Call]:
    """The calls of the project's own log."""
    return read_calls(ROOT / "tests" / "data" / "recorded_demo.jsonl.gz")


@pytest.fixture
def cache() -> Iterator[SuffixCache]:
    """A cache in memory, checked at the end."""
    with SuffixCache() as cache:
        yield cache
        cache.check()


@pytest.fixture
def recording(cache: SuffixCache) -> RecordingNamespace:
    """A namespace of ``cache`` that records the calls on its sessions."""
    return RecordingNamespace(cache.namespace(NAMESPACE))
