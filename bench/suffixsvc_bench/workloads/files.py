"""Reader of the TOML files under tasks/."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

__all__ = ["read_themes"]

_TASKS: Final = Path(__file__).with_name("tasks")


def read_themes(workload: str) -> dict[str, dict[str, Any]]:
    """The files of a workload by name without suffix, sorted."""
    return {
        path.stem: tomllib.loads(path.read_text(encoding="utf-8"))
        for path in sorted((_TASKS / workload).glob("*.toml"))
    }
