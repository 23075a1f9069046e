"""Fixtures of the tests of ``suffixsvc generate``: tiny models with known outputs, and the verb itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.generating import CYCLE, TURN_END, Generating, generating
from support.tiny_gguf import chain_of, write_tiny_chain


@pytest.fixture(scope="module")
def cycle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that repeats one line."""
    return write_tiny_chain(tmp_path_factory.mktemp("cycle") / "cycle.gguf", chain_of(CYCLE), context=1 << 15)


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that answers "ok" to everything."""
    follows = {ord("\n"): ord("o"), ord("o"): ord("k"), ord("k"): TURN_END}
    return write_tiny_chain(tmp_path_factory.mktemp("brief") / "brief.gguf", follows)


@pytest.fixture
def generate(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Generating]:
    """The verb in this process."""
    yield from generating(capsys, monkeypatch, tmp_path / "home")
