"""Which of many model files could draft for a target.

Each is looked at by a process of its own: llama.cpp ends its process on some damaged files instead of saying
what is wrong with them.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc_driver.models.finding import FoundModel, find_in_folders, find_in_ollama

__all__ = ["ScannedDraft", "candidates", "scan_drafts"]

_SECONDS: Final = 300.0
_MEASURING_SECONDS: Final = 3600.0
_KEPT_ERROR: Final = 200


@dataclass(frozen=True, slots=True)
class ScannedDraft:
    """A file that was looked at.

    Attributes:
        fits: its ids can be verified by the target.
        failed_rule, reason: why not.
        cost_ratio: of a drafted token to a plain step of the target, by the bytes each reads; 0 = unknown.
        known: what became of pairs like this elsewhere: "works", "slower", "fails" or "".
        figures: what was seen of it there.
        through_text: it does not fit, but can draft through text.
        kept_tokens: share of its drafts that survives that.
        token_ratio: its tokens for one of the target.
        measured_ratio: as ``cost_ratio``, measured, for what is a token of the target; None = not measured.
        pays_from: acceptance from which it pays; None where it never does, or nobody measured.
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

    def as_plain(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    @property
    def rank(self) -> tuple[bool, bool, bool, float, float, str]:
        """Sorts: what fits, then what can draft through text; of those what is not known to fail; then what
        pays at the lowest acceptance; the cheapest first."""
        pays = 0.0 if self.measured_ratio is None else self.pays_from or math.inf
        known = self.known in ("fails", "slower")
        cost = self.cost_ratio * self.token_ratio if self.measured_ratio is None else self.measured_ratio
        return (not self.fits, not self.through_text, known, pays, cost, self.name)


def candidates(folders: Sequence[Path], *, ollama: bool) -> list[FoundModel]:
    """What there is to be tried. InvalidConfigError: a folder, or Ollama's store, is not there."""
    return [*find_in_folders(folders), *(find_in_ollama() if ollama else ())]


def scan_drafts(
    target: Path,
    found: Sequence[FoundModel],
    progress: Callable[[int, int], None] | None = None,
    *,
    measure: int | None = None,
) -> list[ScannedDraft]:
    """Look at every file but the target itself; the best first.

    Args:
        progress: told after each file how many are done, of how many.
        measure: threads on which what can draft is measured, too; None = it is not.
    """
    scanned = []
    for done, model in enumerate(found, 1):
        if not model.path.samefile(target):
            scanned.append(_look_at(target, model, measure))
        if progress is not None:
            progress(done, len(found))
    return sorted(scanned, key=lambda each: each.rank)


def _look_at(target: Path, model: FoundModel, measure: int | None) -> ScannedDraft:
    command = [sys.executable, "-m", "suffixsvc.cli", "compat", str(target), str(model.path), "--json"]
    seconds = _SECONDS
    if measure is not None:
        command += ["--measure", "--threads", str(measure)]
        seconds = _MEASURING_SECONDS
    try:
        done = subprocess.run(  # noqa: S603 - our own program, with paths as arguments
            command, capture_output=True, text=True, timeout=seconds, check=False
        )
        plain: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return _unreadable(model, f"nothing was heard of it in {seconds:.0f} s")
    except ValueError:
        said = done.stderr.strip().splitlines() if done.returncode > 0 else []
        ended = f"llama.cpp ended with signal {-done.returncode}" if done.returncode < 0 else "cannot be read"
        return _unreadable(
            model, said[-1].removeprefix("suffixsvc compat: ")[:_KEPT_ERROR] if said else ended
        )
    if not plain["draft"]["weights"]:
        return _unreadable(model, "a vocabulary without weights")
    failed = next((rule for rule in plain["rules"] if not rule["passed"]), None)
    known = plain["known"] or {}
    text, cost = plain["through_text"], plain["measured"]
    return ScannedDraft(
        model.name,
        str(model.path),
        plain["fits"],
        failed["rule"] if failed else "",
        f"{failed['what']}: {failed['draft']}, not {failed['target']}" if failed else "",
        plain["cost_ratio"],
        known.get("outcome", ""),
        known.get("figures", ""),
        bool(text and text["works"]),
        text["kept_tokens"] if text else 1.0,
        text["token_ratio"] if text else 1.0,
        cost["cost_ratio"] if cost else None,
        cost["pays_from"] if cost else None,
    )


def _unreadable(model: FoundModel, why: str) -> ScannedDraft:
    return ScannedDraft(model.name, str(model.path), False, "unreadable", why)
