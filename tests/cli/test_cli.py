"""The command line as a user meets it: processes, exit codes, one-line errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import suffixsvc_cli as cli
from suffixsvc.config import Limits
from suffixsvc.errors import MissingExtraError, ModelNotFoundError
from suffixsvc_cli.models.models import download
from support.command_line import run_verb


def run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "suffixsvc_cli", *args],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1", **env},
    )


def test_help_names_every_verb_and_loads_none_of_them() -> None:
    probe = (
        "import sys\n"
        "from suffixsvc_cli import main\n"
        "code = main(['--help'])\n"
        "heavy = {'grpc', 'lmdb', 'llama_cpp', 'numpy', 'suffixsvc_driver', 'suffixsvc_client'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)), code)\n"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert result.stdout.rstrip().endswith("LOADED [] 0")
    for verb in cli.VERBS:
        assert verb in result.stdout


def test_a_verb_is_loaded_without_rich_unless_it_uses_it() -> None:
    """structlog loads it for tracebacks; it took a tenth of a server's start."""
    probe = (
        "import sys\n"
        "from suffixsvc_cli import main\n"
        "code = main(['serve', '--data', '/proc/none', '--listen', 'unix:/proc/none/socket'])\n"
        "import structlog\n"
        "print('LOADED', 'rich' in sys.modules, 'structlog.dev' in sys.modules, code)\n"
        "import rich.console\n"
    )
    result = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert result.stdout.splitlines() == ["LOADED False True 2"]


def test_no_arguments_show_the_help() -> None:
    assert "models" in run().stdout + run().stderr


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_verb_has_help(verb: str) -> None:
    """And none offers to install completion: ``namespaces --help`` alone showed --install-completion."""
    result = run_verb(verb, "--help")
    assert result.returncode == 0, result.stderr
    assert f"Usage: suffixsvc {verb}" in result.stdout
    assert "completion" not in result.stdout


def test_an_error_is_one_line_with_expected_got_and_remedy(tmp_path: Path) -> None:
    result = run("models", "path", "smollm2-135m", SUFFIXSVC_HOME=str(tmp_path))
    assert result.returncode == 2
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith("suffixsvc models: model smollm2-135m is not downloaded; expected ")
    assert line.endswith("; got no such file. Get it with: suffixsvc models get smollm2-135m")


@pytest.mark.parametrize(
    "args", [["--debug", "models", "path", "x"], ["models", "path", "x", "--debug"]], ids=["before", "after"]
)
def test_debug_shows_the_traceback(args: list[str]) -> None:
    result = run(*args)
    assert "Traceback" in result.stderr
    assert "ModelNotFoundError" in result.stderr


def test_debug_can_come_from_the_environment() -> None:
    assert "Traceback" in run("models", "path", "x", SUFFIXSVC_DEBUG="1").stderr
    assert "Traceback" not in run("models", "path", "x", SUFFIXSVC_DEBUG="0").stderr


@pytest.mark.parametrize("path", ["missing/ready.json", "."], ids=["no folder", "a folder"])
@pytest.mark.parametrize("verb", ["serve", "draft-worker"])
def test_a_ready_file_that_cannot_be_is_refused_before_anything_is_done(
    verb: str, path: str, tmp_path: Path
) -> None:
    what = ("--data", str(tmp_path / "data")) if verb == "serve" else ("--model", _gguf(tmp_path))
    listen = ("--listen", "127.0.0.1:0", "--ready-file", str(tmp_path / path))
    result = run(verb, *what, *listen)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert line.startswith(f"suffixsvc {verb}: the ready file cannot be written; expected a file in a folder")
    assert str(tmp_path / path) in line
    assert not (tmp_path / "data").exists()


def _gguf(folder: Path) -> str:
    """Enough of a model to be looked for and not enough to be loaded."""
    path = folder / "model.gguf"
    path.write_bytes(b"GGUF")
    return str(path)


@pytest.mark.parametrize("below", ["", "models"], ids=["a file", "below a file"])
def test_a_folder_of_models_that_is_a_file(below: str, tmp_path: Path) -> None:
    folder = tmp_path / "file" / below
    (tmp_path / "file").write_text("no folder")
    result = run_verb("models", "get", "smollm2-135m", "--dir", folder)
    assert result.returncode == 2
    line = result.stderr.splitlines()[-1]
    assert line.startswith("suffixsvc models: the folder of models must be writable; got ")
    assert str(folder) in line
    assert "Choose another one with --dir" in line
    assert "Traceback" not in result.stderr


