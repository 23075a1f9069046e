"""Restart times of a data folder: filled and compacted by one process, opened and drafted from by others.

Each part is a separate process, so that its resident memory is its own. The openings of all sizes alternate,
so that they see the same state of the machine.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc_bench.measured_process import run_part
from suffixsvc_bench.report.output import Report

_part: Final = partial(run_part, "suffixsvc_bench.index.parts.restart_part")
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


def measure_restarts(
    sizes: Sequence[int], kind: str, output_tokens: int, seed: int, folder: Path | None, notify: Report
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

            def on_progress(share: float, tokens: int = tokens, before: int = sum(sizes[:i])) -> None:
                # by tokens: the largest size takes most of the time
                notify(f"a folder of {tokens / 1e6:g}M tokens", 0.9 * (before + share * tokens) / sum(sizes))

            on_progress(0.0)
            options = {"kind": kind, "output_tokens": output_tokens, "tokens": tokens, "seed": seed}
            filled = _part("fill", on_progress, folder=scratch / str(tokens), **options)
            found.append({"tokens": tokens} | filled)
        opened: list[list[dict[str, Any]]] = [[] for _ in sizes]
        for turn in range(ROUNDS):
            for i, tokens in enumerate(sizes):
                notify(f"opening {tokens / 1e6:g}M tokens", 0.9 + 0.1 * turn / ROUNDS)
                opened[i].append(_part("open_and_draft", folder=scratch / str(tokens)))
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
