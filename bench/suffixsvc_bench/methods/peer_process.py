"""Client of a peer in a separate process, in the environment that has it (``make peers`` builds .venv-peers).

The processes exchange lines of JSON.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final

from suffixsvc.errors import SuffixError

_REMEDY: Final = "Rebuild it: rm -r .venv-peers; make peers. Or exclude it with --method or --no-peer."


class PeerFailedError(SuffixError):
    """A peer's process ended, or its reply is not an answer."""


class PeerProcess:
    """Runs a worker file of this project in the peer's Python.

    Args:
        python: the interpreter.
        worker: the file; it reads one object per line and ends with its standard input.
        arguments: of the worker.

    Raises:
        PeerFailedError: the process did not start.
    """

    def __init__(self, python: str, worker: Path, *arguments: str) -> None:
        # stderr goes to a file: a pipe without a reader would fill up and block the peer
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

    def send(self, message: dict[str, Any]) -> None:
        """Send a message without a reply.

        Raises:
            PeerFailedError: the process ended.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(message) + "\n")
            self.process.stdin.flush()
        except OSError:
            raise self._failure("it ended") from None

    def request(self, message: dict[str, Any]) -> dict[str, Any]:
        """Send a message and return the reply.

        Raises:
            PeerFailedError: the process ended, or the reply is not an object.
        """
        self.send(message)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        with contextlib.suppress(ValueError):
            answer = json.loads(line)
            if isinstance(answer, dict):
                return answer
        raise self._failure(f"it replied {line.strip()[:80]!r}" if line else "it ended")

    def close(self) -> None:
        """End the process. Idempotent."""
        if self._log.closed:
            return
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with contextlib.suppress(OSError):  # it ended with unsent data
                pipe.close()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self._log.close()

    def _failure(self, what: str) -> PeerFailedError:
        self._log.seek(0)
        errors = self._log.read()[-2000:].strip().splitlines()
        return PeerFailedError(
            f"Arctic's process failed: {what}", got=errors[-1][:200] if errors else None, remedy=_REMEDY
        )
