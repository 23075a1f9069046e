"""Child processes: a signal must reach the child, and no other process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from suffixsvc.runtime.child_process import ChildProcess, ChildProcesses


def child(tmp_path: Path) -> ChildProcess:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    return ChildProcess("sleeper", process, tmp_path / "log")


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_child_that_is_gone_is_signalled_no_more(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[int, int]] = []
    really = os.killpg

    def killpg(group: int, number: int) -> None:
        sent.append((group, number))
        really(group, number)

    monkeypatch.setattr(os, "killpg", killpg)
    sleeper = child(tmp_path)
    getattr(sleeper, how)()
    assert not sleeper.running
    assert sent == [(sleeper.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)]

    # the pid may have been reused
    sleeper.stop()
    sleeper.kill()
    assert len(sent) == 1


def test_a_child_does_not_inherit_options_of_its_parent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SUFFIXSVC_DRAFT_WORKER_CONFIG is for a worker of the user's, not for that of `openai --draft`."""
    monkeypatch.setenv("NOTIFY_SOCKET", "/run/systemd/notify")
    monkeypatch.setenv("SUFFIXSVC_DRAFT_WORKER_CONFIG", "/etc/suffixsvc.toml")
    monkeypatch.setenv("SUFFIXSVC_HOME", "/models")
    found = tmp_path / "found"
    script = f"import os, pathlib; pathlib.Path({str(found)!r}).write_text(chr(10).join(os.environ))"
    with ChildProcesses(tmp_path) as children:
        line = [sys.executable, "-c", f"{script}; import time; time.sleep(600)"]
        children.start_program("child", line, lambda: found.exists() and "PATH" in found.read_text())
    names = found.read_text().split("\n")
    assert "SUFFIXSVC_HOME" in names
    assert "NOTIFY_SOCKET" not in names
    assert "SUFFIXSVC_DRAFT_WORKER_CONFIG" not in names
