"""Options of servers from files, the environment and the command line; `suffixsvc config show`."""

from __future__ import annotations

import importlib
import inspect
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import suffixsvc_cli as cli
from suffixsvc_cli.base.configuration import TABLES
from suffixsvc_client import ClientConfig, SuffixClient
from support.command_line import run_verb
from support.serving import PATIENCE_S, eventually, socket_dir

PATIENT = ClientConfig(open_timeout_s=PATIENCE_S)

#: part of an annotation -> kind of option
KINDS: Mapping[str, str] = {
    "list[str]": "list",
    "Path": "path",
    "bool": "bool",
    "float": "float",
    "int": "int",
    "LogStyle": "text",
    "SocketMode": "text",
    "str": "text",
}
#: value of an option in a file, in the environment, and what the verb gets
SAMPLES: Mapping[str, tuple[Any, str, Any]] = {
    "int": (300, "301", 301),
    "float": (1.5, "2.5", 2.5),
    "bool": (True, "no", False),
    "path": ("/a b", "/c d", "/c d"),
    "text": ("q8_0", "f32", "f32"),
    "list": (["unix:/a", "unix:/b"], "unix:/c unix:/d", ["unix:/c", "unix:/d"]),
}
#: options whose text is limited to some values
SPECIAL: Mapping[str, tuple[Any, str, Any]] = {
    "log-format": ("json", "console", "console"),
    "socket-mode": ("0660", "0666", "0666"),
    "gpu-layers": (7, "all", "all"),
    "parallel": (3, "5", 5),
    "main-gpu": (1, "0", 0),
}


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for verb in TABLES:
        monkeypatch.delenv(variable(verb, "config"), raising=False)


def variable(verb: str, key: str) -> str:
    return f"SUFFIXSVC_{verb}_{key}".upper().replace("-", "_")


def show(verb: str, *arguments: str) -> dict[str, Any]:
    run = run_verb("config", "show", verb, *arguments, "--json")
    assert run.returncode == 0, run.stderr
    shown: dict[str, Any] = json.loads(run.stdout)
    return shown


def refused(*arguments: str) -> str:
    """The error: one line, exit code 2."""
    run = run_verb(*arguments)
    assert run.returncode == 2, run.stdout
    [line] = run.stderr.splitlines()
    return line


def write(folder: Path, text: str) -> str:
    (folder / "suffixsvc.toml").write_text(text)
    return str(folder / "suffixsvc.toml")


def parameters(verb: str) -> dict[str, inspect.Parameter]:
    """Parameters of the verb's function that are shown in its help, by key."""
    module = importlib.import_module(cli.VERBS[verb].module, cli.__name__)
    found = {}
    for name, parameter in inspect.signature(getattr(module, verb.replace("-", "_"))).parameters.items():
        info = parameter.annotation.__metadata__[0]
        if not info.hidden:
            names = [info.default, *(info.param_decls or ())]
            long = [each for each in names if isinstance(each, str) and each.startswith("--")]
            found[long[0].split("/")[0][2:] if long else name.replace("_", "-")] = parameter
    return found


def samples(verb: str) -> dict[str, tuple[Any, str, Any]]:
    """Values of all options; their kind follows from the annotation."""
    found = {}
    for key, parameter in parameters(verb).items():
        if key == "config":
            continue
        annotation = str(parameter.annotation.__origin__)
        kind = next(kind for kind in KINDS if kind in annotation)
        found[key] = SPECIAL.get(key, SAMPLES[KINDS[kind]])
    return found


def toml(value: Any) -> str:
    return json.dumps(value)  # equal for these types


