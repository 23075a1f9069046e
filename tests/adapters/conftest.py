"""What the tests of the adapters share. Those that need engines or their source: ``make adapters``."""

from __future__ import annotations

from pathlib import Path

import pytest
from suffixsvc_driver.adapters.examples.recorded_calls import Call, read_calls

ROOT = Path(__file__).resolve().parents[2]


def _asked_for(config: pytest.Config) -> bool:
    return "adapters" in (config.getoption("markexpr") or "")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Everyday runs have no torch: they leave the file alone instead of skipping it aloud."""
    return True if collection_path.name == "test_huggingface.py" and not _asked_for(config) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """They leave out what else is marked ``adapters`` as well; ``-m adapters`` asks for it."""
    out = [item for item in items if item.get_closest_marker("adapters") and not _asked_for(config)]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="session")
def recorded() -> list[Call]:
    """The project's own log."""
    return read_calls(ROOT / "tests" / "data" / "recorded_demo.jsonl.gz")
