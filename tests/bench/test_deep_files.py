"""Files that a user names and that nest too deeply for JSON's reader: a typed error, as where they are torn.

A RecursionError ended the command with a traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suffixsvc.errors import InvalidCostError, InvalidInputError
from suffixsvc_bench.decode.pricing.supplied_costs import read_supplied_costs
from suffixsvc_bench.decode.workload.prepared import PreparedAnswers
from suffixsvc_bench.page.publish import publish
from suffixsvc_bench.replay.document import read_comparison

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    path = tmp_path / "deep.json"
    path.write_text(DEEP)
    return path


def test_prices(deep: Path) -> None:
    with pytest.raises(InvalidCostError, match="must be a readable file of prices"):
        read_supplied_costs(deep)


def test_prepared_answers(deep: Path) -> None:
    with pytest.raises(InvalidInputError, match="must be readable JSON"):
        PreparedAnswers(deep, "model", lambda job: [])


def test_a_comparison(deep: Path) -> None:
    with pytest.raises(InvalidInputError, match="must be readable"):
        read_comparison(deep)


def test_what_a_page_is_made_from(tmp_path: Path) -> None:
    for name in ("index", "rpc"):
        (tmp_path / f"{name}.json").write_text(DEEP)
    with pytest.raises(InvalidInputError, match="must be readable"):
        publish(tmp_path, tmp_path / "page.md")
