"""Which models the demo runs on, and on how many threads."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from suffixsvc_driver import models

from suffixsvc.errors import SuffixError

__all__ = ["Chosen", "choose_models", "physical_cores"]

TARGET: Final = "qwen2.5-coder-1.5b"
DRAFT: Final = "qwen2.5-coder-0.5b"
SMALL: Final = "smollm2-135m"

#: gets a model of the registry: name -> file
Download = Callable[[str], Path]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Chosen:
    """The models of a run. ``small``: the tiny one, without a draft model."""

    name: str
    target: Path
    draft: Path | None
    small: bool


def choose_models(
    *, small: bool, target: str | None, draft: str | None, download: Download, say: Say
) -> Chosen:
    """Models by what was asked for and what can be had.

    Args:
        small: the tiny model only.
        target, draft: a GGUF or a registry name instead of the usual pair.
        download: gets a registry model that is not here.
        say: told where the choice differs from what was asked for.

    Raises:
        SuffixError: a model that was named, or even the tiny one, cannot be had.
    """
    if target is not None:
        file = _have(target, download)
        return Chosen(file.stem, file, _have(draft, download) if draft else None, small=draft is None)
    if not small:
        try:
            return Chosen(TARGET, _have(TARGET, download), _have(draft or DRAFT, download), small=False)
        except SuffixError as error:
            say(f"The large models cannot be had: {error}")
            say(f"Going on with {SMALL}, without a draft model (as SMALL=1 does).")
    return Chosen(SMALL, _have(SMALL, download), None, small=True)


def _have(what: str, download: Download) -> Path:
    if "/" in what or what.endswith(".gguf"):
        return models.resolve(what)
    try:
        return models.path(what)
    except SuffixError:
        return download(what)


def physical_cores() -> int:
    """Physical cores this process may use: llama.cpp's threads spin, so one a core is the most that helps."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in usable:
        topology = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology")
        try:
            cores.add(((topology / "physical_package_id").read_text(), (topology / "core_id").read_text()))
        except OSError:
            cores.add(("cpu", str(cpu)))
    return max(1, len(cores))
