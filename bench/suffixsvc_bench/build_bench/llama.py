"""Beside llama.cpp's own llama-lookup-create: the same text, the same tokenizer, the same 2-grams; whole
processes in turns."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
from suffixsvc_caches.lookup import read_lookup

from suffixsvc_bench.build_bench.processes import Run, run_program

__all__ = ["compare_with_llama"]

#: starting is seen with a text of so many characters
_SHORT: Final = 1000


def compare_with_llama(
    program: Path, target: Path, text: str, rounds: int, folder: Path, tell: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds of both with a text and with the beginning of it, the medians of rounds, and whether they wrote
    the same.

    Raises:
        StoreError: one of them failed.
    """
    found: dict[str, Any] = {"target": target.name, "chars": len(text), "rounds": rounds}
    for size, part in (("text", text), ("start", text[:_SHORT].rstrip("\n"))):
        log = folder / f"{size}.txt"
        log.write_text(part, encoding="utf-8")
        theirs, ours = folder / f"{size}-theirs.bin", folder / f"{size}-ours.bin"
        # It would replace what is spelled \n in the text.
        create: list[str | Path] = [program, "--no-escape", "-m", target, "-f", log, "-lcs", theirs]
        build: list[str | Path] = [sys.executable, "-m", "suffixsvc.cli", "build", log, "--tokenizer", target]
        build += ["--lookup-static", ours, "--exact-counts", "--force"]
        runs: dict[str, list[Run]] = {"theirs": [], "ours": []}
        for turn in range(rounds):
            tell(f"{target.name}: {'the text' if size == 'text' else 'starting'}, round {turn + 1}")
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
    for who, its in runs.items():
        found |= {
            f"{who}_{name}": float(np.median([getattr(run, name) for run in its]))
            for name in ("wall_s", "cpu_s")
        }
    for name in ("wall_s", "cpu_s"):
        ratios = [
            getattr(a, name) / getattr(b, name) for a, b in zip(runs["theirs"], runs["ours"], strict=True)
        ]
        found[f"ratios_{name}"] = ratios
        found[f"ratio_{name}"] = float(np.median(ratios))
    return found
