"""Restart times of a data folder: filled and compacted by one process, opened and drafted from by others.

Each part is a separate process, so that its resident memory is its own. The openings of all sizes alternate,
so that they see the same state of the machine.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc.errors import StoreError

__all__ = ["measure_restarts"]

_WORKER: Final = "suffixsvc_bench.index.restart_worker"
#: openings of each size; results are medians
ROUNDS: Final = 3
#: measurements of an opening, each the median of the rounds
_FIGURES: Final = (
    "open_s",
    "first_draft_s",
    "resident_bytes",
    "resident_anonymous_bytes",
    "first_draft_resident_bytes",
    "append_draft_us_new",
    "append_draft_us_known",
)

#: called with (current task, completed fraction, 0..1)
Progress = Callable[[str, float], None]


def measure_restarts(
    sizes: Sequence[int], kind: str, output_tokens: int, seed: int, folder: Path | None, notify: Progress
) -> dict[str, Any]:
    """Measure filling, compacting, opening and the steps after it, for each size.

    Args:
        sizes: tokens.
        kind: of text, see :mod:`suffixsvc_bench.index.texts`.
        output_tokens: tokens of an output.
        seed: of the texts.
        folder: parent of the scratch folder, which is removed afterwards; 20 to 30 bytes of disk per token,
            temporarily twice that. None: the default for temporary files.
        notify: called with the current task and the completed fraction.

    Raises:
        StoreError: a part failed.
    """
    scratch = Path(tempfile.mkdtemp(prefix="sfx-bench-", dir=folder))
    try:
        found: list[dict[str, Any]] = []
        for i, tokens in enumerate(sizes):
            # progress by tokens: the largest size takes most of the time
            base, share = sum(sizes[:i]) / sum(sizes), tokens / sum(sizes)

            def filling(done: float, base: float = base, share: float = share, tokens: int = tokens) -> None:
                notify(f"a folder of {tokens / 1e6:g}M tokens", 0.9 * (base + share * done))

            where = scratch / str(tokens)
            options = (kind, str(output_tokens), str(tokens), str(seed))
            found.append({"tokens": tokens} | _run("fill", where, options, filling))
        opened: list[list[dict[str, Any]]] = [[] for _ in sizes]
        for turn in range(ROUNDS):
            for i, tokens in enumerate(sizes):
                notify(f"opening {tokens / 1e6:g}M tokens", 0.9 + 0.1 * turn / ROUNDS)
                where = scratch / str(tokens)
                opened[i].append(_run("open", where, (), lambda _: None))
        for at, rounds in zip(found, opened, strict=True):
            at |= {name: float(np.median([r[name] for r in rounds])) for name in _FIGURES}
            at["rounds"] = rounds
            at["append_draft_of_smallest"] = {
                which: at[f"append_draft_us_{which}"] / found[0][f"append_draft_us_{which}"]
                for which in ("new", "known")
            }
        return {"kind": kind, "output_tokens": output_tokens, "sizes": found}
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _run(what: str, folder: Path, options: Sequence[str], notify: Callable[[float], None]) -> dict[str, Any]:
    command = [sys.executable, "-m", _WORKER, what, str(folder), *options]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process,
    ):
        assert process.stdout is not None
        answer: dict[str, Any] | None = None
        for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                continue
            if "done" in message:
                notify(message["done"])
            else:
                answer = message
        if process.wait() != 0 or answer is None:
            errors.seek(0)
            raise StoreError(
                f"process to {what} {folder} failed",
                got=errors.read()[-300:] or f"exit code {process.returncode}",
            )
    return answer
