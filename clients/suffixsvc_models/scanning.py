"""Scan of model files for those that can draft for a target.

Each file is examined in a separate process: llama.cpp aborts its process on some damaged files.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc_models.finding import FoundModel

_TIMEOUT_SECONDS: Final = 300.0
_MEASURE_TIMEOUT_SECONDS: Final = 3600.0
_MAX_ERROR_LENGTH: Final = 200


@dataclass(frozen=True, slots=True)
class ScannedDraft:
    """Result of the scan of one file.

    Attributes:
        fits: its ids can be verified by the target.
        failed_rule, reason: why not.
        cost_ratio: cost of a drafted token relative to a plain step of the target, by the bytes each reads; 0
            = unknown.
        known: known outcome of such pairs: "works", "slower", "fails" or "".
        figures: measurements of such pairs.
        through_text: its vocabulary does not fit, but it can draft through text.
        kept_tokens: fraction of drafted tokens that drafting through text keeps.
        token_ratio: its tokens per token of the target.
        measured_ratio: measured ``cost_ratio`` per token of the target; None = not measured.
        pays_from: acceptance rate from which it pays; None if it never does, or was not measured.
    """

    name: str
    path: str
    fits: bool
    failed_rule: str = ""
    reason: str = ""
    cost_ratio: float = 0.0
    known: str = ""
    figures: str = ""
    through_text: bool = False
    kept_tokens: float = 1.0
    token_ratio: float = 1.0
    measured_ratio: float | None = None
    pays_from: float | None = None

    @property
    def rank(self) -> tuple[bool, bool, bool, float, float, str]:
        """Sort key: files that fit, then those that can draft through text; those not known to fail first;
        then by the acceptance rate from which they pay, then by cost."""
        pays = 0.0 if self.measured_ratio is None else self.pays_from or math.inf
        known = self.known in ("fails", "slower")
        cost = self.cost_ratio * self.token_ratio if self.measured_ratio is None else self.measured_ratio
        return (not self.fits, not self.through_text, known, pays, cost, self.name)


def scan_drafts(
    target: Path,
    found: Sequence[FoundModel],
    progress: Callable[[int, int], None] | None = None,
    *,
    measure: int | None = None,
) -> list[ScannedDraft]:
    """Scan every file except the target itself; return the results, best first.

    Args:
        progress: called after each file with the number of scanned files and the total.
        measure: threads for measuring the files that can draft; None = do not measure.
    """
    scanned = []
    for done, model in enumerate(found, 1):
        if not model.path.samefile(target):
            scanned.append(_scan(target, model, measure))
        if progress is not None:
            progress(done, len(found))
    return sorted(scanned, key=lambda each: each.rank)


def _scan(target: Path, model: FoundModel, measure: int | None) -> ScannedDraft:
    command = [sys.executable, "-m", "suffixsvc_cli", "compat", str(target), str(model.path), "--json"]
    seconds = _TIMEOUT_SECONDS
    if measure is not None:
        command += ["--measure", "--threads", str(measure)]
        seconds = _MEASURE_TIMEOUT_SECONDS
    try:
        done = subprocess.run(  # noqa: S603 - our own program, with paths as arguments
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
        plain: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return _unreadable(model, f"no result within {seconds:.0f} s")
    except ValueError:
        lines = done.stderr.strip().splitlines() if done.returncode > 0 else []
        ended = f"llama.cpp ended with signal {-done.returncode}" if done.returncode < 0 else "cannot be read"
        return _unreadable(
            model, lines[-1].removeprefix("suffixsvc compat: ")[:_MAX_ERROR_LENGTH] if lines else ended
        )
    if not plain["draft"]["weights"]:
        return _unreadable(model, "a vocabulary without weights")
    failed = next((rule for rule in plain["rules"] if not rule["passed"]), None)
    known, text, cost = plain["known"] or {}, plain["through_text"] or {}, plain["measured"] or {}
    return ScannedDraft(
        model.name,
        str(model.path),
        plain["fits"],
        failed["rule"] if failed else "",
        f"{failed['what']}: {failed['draft']}, not {failed['target']}" if failed else "",
        plain["cost_ratio"],
        known.get("outcome", ""),
        known.get("figures", ""),
        bool(text.get("works")),
        text.get("kept_tokens", 1.0),
        text.get("token_ratio", 1.0),
        cost.get("cost_ratio"),
        cost.get("pays_from"),
    )


def _unreadable(model: FoundModel, reason: str) -> ScannedDraft:
    return ScannedDraft(model.name, str(model.path), False, "unreadable", reason)
