"""Which of many model files could draft for a target.

Each is looked at by a process of its own: llama.cpp ends its process on some damaged files instead of saying
what is wrong with them.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from suffixsvc_driver.models.finding import FoundModel, find_in_folders, find_in_ollama

__all__ = ["ScannedDraft", "candidates", "scan_drafts"]

_SECONDS: Final = 300.0
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
    """

    name: str
    path: str
    fits: bool
    failed_rule: str = ""
    reason: str = ""
    cost_ratio: float = 0.0
    known: str = ""
    figures: str = ""

    def as_plain(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)

    @property
    def rank(self) -> tuple[bool, bool, float, str]:
        """Sorts: what fits first, of that what is not known to fail, the cheapest first."""
        return (not self.fits, self.known in ("fails", "slower"), self.cost_ratio, self.name)


def candidates(folders: Sequence[Path], *, ollama: bool) -> list[FoundModel]:
    """What there is to be tried. InvalidConfigError: a folder, or Ollama's store, is not there."""
    return [*find_in_folders(folders), *(find_in_ollama() if ollama else ())]


def scan_drafts(
    target: Path, found: Sequence[FoundModel], progress: Callable[[int, int], None] | None = None
) -> list[ScannedDraft]:
    """Look at every file but the target itself; the best first.

    Args:
        progress: told after each file how many are done, of how many.
    """
    scanned = []
    for done, model in enumerate(found, 1):
        if not model.path.samefile(target):
            scanned.append(_look_at(target, model))
        if progress is not None:
            progress(done, len(found))
    return sorted(scanned, key=lambda each: each.rank)


def _look_at(target: Path, model: FoundModel) -> ScannedDraft:
    command = [sys.executable, "-m", "suffixsvc.cli", "compat", str(target), str(model.path), "--json"]
    try:
        done = subprocess.run(  # noqa: S603 - our own program, with paths as arguments
            command, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        plain: dict[str, Any] = json.loads(done.stdout)
    except subprocess.TimeoutExpired:
        return _unreadable(model, f"nothing was heard of it in {_SECONDS:.0f} s")
    except ValueError:
        said = done.stderr.strip().splitlines() if done.returncode > 0 else []
        ended = f"llama.cpp ended with signal {-done.returncode}" if done.returncode < 0 else "cannot be read"
        return _unreadable(model, said[-1][:_KEPT_ERROR] if said else ended)
    if not plain["draft"]["weights"]:
        return _unreadable(model, "a vocabulary without weights")
    failed = next((rule for rule in plain["rules"] if not rule["passed"]), None)
    known = plain["known"] or {}
    return ScannedDraft(
        model.name,
        str(model.path),
        plain["fits"],
        failed["rule"] if failed else "",
        f"{failed['what']}: {failed['draft']}, not {failed['target']}" if failed else "",
        plain["cost_ratio"],
        known.get("outcome", ""),
        known.get("figures", ""),
    )


def _unreadable(model: FoundModel, why: str) -> ScannedDraft:
    return ScannedDraft(model.name, str(model.path), False, "unreadable", why)
