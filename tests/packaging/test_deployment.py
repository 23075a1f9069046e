"""The unit of systemd and the Dockerfile: checked by tools made for that, and run where possible."""

from __future__ import annotations

import ctypes
import os
import re
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from suffixsvc_client import ClientConfig, SuffixClient
from support.command_line import run_verb
from support.serving import PATIENCE_S, socket_dir

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "tools" / "deploy"
UNIT = (DEPLOY / "suffixsvc.service").read_text()
_PR_SET_MDWE = 65


def unit(key: str) -> str:
    [value] = re.findall(rf"^{key}=(.*)$", UNIT, re.MULTILINE)
    return str(value)


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    verify = shutil.which("systemd-analyze")
    if verify is None:
        pytest.skip("systemd-analyze is not installed")
    program = shlex.split(unit("ExecStart"))[0]
    here = tmp_path / "suffixsvc.service"
    here.write_text(UNIT.replace(program, sys.executable))  # a program that exists
    run = subprocess.run([verify, "verify", str(here)], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def _deny_write_execute() -> None:
    """As MemoryDenyWriteExecute of the unit; older kernels refuse it."""
    ctypes.CDLL(None).prctl(_PR_SET_MDWE, 1, 0, 0, 0)


def test_the_unit_starts_the_service_and_is_told_its_state() -> None:
    """Its command with its configuration, on another folder and address."""
    assert unit("Type") == "notify"
    program, *arguments = shlex.split(unit("ExecStart"))
    assert program.endswith("/bin/suffixsvc")
    installed = arguments[arguments.index("--config") + 1]
    arguments[arguments.index("--config") + 1] = str(DEPLOY / Path(installed).name)
    with socket_dir() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(f"{folder}/notify")
        manager.settimeout(PATIENCE_S)
        environment = {
            **os.environ,
            "NOTIFY_SOCKET": f"{folder}/notify",
            "SUFFIXSVC_SERVE_DATA": f"{folder}/data",
            "SUFFIXSVC_SERVE_LISTEN": f"unix:{folder}/s.sock",
        }
        command = [sys.executable, "-m", "suffixsvc_cli", *arguments]
        process = subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, preexec_fn=_deny_write_execute
        )
        try:
            assert manager.recv(100) == b"READY=1"
            config = ClientConfig(step_timeout_s=PATIENCE_S, open_timeout_s=PATIENCE_S)
            with SuffixClient(f"unix:{folder}/s.sock", config) as client:
                for _ in range(2):
                    session = client.namespace("a").open_session([1])
                    draft = session.step([5, 6, 7])
                    session.step([8, 9])
                    session.close()
                assert draft.token_ids.tolist()[:2] == [8, 9]
            process.send_signal(signal.SIGTERM)
            assert manager.recv(100) == b"STOPPING=1"
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()
            process.communicate()


def test_an_error_of_the_configuration_ends_with_the_code_that_the_unit_does_not_restart() -> None:
    assert unit("RestartPreventExitStatus") == str(run_verb("serve", "--config", "/none.toml").returncode)


# -- the container


#: of the Dockerfile: names and arguments, continuation lines joined
instructions = runpy.run_path(str(DEPLOY / "try_dockerfile.py"))["instructions"]


def test_the_dockerfile_is_clean() -> None:
    hadolint = shutil.which("hadolint", path=str(Path(sys.executable).parent)) or shutil.which("hadolint")
    if hadolint is None:
        pytest.skip("hadolint is not installed")
    run = subprocess.run([hadolint, str(DEPLOY / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (run.returncode, run.stdout + run.stderr) == (0, "")


def test_the_image_has_what_the_wheel_is_built_of() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    needed = {each.split("/")[0] for each in project["tool"]["scikit-build"]["wheel"]["packages"]}
    needed |= {"pyproject.toml", project["project"]["readme"], *project["project"]["license-files"]}
    copied = set()
    for name, rest in instructions():
        if name == "COPY" and "--from" not in rest:
            copied |= set(rest.split()[:-1])
    assert copied == needed
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    assert sent == needed
    for each in needed:
        assert (ROOT / each).exists()


def test_the_container_does_not_run_as_root_and_its_settings_are_options(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = dict(instructions())
    assert found["USER"] == "10001:10001"
    assert found["ENTRYPOINT"] == '["tini", "--", "suffixsvc"]'
    assert found["CMD"] == '["serve"]'
    assert found["HEALTHCHECK"].endswith('CMD ["suffixsvc", "health"]')
    settings = dict(each.split("=", 1) for each in found["ENV"].split())
    for name, value in settings.items():
        if name.startswith("SUFFIXSVC_"):
            monkeypatch.setenv(name, value)
    run = run_verb("config", "show", "serve")
    assert (run.returncode, run.stderr) == (0, ""), "each variable must set an option"
    lines = {line.split()[0]: line.split()[1:] for line in run.stdout.splitlines()}
    assert lines["data"] == ["/data", "SUFFIXSVC_SERVE_DATA"]
    assert lines["listen"] == ["127.0.0.1:7171", "SUFFIXSVC_SERVE_LISTEN"]
    assert f'["{lines["data"][0]}"]' == found["VOLUME"]