@pytest.mark.parametrize("verb", TABLES)
def test_every_option_can_be_in_the_file_and_in_the_environment(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And config show names the place of each."""
    chosen = samples(verb)
    lines = [f"{key} = {toml(in_file)}" for key, (in_file, _, _) in chosen.items()]
    file = write(tmp_path, "\n".join([f"[{verb}]", *lines]))
    shown = show(verb, "--config", file)
    for key, (in_file, _, _) in chosen.items():
        expected = str(in_file) if key == "gpu-layers" else in_file
        assert shown[key]["value"] == expected, key
        assert (shown[key]["source"], shown[key]["where"]) == ("file", f"{file} [{verb}] {key}")
    assert shown["config"]["source"] == "command line"

    monkeypatch.setenv(variable(verb, "config"), file)
    for key, (_, text, _) in chosen.items():
        monkeypatch.setenv(variable(verb, key), text)
    shown = show(verb)
    for key, (_, _, expected) in chosen.items():
        assert shown[key]["value"] == expected, key
        assert (shown[key]["source"], shown[key]["where"]) == ("environment", variable(verb, key))
    assert shown["config"]["where"] == variable(verb, "config")


def test_the_command_line_overrides_the_environment_and_that_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sixteen combinations, for an option with one value and for a list, which is replaced as a whole."""
    file = write(tmp_path, '[serve]\nmax-sessions = 2\nlisten = ["f1", "f2"]\n')
    for in_file, in_environment, given in itertools.product((False, True), repeat=3):
        with monkeypatch.context() as patch:
            arguments, expected, source = [], (None, []), "default"
            if in_file:
                arguments += ["--config", file]
                expected, source = (2, ["f1", "f2"]), "file"
            if in_environment:
                patch.setenv("SUFFIXSVC_SERVE_MAX_SESSIONS", "3")
                patch.setenv("SUFFIXSVC_SERVE_LISTEN", "e1 e2")
                expected, source = (3, ["e1", "e2"]), "environment"
            if given:
                arguments += ["--max-sessions", "4", "--listen", "c1"]
                expected, source = (4, ["c1"]), "command line"
            shown = show("serve", *arguments)
            found = (shown["max-sessions"]["value"], shown["listen"]["value"] or [])
            assert found == expected
            assert shown["max-sessions"]["source"] == shown["listen"]["source"] == source


def test_defaults_are_shown_in_words() -> None:
    shown = show("serve")
    assert shown["max-store-gib"] == {"value": None, "default": "64 GiB", "source": "default", "where": None}
    assert shown["data"]["default"] == "must be set"
    run = run_verb("config", "show", "serve", "--max-streams", "7")
    assert [line.split() for line in run.stdout.splitlines() if line.startswith("max-st")] == [
        ["max-store-gib", "64", "GiB", "default"],
        ["max-streams", "7", "--max-streams"],
    ]


def test_an_empty_variable_is_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUFFIXSVC_SERVE_MAX_STREAMS", "")
    assert show("serve")["max-streams"]["source"] == "default"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[serve]\nmax-session = 2\n", ["serve.max-session;", "data, listen, ", "max-sessions"]),
        ("[serve]\nmax_sessions = 2\n", ["serve.max_sessions;", "got max_sessions"]),
        ('[serve]\nmax-sessions = "2"\n', ["serve.max-sessions;", "expected a valid integer", "got '2'"]),
        ("[serve]\nmax-sessions = 2.5\n", ["serve.max-sessions;", "got 2.5"]),
        ('[serve]\nlisten = "unix:/a"\n', ["serve.listen;", "got 'unix:/a'"]),
        ("[serve]\nlisten = [1]\n", ["serve.listen", "got 1"]),
        ("[serve]\ndata = 1\n", ["serve.data;", "got 1"]),
        ("[serve]\nverbose = 1\n", ["serve.verbose;", "got 1"]),
        ('[serve]\nlog-format = "xml"\n', ["serve.log-format;", "got 'xml'"]),
        ('[serve]\nconfig = "other.toml"\n', ["serve.config;"]),
        ("serve = 1\n", ["serve;", "expected a table, as in [serve]"]),
        ("[server]\n", ["at server;", "expected serve, draft-worker, openai"]),
        (
            "[serve]\nmax-streams = 0\n",
            ["[serve] max-streams must be valid: ", "greater than or equal to 1; got 0"],
        ),
        ("[serve\n", ["must be valid TOML"]),
    ],
)
@pytest.mark.parametrize("verb", [["serve"], ["config", "show", "serve"]], ids=["serve", "show"])
def test_an_invalid_file_is_an_error_that_names_file_and_key(
    tmp_path: Path, verb: list[str], text: str, words: list[str]
) -> None:
    file = write(tmp_path, text)
    line = refused(*verb, "--data", "d", "--listen", "unix:s", "--config", file)
    for word in (file, *words):
        assert word in line, line


