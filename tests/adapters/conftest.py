"""What the tests of the adapters share. Those that need engines or their source: ``make adapters``."""

from __future__ import annotations

from pathlib import Path

import pytest
from suffixsvc_driver.adapters.examples.recorded_calls import Call, read_calls

ROOT = Path(__file__).resolve().parents[2]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Everyday runs leave out what is marked ``adapters``; ``-m adapters`` asks for it."""
    if "adapters" in (config.getoption("markexpr") or ""):
        return
    out = [item for item in items if item.get_closest_marker("adapters")]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if item not in out]


@pytest.fixture(scope="session")
def recorded() -> list[Call]:
    """The project's own log."""
    return read_calls(ROOT / "tests" / "data" / "recorded_demo.jsonl.gz")
