"""Provenance of a result: machine, versions and commit, printed with every benchmark."""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import suffixsvc
from suffixsvc_driver.cost.curve_file import cpu_name


@dataclass(frozen=True, slots=True)
class Provenance:
    """What is needed to repeat a measurement."""

    suffixsvc: str
    commit: str  #: short hash, "+" appended with uncommitted changes; empty outside a checkout
    python: str
    machine: str
    cpu: str
    cores: int
    #: load average of the minute before the run; 0 where the system has none
    load: float = 0.0
    #: the words of `suffixsvc bench ...`, files by their names only: folders are local to the machine; empty
    #: for a run from Python
    command: str = ""

    def as_dict(self) -> dict[str, object]:
        """JSON-able data."""
        return asdict(self)

    def line(self) -> str:
        """One line of text."""
        commit = f" ({self.commit})" if self.commit else ""
        return (
            f"suffixsvc {self.suffixsvc}{commit}, Python {self.python}, {self.cores} x {self.cpu}, "
            f"load before {self.load:.1f}"
        )


def provenance() -> Provenance:
    """Provenance of a run on this machine that starts now."""
    return Provenance(
        suffixsvc=suffixsvc.__version__,
        commit=_commit(),
        python=platform.python_version(),
        machine=f"{platform.system()} {platform.machine()}",
        cpu=cpu_name() or "unknown processor",
        cores=os.cpu_count() or 1,
        load=round(_load(), 2),
        command=_command(),
    )


def _command() -> str:
    words = sys.argv[1:]
    if words[:1] != ["bench"]:
        return ""
    return shlex.join(["suffixsvc", *(re.sub(r"[^=]*/(?=.)", "", word) for word in words)])


def _load() -> float:
    try:
        return os.getloadavg()[0]
    except OSError:
        return 0.0


def _commit() -> str:
    here = Path(__file__).resolve().parent

    def git(*arguments: str) -> str:
        try:
            run = subprocess.run(
                ["git", "-C", str(here), *arguments],
                capture_output=True,
                text=True,
                check=False,
                timeout=10,
            )
        except (OSError, subprocess.TimeoutExpired):
            return ""
        return run.stdout.strip() if run.returncode == 0 else ""

    commit = git("rev-parse", "--short", "HEAD")
    return commit + ("+" if commit and git("status", "--porcelain", "--untracked-files=no") else "")
