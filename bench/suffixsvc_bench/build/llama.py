"""Comparison of ``suffixsvc build`` with llama.cpp's llama-lookup-create.

Both programs count 2-grams of the same text with the same tokenizer, as whole processes in alternating
rounds.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np

from suffixsvc_bench.measured_process import Run, run_program
from suffixsvc_caches.lookup.files import read_lookup

#: a text of this many characters shows the start-up time
_SHORT: Final = 1000


def compare_with_llama(
    program: Path, target: Path, text: str, rounds: int, folder: Path, notify: Callable[[str], None]
) -> dict[str, Any]:
    """Measure both programs on a text and on its beginning.

    Returns:
        Medians of the seconds over all rounds, their ratios, and whether both wrote the same n-grams.

    Raises:
        StoreError: one of the programs failed.
    """
    found: dict[str, Any] = {"target": target.name, "chars": len(text), "rounds": rounds}
    for size, part in (("text", text), ("start", text[:_SHORT].rstrip("\n"))):
        log = folder / f"{size}.txt"
        log.write_text(part, encoding="utf-8")
        theirs, ours = folder / f"{size}-theirs.bin", folder / f"{size}-ours.bin"
        # Without it, llama-lookup-create unescapes backslash sequences in the text.
        create: list[str | Path] = [program, "--no-escape", "-m", target, "-f", log, "-lcs", theirs]
        build: list[str | Path] = [sys.executable, "-m", "suffixsvc_cli", "build", log, "--tokenizer", target]
        build += ["--lookup-static", ours, "--exact-counts", "--force"]
        runs: dict[str, list[Run]] = {"theirs": [], "ours": []}
        for turn in range(rounds):
            notify(f"{target.name}: {'the text' if size == 'text' else 'starting'}, round {turn + 1}")
            runs["theirs"].append(run_program(create))
            runs["ours"].append(run_program(build))
        found[size] = _medians(runs)
        if size == "text":
            a, b = read_lookup(theirs).in_order(), read_lookup(ours).in_order()
            parts = ("ngrams", "starts", "tokens", "counts")
            found["ngrams"] = len(b)
            # The first two tokens follow no 2-gram.
            found["tokens"] = int(b.counts.sum(dtype=np.int64)) + 2
            found["identical"] = all(np.array_equal(getattr(a, p), getattr(b, p)) for p in parts)
    return found


def _medians(runs: dict[str, list[Run]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for program, its in runs.items():
        found |= {
            f"{program}_{name}": float(np.median([getattr(run, name) for run in its]))
            for name in ("wall_s", "cpu_s")
        }
    for name in ("wall_s", "cpu_s"):
        ratios = [
            getattr(a, name) / getattr(b, name) for a, b in zip(runs["theirs"], runs["ours"], strict=True)
        ]
        found[f"ratios_{name}"] = ratios
        found[f"ratio_{name}"] = float(np.median(ratios))
    return found
