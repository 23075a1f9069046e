"""Arctic Inference's suffix tree in a separate process, for the same texts in the same run."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc.runtime.closing import ClosedOnExit
from suffixsvc.types import TokenArray
from suffixsvc_bench.methods.peer_process import PeerProcess

_WORKER: Final = Path(__file__).with_name("peer_worker.py")


class ArcticTree(ClosedOnExit):
    """One suffix tree. Times are taken in its process; texts travel in a file, outside the measurement.

    Raises:
        PeerFailedError: the process did not start, or failed.
    """

    def __init__(self, python: str, depth: int) -> None:
        self._peer = PeerProcess(python, _WORKER, str(depth))
        self._folder = tempfile.TemporaryDirectory()

    def close(self) -> None:
        """End the process."""
        self._peer.close()
        self._folder.cleanup()

    def extend(self, outputs: Sequence[TokenArray]) -> dict[str, Any]:
        """Add outputs under new ids: {"seconds", "bytes"}, where bytes is the growth of resident memory."""
        return self._request("extend", outputs)

    def remove(self, num_outputs: int) -> dict[str, Any]:
        """Remove the oldest ``num_outputs`` outputs: {"seconds"}."""
        return self._request("remove", [], count=num_outputs)

    def steps(self, outputs: Sequence[TokenArray], max_draft_tokens: int) -> dict[str, Any]:
        """Write outputs token by token, drafting each time: {"append", "draft"}, lists of seconds."""
        return self._request("steps", outputs, max_draft_tokens=max_draft_tokens)

    def _request(self, what: str, outputs: Sequence[TokenArray], **arguments: int) -> dict[str, Any]:
        path = Path(self._folder.name) / "outputs.npz"
        tokens = np.concatenate(outputs) if outputs else np.zeros(0, np.int32)
        np.savez(path, tokens=tokens, lengths=np.array([len(o) for o in outputs], np.int64))
        return self._peer.request({"what": what, "path": str(path), "arguments": arguments})
