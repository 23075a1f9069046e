"""Arctic Inference's suffix tree beside ours: the same texts, the same run, a process of its own."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import numpy as np

from suffixsvc.errors import SuffixError
from suffixsvc.types import TokenArray

__all__ = ["ArcticTree", "PeerBrokeOffError"]

_WORKER: Final = Path(__file__).with_name("peer_worker.py")


class PeerBrokeOffError(SuffixError):
    """The peer's process ended, or answered what is no answer."""


class ArcticTree:
    """One suffix tree. Times are taken in its process; texts travel in a file, unmeasured.

    Raises:
        PeerBrokeOffError: the process could not be started or broke off.
    """

    def __init__(self, python: str, depth: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - see close
        try:
            self._process = subprocess.Popen(
                [python, str(_WORKER), str(depth)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._log,
                text=True,
            )
        except OSError as error:
            self._log.close()
            self._folder.cleanup()
            raise PeerBrokeOffError(f"cannot run {python}", got=str(error)) from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def extend(self, outputs: Sequence[TokenArray]) -> dict[str, Any]:
        """Add outputs under new ids: {"seconds", "bytes" (resident, of the whole process, grown by this)}."""
        return self._ask("extend", outputs)

    def remove(self, num_outputs: int) -> dict[str, Any]:
        """Remove the first outputs that are left: {"seconds"}."""
        return self._ask("remove", [], count=num_outputs)

    def steps(self, outputs: Sequence[TokenArray], max_draft_tokens: int) -> dict[str, Any]:
        """Write outputs token by token, drafting each time: {"append_us", "draft_us"}, a list each."""
        return self._ask("steps", outputs, max_draft_tokens=max_draft_tokens)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()
        self._folder.cleanup()

    def _ask(self, what: str, outputs: Sequence[TokenArray], **more: int) -> dict[str, Any]:
        path = Path(self._folder.name) / "outputs.npz"
        tokens = np.concatenate(outputs) if outputs else np.zeros(0, np.int32)
        np.savez(path, tokens=tokens, lengths=np.array([len(o) for o in outputs], np.int64))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps({"what": what, "path": str(path), **more}) + "\n")
            self._process.stdin.flush()
            answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        except (OSError, ValueError):
            self._log.seek(0)
            raise PeerBrokeOffError(
                "the peer broke off", got=self._log.read()[-300:] or "no answer"
            ) from None
        return answer
