"""A peer in a process of its own, in whatever environment has it (``make peers`` builds one in .venv-peers):
lines of JSON go back and forth."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import SuffixError

__all__ = ["PeerFailedError", "PeerProcess"]

_REMEDY: Final = "Build it again: rm -r .venv-peers; make peers. Or leave it out with --method or --no-peer."


class PeerFailedError(SuffixError):
    """A peer's process ended or said something that is not an answer."""


class PeerProcess:
    """Runs a file of ours in the peer's Python.

    Args:
        python: the program.
        worker: the file: it reads an object a line and ends with its standard input.

    Raises:
        PeerFailedError: the process could not be started.
    """

    def __init__(self, python: str, worker: Path, *arguments: str) -> None:
        # what it says goes to a file: a pipe nobody reads would fill up and stop it
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        try:
            self.process = subprocess.Popen(
                [python, str(worker), *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        except OSError as error:
            self._log.close()
            raise PeerFailedError(f"cannot run {python}", got=str(error), remedy=_REMEDY) from None

    def tell(self, message: dict[str, Any]) -> None:
        """Send what has no answer. PeerFailedError: it broke off."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise self._failure("it ended") from None

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a question; its answer. PeerFailedError: it broke off, or said what is no answer."""
        self.tell(message)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise self._failure(f"it said {line.strip()[:80]!r}" if line else "it ended")
        return answer

    def close(self) -> None:
        """End it. Idempotent."""
        if self._log.closed:
            return
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # it broke off with unsent words
                pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def _failure(self, what: str) -> PeerFailedError:
        self._log.seek(0)
        said = self._log.read()[-2000:].strip().splitlines()
        return PeerFailedError(
            f"Arctic's process failed: {what}", got=said[-1][:200] if said else None, remedy=_REMEDY
        )
