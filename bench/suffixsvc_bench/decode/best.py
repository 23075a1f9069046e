"""The best of the settings that were compared, as a file that `suffixsvc generate` and `serve` read."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from suffixsvc_driver.config import LayerKind
from suffixsvc_driver.settings_file import (
    DraftModelSettings,
    LayerSettings,
    Settings,
    TargetSettings,
    write_settings,
)

from suffixsvc_bench.decode.figures import Row
from suffixsvc_bench.decode.rig import RigOptions
from suffixsvc_bench.decode.variants import Setting

__all__ = ["best_of", "write_best"]


def best_of(rows: Sequence[Row], settings: Mapping[str, Setting]) -> tuple[Setting, float] | None:
    """The setting with the largest geometric mean of its speedups over the workloads, and that mean; None
    where none was measured."""
    found: dict[str, list[float]] = {}
    for row in rows:
        if row.variant in settings and row.speedup.value > 0:
            found.setdefault(row.variant, []).append(math.log(row.speedup.value))
    if not found:
        return None
    means = {name: math.exp(sum(logs) / len(logs)) for name, logs in found.items()}
    name = max(means, key=means.__getitem__)
    return settings[name], means[name]


def write_best(file: Path, setting: Setting, mean: float, rig: RigOptions) -> None:
    """Write it, with a comment that says where it comes from.

    Raises:
        OSError: the disk.
    """
    kept = Settings(
        driver=setting.config,
        target=TargetSettings(threads=rig.threads, max_width=rig.max_width, experts_used=rig.experts),
        sampling=setting.sampling,
        prompt_lookup=LayerSettings(enabled=LayerKind.PROMPT_LOOKUP in setting.layers),
        suffix=LayerSettings(enabled=LayerKind.SUFFIX in setting.layers),
        draft_model=DraftModelSettings(
            enabled=LayerKind.DRAFT_MODEL in setting.layers and rig.draft is not None
        ),
    )
    note = (
        f"{setting.name}: {mean:.2f} times plain decoding of {rig.target.name}, geometric mean over the "
        f"workloads of `suffixsvc bench decode`"
    )
    write_settings(file, kept, note=note)