def test_tables_of_other_servers_are_not_read(tmp_path: Path) -> None:
    file = write(tmp_path, "[openai]\nunknown = 1\n[serve]\nmax-streams = 9\n")
    assert show("serve", "--config", file)["max-streams"]["value"] == 9
    assert "openai.unknown" in refused("config", "show", "openai", "--config", file)


def test_a_missing_file(tmp_path: Path) -> None:
    assert "must be readable" in refused("serve", "--config", str(tmp_path / "none.toml"))


@pytest.mark.parametrize(
    ("key", "text", "words"),
    [
        ("max-sessions", "many", "a valid integer"),
        ("verbose", "perhaps", "a valid boolean"),
        ("log-format", "xml", "one of 'auto', 'console', 'json'"),
        ("max-streams", "0", "greater than or equal to 1"),
    ],
)
def test_an_invalid_variable_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, key: str, text: str, words: str
) -> None:
    monkeypatch.setenv(variable("serve", key), text)
    for verb in (["serve", "--data", "d", "--listen", "unix:s"], ["config", "show", "serve"]):
        line = refused(*verb)
        assert f"{variable('serve', key)} must be valid: " in line
        assert words in line
        assert line.endswith(f"; got '{text}'")


def test_an_error_of_a_verb_says_where_the_option_was_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit that only the verb checks, and a text that is parsed after the command line."""
    file = write(tmp_path, '[serve]\ndata = "d"\nlisten = ["unix:s"]\nmax-sessions = -1\n')
    assert refused("serve", "--config", file) == (
        "suffixsvc serve: --max-sessions must be a positive number; got -1. "
        f"It is set by {file} [serve] max-sessions."
    )
    monkeypatch.setenv("SUFFIXSVC_DRAFT_WORKER_GPU_LAYERS", "some")
    line = refused("draft-worker", "--model", "m", "--listen", "unix:s")
    assert line.endswith("got 'some'. It is set by SUFFIXSVC_DRAFT_WORKER_GPU_LAYERS.")


def test_a_variable_of_no_option_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    """And no error: Kubernetes sets such variables for a service of this name."""
    monkeypatch.setenv("SUFFIXSVC_SERVE_MAX_SESSION", "2")
    run = run_verb("config", "show", "serve")
    assert run.returncode == 0
    assert "variable=SUFFIXSVC_SERVE_MAX_SESSION" in run.stderr
    assert "closest=SUFFIXSVC_SERVE_MAX_SESSIONS" in run.stderr


def test_an_unknown_server() -> None:
    assert "expected serve, draft-worker, openai; got stats" in refused("config", "show", "stats")


def test_no_option_takes_a_secret() -> None:
    """Secrets are in files, so that neither the process list nor `config show` has them."""
    words = {"key", "keys", "token", "secret", "password", "credentials"}
    for verb in TABLES:
        for key, parameter in parameters(verb).items():
            if words & set(key.split("-")):
                assert "Path" in str(parameter.annotation.__origin__), f"{verb} --{key}"


def test_a_service_is_started_from_file_and_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket_dir() as folder:
        ready = folder / "ready.json"
        lines = ["[serve]", f'data = "{folder}/other"', f'ready-file = "{ready}"', "max-session-tokens = 300"]
        file = write(folder, "\n".join(lines))
        environment = {
            **os.environ,
            "SUFFIXSVC_SERVE_CONFIG": file,
            "SUFFIXSVC_SERVE_DATA": f"{folder}/data",
            "SUFFIXSVC_SERVE_LISTEN": f"unix:{folder}/a.sock unix:{folder}/b.sock",
        }
        command = [sys.executable, "-m", "suffixsvc_cli", "serve"]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            eventually(lambda: ready.exists() or process.poll() is not None, "the service is ready")
            for name in ("a", "b"):
                with SuffixClient(f"unix:{folder}/{name}.sock", PATIENT) as client:
                    assert client.server_info().max_session_tokens == 300
            assert (folder / "data" / "data.mdb").exists()
            assert not (folder / "other").exists()
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.communicate()
