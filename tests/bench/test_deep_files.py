"""Files that a user names and that nest too deeply for JSON's reader: a typed error, as where they are torn.

A RecursionError ended the command with a traceback.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from suffixsvc_bench.decode.prepared import Prepared
from suffixsvc_bench.decode.priced import read_prices
from suffixsvc_bench.page.publish import publish
from suffixsvc_bench.replay.document import read_comparison

from suffixsvc.errors import InvalidCostError, InvalidInputError

DEEP = "[" * 100_000 + "]" * 100_000


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    path = tmp_path / "deep.json"
    path.write_text(DEEP)
    return path


def test_prices(deep: Path) -> None:
    with pytest.raises(InvalidCostError, match="no prices at"):
        read_prices(deep)


def test_prepared_answers(deep: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read"):
        Prepared(deep, "model", lambda job: [])


def test_a_comparison(deep: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot read the comparison"):
        read_comparison(deep)


def test_what_a_page_is_made_from(tmp_path: Path) -> None:
    for name in ("index", "rpc"):
        (tmp_path / f"{name}.json").write_text(DEEP)
    with pytest.raises(InvalidInputError, match="cannot read"):
        publish(tmp_path, tmp_path / "page.md")