def test_serve_help_says_what_its_limits_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    limits = Limits()
    shown = "".join(run_verb("serve", "--help").stdout.split())
    for default in (
        str(limits.max_sessions),
        str(limits.max_session_tokens),
        f"{limits.max_message_bytes / 2**20:g}MiB",
        f"{limits.max_store_bytes / 2**30:g}GiB",
        f"{limits.session_idle_seconds:g}s",
    ):
        assert f"[default:({default})]" in shown


def test_an_unknown_verb_is_a_usage_error() -> None:
    result = run("sreve")
    assert result.returncode == 2
    assert "sreve" in result.stderr


def test_a_missing_extra_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "needs_llama.py").write_text("import llama_cpp\n\n\ndef serve() -> None: ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(sys.modules, "llama_cpp", None)  # what an import finds where it is not installed
    monkeypatch.setitem(cli.VERBS, "serve", cli.Verb("needs_llama", "for this test"))

    assert cli.main(["serve"]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("suffixsvc serve: this needs the Python module 'llama_cpp'")
    assert "pip install 'suffixsvc[llama]'" in captured.err


def test_a_broken_import_of_our_own_keeps_its_traceback(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "broken_verb.py").write_text("import suffixsvc_no_such_module\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cli.VERBS, "serve", cli.Verb("broken_verb", "for this test"))
    with pytest.raises(ModuleNotFoundError):
        cli.main(["serve"])


def test_ctrl_c_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "waits.py").write_text("def serve() -> None:\n    raise KeyboardInterrupt\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(cli.VERBS, "serve", cli.Verb("waits", "for this test"))
    assert cli.main(["serve"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    with pytest.raises(KeyboardInterrupt):
        cli.main(["--debug", "serve"])


def test_describe_keeps_an_error_on_one_line() -> None:
    assert cli.describe(ModelNotFoundError("two\nlines", got="a\nb")) == "two lines; got a b"
    assert "llama" in cli.describe(MissingExtraError("llama", "llama_cpp"))


def test_version_says_what_is_installed() -> None:
    result = run("version")
    assert result.returncode == 0
    assert result.stdout.startswith("suffixsvc ")
    assert "python " in result.stdout


#: a verb that prints without a flush
_PRINTS = (
    "import sys\n"
    "import suffixsvc_cli as cli\n"
    "cli.get_command = lambda app: lambda *args, **more: print('text')\n"
    "sys.exit(cli.main(['version']))\n"
)
_COMMANDS = {
    "version": ["-m", "suffixsvc_cli", "version"],
    "--version": ["-m", "suffixsvc_cli", "--version"],
    "--help": ["-m", "suffixsvc_cli", "--help"],
    "models-list": ["-m", "suffixsvc_cli", "models", "list"],
    "no-flush": ["-c", _PRINTS],
}


def run_into(stdout: int, command: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *_COMMANDS[command]],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env={**os.environ, "SUFFIXSVC_HOME": str(home)},
    )


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_full_standard_output_is_one_line(command: str, tmp_path: Path) -> None:
    """Text that standard output did not take (a redirect to a full disk) ended in a traceback."""
    with open("/dev/full", "w") as full:
        result = run_into(full.fileno(), command, tmp_path)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "standard output must be writable; got No space left on device" in line


@pytest.mark.parametrize("command", _COMMANDS)
def test_a_closed_pipe_is_not_an_error(command: str, tmp_path: Path) -> None:
    """`suffixsvc VERB | head -0`."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        result = run_into(writing, command, tmp_path)
    finally:
        os.close(writing)
    assert (result.returncode, result.stderr) == (1, "")


def test_version_is_an_option_as_well() -> None:
    """`suffixsvc --version` was no such option; the verb prints the same."""
    result = run("--version")
    assert (result.returncode, result.stdout) == (0, run("version").stdout), result.stderr


@pytest.mark.parametrize("terminal", ["0", "1"])
def test_a_model_that_is_not_known_has_no_progress(
    terminal: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`models get nosuch` drew a progress bar before its error."""
    monkeypatch.setenv("SUFFIXSVC_HOME", str(tmp_path))
    monkeypatch.setenv("TTY_COMPATIBLE", terminal)
    monkeypatch.setenv("TTY_INTERACTIVE", terminal)
    with pytest.raises(ModelNotFoundError, match="nosuch"):
        download("nosuch")
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""


def test_models_list_shows_names_sizes_and_sources(tmp_path: Path) -> None:
    result = run_verb("models", "list", "--dir", tmp_path)
    assert result.returncode == 0
    assert "qwen2.5-coder-1.5b  1,117 MB, not downloaded" in result.stdout
    assert "--source huggingface" in result.stdout
